"""Writes the go.mod of an upstream project in a version that we have none of yet. Pure.

A module of our own requires the upstream one, names its programs as tools, and repeats those of its `replace` lines
that matter: Go ignores a dependency's own. Kubernetes replaces its staging modules by paths; each of them is published
as v0.<minor>.<patch>.
"""

from __future__ import annotations

import re

from nvcre_local.control_plane.projects import Project

_GO = re.compile(r"^go (\S+)$", re.MULTILINE)
_STAGED = re.compile(r"^\s*(?:replace )?(k8s\.io/\S+)(?: \S+)? => \./staging/", re.MULTILINE)


class StrangeModule(Exception):
    """An upstream go.mod that is not what we know how to build on."""


def go_mod(project: Project, upstream: str) -> str:
    """`upstream` is the text of the project's own go.mod. Raises StrangeModule."""
    go = _GO.search(upstream)
    if go is None:
        raise StrangeModule(f"{project.module} {project.version}: its go.mod has no go line")
    folder = project.name if project.is_usual else f"{project.name}/{project.version}"
    lines = [
        f"module nvcre.local/control-plane/{folder}",
        "",
        f"go {go[1]}",
        "",
        "tool (",
        *(f"\t{package}" for package in project.programs.values()),
        ")",
        "",
        f"require {project.module} {project.version}",
    ]
    if staged := sorted(set(_STAGED.findall(upstream))):
        version = re.sub(r"^v\d+\.", "v0.", project.version)
        lines += ["", "replace (", *(f"\t{module} => {module} {version}" for module in staged), ")"]
    return "\n".join(lines) + "\n"
