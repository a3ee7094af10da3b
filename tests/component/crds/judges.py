"""Who judges the admission table: our schema engine, the embedded API server, and a real kube-apiserver.

The engine stands for the embedded API server: it does with a request body what that does, without the server.
"""

import copy
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml
from nvcre_local.apiserver.schema import StructuralSchema

ROOT = Path(__file__).parents[3]
CRD_DIRS = (ROOT / "daemonset/crds", ROOT / "local/nvcre_local/crds")


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


def crds() -> list[dict[str, Any]]:
    paths = [path for folder in CRD_DIRS for path in sorted(folder.glob("*.yaml"))]
    return [yaml.safe_load(path.read_text()) for path in (*paths, Path(__file__).with_name("features.yaml"))]


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


class Server:
    def __init__(self, url: str, token: str, ca: Path | None) -> None:
        self._url, self._token = url, token
        self._tls = ssl.create_default_context(cafile=ca) if ca else None
        self._plural: dict[str, str] = {}

    def request(
        self, method: str, path: str, body: Any = None, accept: str = "application/json"
    ) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self._token}",
                "Content-Type": "application/json",
                "Accept": accept,
            },
        )
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=30) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text.startswith(b"{") else {"text": text.decode()}
        except urllib.error.HTTPError as e:
            text = e.read()
            return e.code, json.loads(text) if text.startswith(b"{") else {"text": text.decode()}

    def install(self, crd: dict[str, Any]) -> None:
        code, answer = self.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        assert code == 201, answer.get("message", answer)
        names, scope = crd["spec"]["names"], crd["spec"]["scope"]
        middle = "namespaces/default/" if scope == "Namespaced" else ""
        self._plural[names["kind"]] = f"/apis/{crd['spec']['group']}/v1alpha1/{middle}{names['plural']}"

    def conditions(self, crd: dict[str, Any]) -> dict[str, dict[str, Any]]:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
        status = self.request("GET", path)[1].get("status", {})
        return {condition["type"]: condition for condition in status.get("conditions", [])}

    def served(self) -> bool:
        return all(self.request("GET", path)[0] == 200 for path in self._plural.values())

    def create(self, obj: dict[str, Any]) -> dict[str, Any] | Refused:
        return _answer(*self.request("POST", self._plural[obj["kind"]], obj))

    def replace(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | Refused:
        return _answer(*self.request("PUT", self._object(old), _with_version(new, old)))

    def replace_status(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | Refused:
        return _answer(*self.request("PUT", self._object(old) + "/status", _with_version(new, old)))

    def table(self, kind: str, name: str) -> dict[str, Any]:
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
        code, answer = self.request("GET", f"{self._plural[kind]}/{name}", accept=accept)
        assert code == 200, answer
        return answer

    def _object(self, obj: dict[str, Any]) -> str:
        return f"{self._plural[obj['kind']]}/{obj['metadata']['name']}"


def _with_version(new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    metadata = {**new["metadata"], "resourceVersion": old["metadata"]["resourceVersion"]}
    return {**new, "metadata": metadata}


def _answer(code: int, body: dict[str, Any]) -> dict[str, Any] | Refused:
    if code in (200, 201):
        return body
    assert code == 422, body
    assert body["reason"] == "Invalid"
    return Refused(tuple(sorted((c["reason"], c["field"], c["message"]) for c in body["details"]["causes"])))
