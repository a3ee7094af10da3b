"""What an installed wheel can do without the checkout: every file that a local cluster reads is in it."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
PACKAGES = ("protos", "kube", "agent", "coordinator", "local", "cli")
FROM_THE_WHEEL = """
import json, sys
sys.path.insert(0, sys.argv[1])
from nvcre_local import cluster_objects as objects
print(json.dumps({
    "from": objects.__file__,
    "profiles": [profile["metadata"]["name"] for profile in objects.log_profiles()],
    "scenarios": list(objects.example_scenarios()),
    "crds": [len(list(directory.glob("*.yaml"))) for directory in objects.crd_directories()],
}))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(directory))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "unpacked")
    return directory / "unpacked"


def test_a_local_cluster_finds_its_profiles_scenarios_and_crds(unpacked):
    ended = subprocess.run(
        [sys.executable, "-c", FROM_THE_WHEEL, unpacked], capture_output=True, text=True, check=True, cwd=unpacked
    )
    found = json.loads(ended.stdout)
    assert found["from"].startswith(str(unpacked))
    assert set(found["profiles"]) == {path.stem for path in (ROOT / "daemonset" / "log-profiles").glob("*.yaml")}
    assert set(found["scenarios"]) == {path.stem for path in (ROOT / "examples" / "scenarios").glob("*.yaml")}
    assert all(found["crds"])


def test_the_data_beside_the_code_is_in_it(unpacked):
    data = {
        path.relative_to(ROOT / package)
        for package in PACKAGES
        for path in (ROOT / package).glob("nvcre_*/**/*")
        if path.suffix in {".yaml", ".json", ".typed"}
    }
    assert data, "a glob that finds nothing proves nothing"
    assert [str(path) for path in sorted(data) if not (unpacked / path).is_file()] == []
