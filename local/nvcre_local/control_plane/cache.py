"""Where built programs and manifests lie, and which of them are used.

One folder a project, named by what it was built from: $XDG_CACHE_HOME/nvcre/control-plane/<project>-<content key>. So a
changed go.sum rebuilds its project alone, and two checkouts do not disturb each other. A file is there or not: each is
written under another name and renamed. Programs in KUBEBUILDER_ASSETS come first.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nvcre_local.control_plane.projects import Project

MANIFESTS = "manifests.json"


class NotBuilt(Exception):
    """Something of the control plane is not there yet; the message says how to get it."""


def root(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nvcre" / "control-plane"


def content_key(project: Project) -> str:
    """Of all that decides what a build gives, but for the Go toolchain: it may be missing where the cache is used."""
    digest = hashlib.sha256()
    for part in (
        (project.module_directory / "go.mod").read_bytes(),
        (project.module_directory / "go.sum").read_bytes(),
        repr((sorted(project.programs.items()), project.link_flags)).encode(),
        repr((project.kustomizations, project.namespace, project.files)).encode(),
        platform.machine().encode(),
    ):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


def is_locked(project: Project) -> bool:
    return all((project.module_directory / name).is_file() for name in ("go.mod", "go.sum"))


@dataclass(frozen=True, slots=True)
class Cache:
    """`assets` is KUBEBUILDER_ASSETS."""

    root: Path
    assets: Path | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None) -> Cache:
        environment = os.environ if environment is None else environment
        assets = environment.get("KUBEBUILDER_ASSETS")
        return cls(root(environment), Path(assets) if assets else None)

    def folder(self, project: Project) -> Path:
        return self.root / f"{project.name}-{content_key(project)}"

    def given(self, project: Project, program: str) -> Path | None:
        """The program in KUBEBUILDER_ASSETS; never for a version that was asked for besides the usual one."""
        path = self.assets / program if self.assets is not None and project.is_usual else None
        return path if path is not None and os.access(path, os.X_OK) else None

    def missing_programs(self, project: Project) -> list[str]:
        if all(self.given(project, program) for program in project.programs):
            return []
        folder = self.folder(project) if is_locked(project) else None
        return [
            program
            for program in project.programs
            if not self.given(project, program) and (folder is None or not (folder / "bin" / program).is_file())
        ]

    def missing_files(self, project: Project) -> list[str]:
        """Names under files/, manifests included."""
        wanted = [Path(file).name for file in project.files]
        if project.kustomizations:
            wanted.append(MANIFESTS)
        if not wanted:
            return []
        if not is_locked(project):
            return wanted
        folder = self.folder(project)
        return [name for name in wanted if not (folder / "files" / name).is_file()]

    def is_complete(self, project: Project) -> bool:
        return not self.missing_programs(project) and not self.missing_files(project)

    def program(self, project: Project, name: str) -> Path:
        """Raises NotBuilt."""
        if path := self.given(project, name):
            return path
        path = self.folder(project) / "bin" / name if is_locked(project) else None
        if path is None or not path.is_file():
            raise NotBuilt(
                f"{name} {project.version} is not built: run make control-plane, which takes some minutes once"
            )
        return path

    def file(self, project: Project, name: str) -> Path:
        """Raises NotBuilt."""
        path = self.folder(project) / "files" / name if is_locked(project) else None
        if path is None or not path.is_file():
            raise NotBuilt(f"{name} of {project.name} {project.version} is not there: run make control-plane")
        return path
