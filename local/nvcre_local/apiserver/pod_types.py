"""The JSON types of a Pod's fields, as far as a process of a local cluster reads them.

A real API server decodes a Pod into Go types and refuses what does not fit; its clients (the kubelets, the scheduler)
rely on that. Fields that nobody here reads are let through as they are.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvcre_local.apiserver.storage import Json

TEXT, WHOLE, FLAG, QUANTITY, OBJECT = "a string", "a whole number", "true or false", "a quantity", "an object"
EACH = "*"
"""In a mapping: what every value is."""

Shape = str | list[Any] | dict[str, Any]

_SELECTOR: Shape = {"name": TEXT, "key": TEXT, "optional": FLAG}
_ITEMS: Shape = [{"key": TEXT, "path": TEXT}]
_RESOURCES: Shape = {"limits": {EACH: QUANTITY}, "requests": {EACH: QUANTITY}}
_CONTAINER: Shape = {
    "name": TEXT,
    "image": TEXT,
    "command": [TEXT],
    "args": [TEXT],
    "workingDir": TEXT,
    "restartPolicy": TEXT,
    "env": [
        {
            "name": TEXT,
            "value": TEXT,
            "valueFrom": {
                "fieldRef": {"fieldPath": TEXT},
                "configMapKeyRef": _SELECTOR,
                "secretKeyRef": _SELECTOR,
                EACH: OBJECT,
            },
        }
    ],
    "envFrom": [{"prefix": TEXT, "configMapRef": _SELECTOR, "secretRef": _SELECTOR}],
    "resources": _RESOURCES,
}
_SOURCES: dict[str, Any] = {
    "emptyDir": OBJECT,
    "hostPath": {"path": TEXT},
    "configMap": {"name": TEXT, "optional": FLAG, "items": _ITEMS},
    "secret": {"name": TEXT, "secretName": TEXT, "optional": FLAG, "items": _ITEMS},
    "serviceAccountToken": {"path": TEXT, "audience": TEXT, "expirationSeconds": WHOLE},
    EACH: OBJECT,
}
POD_SPEC: Shape = {
    "nodeName": TEXT,
    "nodeSelector": {EACH: TEXT},
    "schedulerName": TEXT,
    "serviceAccountName": TEXT,
    "hostname": TEXT,
    "subdomain": TEXT,
    "restartPolicy": TEXT,
    "affinity": OBJECT,
    "schedulingGates": [{"name": TEXT}],
    "tolerations": [{"key": TEXT, "operator": TEXT, "value": TEXT, "effect": TEXT, "tolerationSeconds": WHOLE}],
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "volumes": [{"name": TEXT, "projected": {"sources": [_SOURCES]}, **_SOURCES}],
    "resources": _RESOURCES,
}


_STATE: Shape = {EACH: OBJECT}
_CONTAINER_STATUS: Shape = {
    "name": TEXT,
    "restartCount": WHOLE,
    "ready": FLAG,
    "state": _STATE,
    "lastState": _STATE,
}
POD_STATUS: Shape = {
    "phase": TEXT,
    "reason": TEXT,
    "message": TEXT,
    "podIP": TEXT,
    "hostIP": TEXT,
    "conditions": [{"type": TEXT, "status": TEXT, "reason": TEXT, "message": TEXT}],
    "containerStatuses": [_CONTAINER_STATUS],
    "initContainerStatuses": [_CONTAINER_STATUS],
}


def pod_problems(pod: Json) -> Iterator[str]:
    yield from problems(pod.get("spec", {}))
    yield from problems(pod.get("status", {}), POD_STATUS, "status")


def problems(value: Any, shape: Shape = POD_SPEC, path: str = "spec") -> Iterator[str]:
    """`spec.containers[0].command[1]: must be a string`, for each field of the wrong type."""
    match shape:
        case str():
            if not _is(value, shape):
                yield f"{path}: must be {shape}"
        case list():
            if not isinstance(value, list):
                yield f"{path}: must be a list"
                return
            for index, entry in enumerate(value):
                yield from problems(entry, shape[0], f"{path}[{index}]")
        case dict():
            if not isinstance(value, dict):
                yield f"{path}: must be an object"
                return
            for key, entry in value.items():
                if (inner := shape.get(key, shape.get(EACH))) is not None:
                    yield from problems(entry, inner, f"{path}.{key}")


def _is(value: Any, kind: str) -> bool:
    match kind:
        case "a string":
            return isinstance(value, str)
        case "a whole number":
            return isinstance(value, int) and not isinstance(value, bool)
        case "true or false":
            return isinstance(value, bool)
        case "a quantity":
            return isinstance(value, str | int | float) and not isinstance(value, bool)
        case _:
            return isinstance(value, dict)
