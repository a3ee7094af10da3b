"""What nvcre's ServiceAccounts asked of every control plane of this test run, as the API servers logged it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

COORDINATOR = "system:serviceaccount:nvcre-system:nvcre-coordinator"
AGENT = "system:serviceaccount:nvcre-system:nvcre-agent"
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Request:
    """`credential` tells the tokens of one user apart, `at` is when the API server received it, `is_allowed` what its
    authorizer said: a 403 may also be a webhook's, or because the namespace is being deleted."""

    plane: str
    user: str
    credential: str
    verb: str
    group: str
    resource: str
    """With its subresource: pods/log."""
    namespace: str
    name: str
    code: int
    is_allowed: bool
    at: datetime

    @property
    def right(self) -> tuple[str, ...]:
        """What has to be allowed, on which control plane."""
        return self.plane, self.group, self.resource, self.verb, self.namespace

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.at:%H:%M:%S.%f} {self.code} {self.verb} {self.resource}.{self.group} {self.name}{where}"


def requests(directory: Path) -> Iterator[Request]:
    """Those for objects, each once; in the order of their answers for each control plane."""
    for file in sorted(directory.iterdir()):
        begun = set()
        with file.open() as lines:
            for line in lines:
                if not line.endswith("\n"):
                    break  # a killed API server's last word
                event = json.loads(line)
                if "objectRef" in event and event["auditID"] not in begun:
                    begun.add(event["auditID"])
                    yield _request(event, file.stem)


def _request(event: dict[str, Any], plane: str) -> Request:
    about = event["objectRef"]
    resource, subresource = about["resource"], about.get("subresource")
    credentials = (event["user"].get("extra") or {}).get("authentication.kubernetes.io/credential-id") or [""]
    return Request(
        plane=plane,
        user=event["user"]["username"],
        credential=credentials[0],
        verb=event["verb"],
        group=about.get("apiGroup", ""),
        resource=f"{resource}/{subresource}" if subresource else resource,
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        code=event["responseStatus"]["code"],
        is_allowed=event["annotations"]["authorization.k8s.io/decision"] == "allow",
        at=datetime.fromisoformat(event["requestReceivedTimestamp"]),
    )
