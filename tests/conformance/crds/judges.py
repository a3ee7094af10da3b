"""Who judges the admission table: our schema engine, the embedded API server, and a real kube-apiserver.

The engine stands for the embedded API server: it does with a request body what that does, without the server.
"""

import copy
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from nvcre_local.apiserver.schema import StructuralSchema

from ..servers import Answer, Server
from ..starting import CRDS, crds

UNCHECKED = "some validation rules were not checked"
"""In a cause that a server adds where a coarser fault kept it from checking rules."""


@dataclass(frozen=True, slots=True)
class Refused:
    causes: tuple[tuple[str, str, str], ...]
    """(reason, field, message), sorted: a real server's order is random."""


class Judge(Protocol):
    def create(self, obj: dict[str, Any]) -> dict[str, Any] | Refused: ...
    def replace(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | Refused: ...
    def replace_status(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | Refused: ...


class Engine:
    """What the embedded API server does with a request body, without the server."""

    def __init__(self) -> None:
        self._schemas = {
            crd["spec"]["names"]["kind"]: StructuralSchema.from_crd_version(crd["spec"]["versions"][0])
            for crd in crds()
        }
        self._with_status = {
            crd["spec"]["names"]["kind"] for crd in crds() if "subresources" in crd["spec"]["versions"][0]
        }

    def create(self, obj: dict[str, Any]) -> dict[str, Any] | Refused:
        new = copy.deepcopy(obj)
        if obj["kind"] in self._with_status:
            new.pop("status", None)
        return self._judge(new, None)

    def replace(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | Refused:
        return self._judge({**copy.deepcopy(new), **({"status": old["status"]} if "status" in old else {})}, old)

    def replace_status(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | Refused:
        return self._judge({**copy.deepcopy(old), "status": copy.deepcopy(new["status"])}, old, "status")

    def _judge(
        self, new: dict[str, Any], old: dict[str, Any] | None, subresource: str = ""
    ) -> dict[str, Any] | Refused:
        schema = self._schemas[new["kind"]]
        schema.default(new)
        schema.prune(new)
        found = schema.validate(new, old, subresource=subresource)
        return Refused(tuple(sorted((c.reason, c.field, c.message) for c in found))) if found else new


class ServerJudge:
    """An API server that has the CRDs."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def conditions(self, crd: dict[str, Any]) -> dict[str, dict[str, Any]]:
        status = self._server.request("GET", f"{CRDS}/{crd['metadata']['name']}").expect(200)["status"]
        return {condition["type"]: condition for condition in status["conditions"]}

    def create(self, obj: dict[str, Any]) -> dict[str, Any] | Refused:
        return _verdict(self._server.request("POST", _COLLECTIONS[obj["kind"]], obj))

    def replace(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | Refused:
        return _verdict(self._server.request("PUT", _path(old), _with_version(new, old)))

    def replace_status(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | Refused:
        return _verdict(self._server.request("PUT", f"{_path(old)}/status", _with_version(new, old)))

    def names(self, kind: str, field_selector: str) -> list[str]:
        found = self._server.request("GET", f"{_COLLECTIONS[kind]}?fieldSelector={quote(field_selector)}").expect(200)
        return [item["metadata"]["name"] for item in found["items"]]

    def table(self, kind: str, name: str) -> dict[str, Any]:
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
        found: dict[str, Any] = self._server.request("GET", f"{_COLLECTIONS[kind]}/{name}", accept=accept).expect(200)
        return found


def _collection(crd: dict[str, Any]) -> str:
    spec = crd["spec"]
    middle = "namespaces/default/" if spec["scope"] == "Namespaced" else ""
    return f"/apis/{spec['group']}/v1alpha1/{middle}{spec['names']['plural']}"


_COLLECTIONS = {crd["spec"]["names"]["kind"]: _collection(crd) for crd in crds()}


def _path(obj: dict[str, Any]) -> str:
    return f"{_COLLECTIONS[obj['kind']]}/{obj['metadata']['name']}"


def _with_version(new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    metadata = {**new["metadata"], "resourceVersion": old["metadata"]["resourceVersion"]}
    return {**new, "metadata": metadata}


def _verdict(answer: Answer) -> dict[str, Any] | Refused:
    if answer.code in (200, 201):
        body: dict[str, Any] = answer.body
        return body
    assert answer.refusal == (422, "Invalid"), answer.body
    causes = answer.body["details"]["causes"]
    return Refused(tuple(sorted((c["reason"], c["field"], c["message"]) for c in causes)))
