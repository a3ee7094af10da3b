"""daemonset/rbac.yaml grants what the coordinator needs and no more: judged by what it asked for in the whole session.

These run last, and only when every cluster test runs (conftest): what is not needed by a part of them proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from .audit import AGENT, COORDINATOR, Request, requests
from .processes import REPOSITORY

ASKED_BY_ADMISSION = {("nvcre.nvidia.com", "jobs/finalizers", "update")}
"""No request has this verb: whoever creates what a Job owns with blockOwnerDeletion is refused without it, by an
admission plugin that our control planes run (OwnerReferencesPermissionEnforcement)."""


@dataclass(frozen=True, order=True)
class Right:
    """`namespace` is "" for a right that holds everywhere, `name` for one that holds for every name."""

    group: str
    resource: str
    verb: str
    namespace: str
    name: str

    def is_used_by(self, request: Request) -> bool:
        return (
            (self.group, self.resource, self.verb) == (request.group, request.resource, request.verb)
            and self.namespace in ("", request.namespace)
            and self.name in ("", request.name)
        )


@pytest.fixture(scope="module")
def asked(audit_directory: Path) -> list[Request]:
    found = list(requests(audit_directory))
    assert found
    return found


def test_the_coordinator_was_refused_nothing(asked: list[Request]) -> None:
    """An API server that starts knows no role for a moment: what it allows at another time is not missing."""
    by_coordinator = [one for one in asked if one.user == COORDINATOR]
    granted = {one.right for one in by_coordinator if one.is_allowed}
    assert [str(one) for one in by_coordinator if one.right not in granted] == []


def test_agents_asked_nothing_of_the_api_server(asked: list[Request]) -> None:
    assert [str(one) for one in asked if one.user == AGENT] == []


def test_every_right_was_used(asked: list[Request]) -> None:
    allowed = [one for one in asked if one.user == COORDINATOR and one.is_allowed]
    unused = [
        right
        for right in rights()
        if (right.group, right.resource, right.verb) not in ASKED_BY_ADMISSION
        and not any(map(right.is_used_by, allowed))
    ]
    assert unused == [], "remove them from daemonset/rbac.yaml, or add the test that needs them"


def rights() -> Iterator[Right]:
    """What daemonset/rbac.yaml grants, one verb on one resource each."""
    roles = [one for one in yaml.safe_load_all((REPOSITORY / "daemonset/rbac.yaml").read_text()) if "rules" in one]
    assert roles
    for role in roles:
        for rule in role["rules"]:
            yield from _rights(rule, role["metadata"].get("namespace", ""))


def _rights(rule: dict[str, Any], namespace: str) -> Iterator[Right]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames", [""]):
                    yield Right(group, resource, verb, namespace, name)
