"""Reads control-plane/versions.yaml: which projects make up the control plane, and where each one's go.mod lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from nvcre_local.cluster_objects import shipped

FILE = "versions.yaml"
KUBERNETES = "kubernetes"


class UnknownVersion(Exception):
    """A version of Kubernetes that versions.yaml does not list."""


@dataclass(frozen=True, slots=True)
class Project:
    """One upstream project in one version."""

    name: str
    module: str
    version: str
    module_directory: Path
    """Of our go.mod and go.sum."""
    programs: Mapping[str, str]
    """Program -> Go package."""
    stamp: str = ""
    """Go package whose gitVersion, gitMajor and gitMinor are set at link time."""
    kustomizations: tuple[str, ...] = ()
    namespace: str = ""
    """Of what is rendered, where the kustomizations do not say it themselves."""
    files: tuple[str, ...] = ()

    @property
    def is_usual(self) -> bool:
        return self.module_directory.name == self.name

    @property
    def link_flags(self) -> str:
        flags = ["-s", "-w"]
        if self.stamp:
            major, minor, _ = self.version.removeprefix("v").split(".", 2)
            variables = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
            flags += [f"-X {self.stamp}.{variable}={value}" for variable, value in variables.items()]
        return " ".join(flags)


def parse(content: Mapping[str, Any], directory: Path) -> dict[str, tuple[Project, ...]]:
    """The projects by name, each in its versions; `directory` holds the go.mod folders."""
    found: dict[str, tuple[Project, ...]] = {}
    for name, fields in content.items():
        versions: list[str] = fields["versions"]
        first = Project(
            name=name,
            module=fields["module"],
            version=versions[0],
            module_directory=directory / name,
            programs=fields["programs"],
            stamp=fields.get("stamp", ""),
            kustomizations=tuple(fields.get("kustomizations", ())),
            namespace=fields.get("namespace", ""),
            files=tuple(fields.get("files", ())),
        )
        others = (
            replace(first, version=version, module_directory=directory / name / version) for version in versions[1:]
        )
        found[name] = (first, *others)
    return found


def read() -> dict[str, tuple[Project, ...]]:
    """Raises NotInstalled when there is no control-plane directory."""
    directory = shipped("control-plane", "control-plane")
    return parse(yaml.safe_load((directory / FILE).read_text()), directory)


def select(projects: Mapping[str, tuple[Project, ...]], kubernetes: str | None = None) -> dict[str, Project]:
    """Every project in its usual version, Kubernetes in the one asked for. Raises UnknownVersion."""
    chosen = {name: versions[0] for name, versions in projects.items()}
    if kubernetes is not None:
        known = {project.version: project for project in projects[KUBERNETES]}
        if kubernetes not in known:
            raise UnknownVersion(
                f"Kubernetes {kubernetes} is not among {', '.join(known)}: "
                f"add it to kubernetes.versions in control-plane/{FILE} and run make control-plane"
            )
        chosen[KUBERNETES] = known[kubernetes]
    return chosen
