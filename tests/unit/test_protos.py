"""The committed wire code is what the .proto file generates."""

import subprocess
import sys
from pathlib import Path

import pytest

PROTOS = Path(__file__).parents[2] / "protos"


def test_generated_code_is_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    subprocess.run(
        [str(PROTOS / "generate.sh"), str(tmp_path)],
        check=True,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"},
        capture_output=True,
    )
    committed = PROTOS / "nvcre_protos"
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(path.name for path in committed.glob("nvcre_agent_v1_*"))
    for name in made:
        assert (tmp_path / name).read_text() == (committed / name).read_text(), f"{name}: run protos/generate.sh"
