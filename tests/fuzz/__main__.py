"""`python -m fuzz [--seconds N] [TARGET ...]`: each target for so long, guided by coverage (atheris, libFuzzer).

Every target has a process of its own; one that breaks, hangs or eats memory ends it, and the input is kept in
`--found`. Exit code 1 when that happened. With `--from FILE` the target runs on this input alone, without atheris.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

INSTRUMENTED = ["nvcre_agent", "nvcre_coordinator", "nvcre_logs", "nvcre_protos"]
HANG_S = 10  # for one input
MEMORY_MB = 1024
LONGEST = 8192  # bytes of an input


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=int, default=30, help="for each target")
    parser.add_argument(
        "--found", type=Path, default=Path("fuzz-found"), help="directory of inputs that broke a target"
    )
    parser.add_argument("--from", type=Path, dest="once", help="run one target on this input")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*", help="default: all")
    given = parser.parse_args()
    if given.in_this_process:
        _fuzz(given.targets[0], given.seconds, given.found)
    from fuzz.targets import TARGETS

    names = given.targets or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if given.once is not None:
        for name in names:
            TARGETS[name](given.once.read_bytes())
        return 0
    broken = [name for name in names if not _holds(name, given.seconds, given.found)]
    print(f"fuzz: {len(names)} targets, {given.seconds} s each; broken: {', '.join(broken) or 'none'}", flush=True)
    return 1 if broken else 0


def _holds(name: str, seconds: int, found: Path) -> bool:
    command = [
        sys.executable,
        "-m",
        "fuzz",
        "--in-this-process",
        "--seconds",
        str(seconds),
        "--found",
        str(found),
        name,
    ]
    found.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nvcre-fuzz-") as scratch, (found / f"{name}.log").open("wb") as log:
        environment = {**os.environ, "TMPDIR": scratch}  # libFuzzer ends the process without cleaning up
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False).returncode
    said = (found / f"{name}.log").read_text("utf-8", "replace").splitlines()
    if code == 0:
        print(
            f"fuzz {name}: held; {next((line for line in reversed(said) if line.startswith('Done ')), '')}", flush=True
        )
    else:
        print("\n".join(said[-60:]), flush=True)
        print(f"fuzz {name}: BROKEN, see {found}/{name}.log and the input beside it", flush=True)
    return code == 0


def _fuzz(name: str, seconds: int, found: Path) -> None:
    """Ends the process."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz.targets import TARGETS, seeds

    corpus = Path(tempfile.mkdtemp(prefix="corpus-"))
    for number, seed in enumerate(seeds(name)):
        shutil.copy(seed, corpus / f"{number}-{seed.name}")
    limits = [f"-timeout={HANG_S}", f"-rss_limit_mb={MEMORY_MB}", f"-max_len={LONGEST}"]
    arguments = [f"-max_total_time={seconds}", *limits, f"-artifact_prefix={found}/{name}-"]
    atheris.Setup([sys.argv[0], *arguments, str(corpus)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
