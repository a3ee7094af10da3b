"""Building what is missing: once, resumable, one at a time, or a clear word about Go. Go is a script here."""

from __future__ import annotations

import fcntl
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from nvcre_local.control_plane.building import BuildFailed, GoMissing, build
from nvcre_local.control_plane.cache import Cache
from nvcre_local.control_plane.projects import Project

GO = """\
#!/bin/sh
echo "$@" >> {log}
case "$1 $2" in
"env GOVERSION") echo {version} ;;
"build "*) case "$*" in *broken*) echo "cannot find package" >&2; exit 1 ;; esac; echo program > "$4" ;;
"list -m") echo {module} ;;
esac
"""


class Scene:
    """A project `tool` with two programs, a cache, and a `go` that writes down what it is asked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "go.log"
        modules = directory / "modules" / "tool"
        modules.mkdir(parents=True)
        (modules / "go.mod").write_text("module m\n\ngo 1.24.0\n")
        (modules / "go.sum").write_text("")
        (directory / "upstream").mkdir()
        (directory / "upstream" / "stage.yaml").write_text("kind: Stage\n")
        self.project = Project(
            "tool", "example.org/tool", "v1.0.0", modules, {"one": "tool/one", "two": "tool/two"}, files=("stage.yaml",)
        )
        self.cache = Cache(directory / "cache")
        self.said: list[str] = []

    def install_go(self, version: str = "go1.26.1") -> None:
        program = self.directory / "bin" / "go"
        program.parent.mkdir()
        program.write_text(GO.format(log=self.log, version=version, module=self.directory / "upstream"))
        program.chmod(0o755)

    def build(self, *projects: Project) -> None:
        build(projects or (self.project,), self.cache, self.said.append)

    @property
    def built(self) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.rpartition(" ")[2] for line in lines if line.startswith("build ")]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    found = Scene(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return found


def test_everything_missing_is_built_with_a_line_for_each_step(scene: Scene):
    scene.install_go()
    scene.build()
    assert scene.built == ["tool/one", "tool/two"]
    assert scene.cache.is_complete(scene.project)
    assert (scene.cache.folder(scene.project) / "files" / "stage.yaml").read_text() == "kind: Stage\n"
    assert scene.said[0] == "tool v1.0.0: one (1 of 2): building"


def test_nothing_is_asked_of_go_when_all_is_there(scene: Scene):
    scene.install_go()
    scene.build()
    scene.log.unlink()
    scene.build()
    assert not scene.log.exists()


def test_a_build_that_was_stopped_goes_on_with_the_next_program(scene: Scene):
    scene.install_go()
    broken = replace(scene.project, programs={"one": "tool/one", "two": "tool/broken"})
    with pytest.raises(BuildFailed, match="cannot find package"):
        scene.build(broken)
    assert (scene.cache.folder(broken) / "bin" / "one").is_file()
    assert not (scene.cache.folder(broken) / "bin" / "two").exists()
    scene.log.unlink()
    with pytest.raises(BuildFailed):
        scene.build(broken)
    assert scene.built == ["tool/broken"]


def test_a_change_of_one_project_builds_it_alone(scene: Scene):
    scene.install_go()
    directory = scene.directory / "modules" / "other"
    directory.mkdir()
    (directory / "go.mod").write_text("module o\n\ngo 1.24.0\n")
    (directory / "go.sum").write_text("")
    other = Project("other", "example.org/other", "v1.0.0", directory, {"three": "other/three"})
    scene.build(scene.project, other)
    scene.log.unlink()
    (directory / "go.sum").write_text("changed\n")
    scene.build(scene.project, other)
    assert scene.built == ["other/three"]


def test_a_second_build_waits_for_the_first_and_then_finds_all_there(scene: Scene):
    scene.install_go()
    scene.cache.root.mkdir(parents=True)
    with (scene.cache.root / ".tool-v1.0.0.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Event()

        def say(text: str) -> None:
            scene.said.append(text)
            waiting.set()

        second = threading.Thread(target=build, args=((scene.project,), scene.cache, say))
        second.start()
        assert waiting.wait(30)
        folder = scene.cache.folder(scene.project)
        for file in ("bin/one", "bin/two", "files/stage.yaml"):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).touch()
    second.join(30)
    assert scene.said == ["tool v1.0.0: somebody else builds it, waiting"]
    assert scene.built == []


def test_without_go_it_says_what_to_install(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(GoMissing, match=r"go is not on the PATH; .* needs Go 1\.24 or newer: install it"):
        scene.build()


def test_a_go_that_is_too_old_is_named(scene: Scene):
    scene.install_go("go1.23.4")
    with pytest.raises(GoMissing, match=r"go is go1\.23\.4; building the control plane needs Go 1\.24"):
        scene.build()
