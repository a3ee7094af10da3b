"""Builds what is missing of the control plane into the cache, one project after the other.

Two builds at once wait for each other project by project. A build that was stopped goes on where it was: finished
programs stay, and what Go compiled is in Go's own cache. Nothing is done, and Go not asked for, when all is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from nvcre_local.control_plane.cache import MANIFESTS, Cache, is_locked
from nvcre_local.control_plane.go_modules import go_mod
from nvcre_local.control_plane.manifests import wanted
from nvcre_local.control_plane.projects import KUBERNETES, Project

NICE = 10
STILL_EVERY_S = 30.0
_GO_LINE = re.compile(r"^go (\d+)\.(\d+)", re.MULTILINE)

Say = Callable[[str], None]


class GoMissing(Exception):
    """No Go, or one that is too old; the message says what to install."""


class BuildFailed(Exception):
    """A command of a build failed; the message has its last lines."""


def build(projects: Iterable[Project], cache: Cache, say: Say) -> None:
    """Raises GoMissing, BuildFailed, StrangeModule. Kubernetes comes first: its kubectl renders manifests."""
    missing = [project for project in projects if not cache.is_complete(project)]
    if not missing:
        return
    go = Go.find(missing)
    cache.root.mkdir(parents=True, exist_ok=True)
    for project in sorted(missing, key=lambda one: one.name != KUBERNETES):
        with _locked(cache.root / f".{project.name}-{project.version}.lock", project, say):
            if not is_locked(project):
                _write_module(project, go, say)
            _build_programs(project, cache, go, say)
            _take_files(project, cache, go, say)


@dataclass(frozen=True, slots=True)
class Go:
    """Go commands in a module of ours, with nothing of the person's own workspace."""

    program: str

    @classmethod
    def find(cls, projects: Iterable[Project]) -> Go:
        """Raises GoMissing."""
        needed = max((_needed(project) for project in projects), default=(1, 26))
        remedy = (
            f"building the control plane needs Go {needed[0]}.{needed[1]} or newer: install it and put `go` on the "
            "PATH, or set KUBEBUILDER_ASSETS to a directory that holds the programs"
        )
        program = shutil.which("go")
        if program is None:
            raise GoMissing(f"go is not on the PATH; {remedy}")
        go = cls(program)
        version = go.run(Path("/"), "env", "GOVERSION").strip()
        numbers = re.match(r"go(\d+)\.(\d+)", version)
        if numbers is None or (int(numbers[1]), int(numbers[2])) < needed:
            raise GoMissing(f"{program} is {version or 'of an unknown version'}; {remedy}")
        return go

    def run(self, directory: Path, *words: str, writes_module: bool = False) -> str:
        """stdout. Raises BuildFailed. Only `writes_module` may change go.mod and go.sum."""
        environment = os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off"}
        environment["GOFLAGS"] = f"-mod={'mod' if writes_module else 'readonly'}"
        return _run((self.program, *words), directory, environment)


def _needed(project: Project) -> tuple[int, int]:
    path = project.module_directory / "go.mod"
    line = _GO_LINE.search(path.read_text()) if path.is_file() else None
    return (int(line[1]), int(line[2])) if line else (1, 26)


def _run(command: Sequence[str], directory: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.nice(NICE) and None,
    )
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()[-12:]
        raise BuildFailed(f"{' '.join(command)} failed in {directory}:\n" + "\n".join(lines))
    return done.stdout


@contextlib.contextmanager
def _locked(path: Path, project: Project, say: Say) -> Iterator[None]:
    """The kernel lets go of the lock when we die, however we die."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{project.name} {project.version}: somebody else builds it, waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _still(say: Say, what: str) -> Iterator[None]:
    """A line now and then while something takes long, and one at its end."""
    began = time.monotonic()
    over = threading.Event()

    def tell() -> None:
        while not over.wait(STILL_EVERY_S):
            say(f"{what}: still at it after {time.monotonic() - began:.0f} s")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
    say(f"{what}: done in {time.monotonic() - began:.0f} s")


def _write_module(project: Project, go: Go, say: Say) -> None:
    """go.mod and go.sum of a version that was just added; they belong into the repository."""
    directory = project.module_directory
    directory.mkdir(parents=True, exist_ok=True)
    say(f"{project.name} {project.version}: writing {directory}/go.mod and go.sum, please commit them")
    with tempfile.TemporaryDirectory() as nowhere:
        answer = go.run(Path(nowhere), "mod", "download", "-json", f"{project.module}@{project.version}")
    (directory / "go.mod").write_text(go_mod(project, Path(json.loads(answer)["GoMod"]).read_text()))
    with _still(say, f"{project.name} {project.version}: finding its modules"):
        go.run(directory, "list", "-deps", *project.programs.values(), writes_module=True)


def _build_programs(project: Project, cache: Cache, go: Go, say: Say) -> None:
    missing = cache.missing_programs(project)
    directory = cache.folder(project) / "bin"
    directory.mkdir(parents=True, exist_ok=True)
    for number, program in enumerate(missing, 1):
        what = f"{project.name} {project.version}: {program} ({number} of {len(missing)})"
        say(f"{what}: building")
        new = directory / f".{program}.new"
        with _still(say, what):
            flag, package = f"-ldflags={project.link_flags}", project.programs[program]
            go.run(project.module_directory, "build", flag, "-o", str(new), package)
        new.replace(directory / program)


def _take_files(project: Project, cache: Cache, go: Go, say: Say) -> None:
    missing = cache.missing_files(project)
    if not missing:
        return
    say(f"{project.name} {project.version}: taking {', '.join(missing)} out of the module")
    directory = cache.folder(project) / "files"
    directory.mkdir(parents=True, exist_ok=True)
    # One that only differs from the build's module graph in being downloaded is of no use: ask within our module.
    module = Path(go.run(project.module_directory, "list", "-m", "-f", "{{.Dir}}", project.module).strip())
    for file in project.files:
        _write(directory / Path(file).name, (module / file).read_text())
    if MANIFESTS in missing:
        _write(directory / MANIFESTS, json.dumps(_render(project, module, cache)))


def _render(project: Project, module: Path, cache: Cache) -> list[dict[str, object]]:
    """What the project's kustomizations give, without what only Pods need."""
    kubectl = next((path for path in _kubectls(cache) if path.is_file()), None)
    if kubectl is None:
        raise BuildFailed("kubectl is needed to render manifests and is not built: build the project kubernetes first")
    with tempfile.TemporaryDirectory() as directory:
        bases = [
            os.path.relpath((module / base).resolve(), Path(directory).resolve()) for base in project.kustomizations
        ]
        kustomization: dict[str, object] = {"resources": bases}
        if project.namespace:
            kustomization["namespace"] = project.namespace
        (Path(directory) / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        rendered = _run((str(kubectl), "kustomize", directory), Path(directory))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return wanted(document for document in yaml.load_all(rendered, loader) if document)


def _kubectls(cache: Cache) -> Iterator[Path]:
    if cache.assets is not None:
        yield cache.assets / "kubectl"
    yield from sorted(cache.root.glob(f"{KUBERNETES}-*/bin/kubectl"))


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)
