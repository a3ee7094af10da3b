"""What the server adds to, demands of and forbids for objects of the built-in kinds.

Light on purpose: the defaults and refusals our clients rely on, not the whole of Kubernetes' validation.  Pure;
`default` and `admit` change in place (the body belongs to the request), the others only look.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from nvcre_local.apiserver import pod_defaults, pod_types
from nvcre_local.apiserver.objects import required
from nvcre_local.apiserver.resources import Resource
from nvcre_local.apiserver.schema import Cause
from nvcre_local.apiserver.storage import Json

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character"
)
_KEY = re.compile(r"(?!\.\.)[-._a-zA-Z0-9]{1,253}")
_OBJECTS = ("spec", "status", "data", "stringData", "binaryData", "involvedObject", "regarding")
_POD_MUTABLE = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates")


def without_nulls(value: Any) -> Any:
    """As a typed decoder reads a body: null is the same as absent."""
    match value:
        case dict():
            return {key: without_nulls(entry) for key, entry in value.items() if entry is not None}
        case list():
            return [without_nulls(entry) for entry in value]
        case _:
            return value


def type_problem(body: Json) -> str:
    """The first wrong JSON type that would trip the rules below (or a client's typed decoder)."""
    for field in _OBJECTS:
        if not isinstance(body.get(field, {}), dict):
            return f"{field}: must be an object"
    spec = body.get("spec", {})
    for field in ("containers", "initContainers"):
        found = spec.get(field, [])
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            return f"spec.{field}: must be a list of objects"
    match body["kind"]:
        case "Pod":
            found = pod_types.pod_problems(body)
        case "ConfigMap":
            found = chain(
                _text_problems(body.get("data", {})), _bytes_problems(body.get("binaryData", {}), "binaryData")
            )
        case "Secret":
            found = _bytes_problems(body.get("data", {}), "data")
        case _:
            return ""
    return next(found, "")


def _text_problems(data: Json) -> Iterator[str]:
    for key, value in data.items():
        if not isinstance(value, str):
            yield f"data[{key}]: must be a string"


def _bytes_problems(data: Json, field: str) -> Iterator[str]:
    for key, value in data.items():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError, TypeError):
            yield f"{field}[{key}]: must be base64 encoded"


def default(resource: Resource, body: Json) -> None:
    """What decoding fills in, of a new object and of an update."""
    match resource.lies_in:
        case "pods":
            pod_defaults.default(body.setdefault("spec", {}))
        case "secrets":
            body.setdefault("type", "Opaque")
            _take_string_data(body)


def admit(resource: Resource, body: Json) -> None:
    """What a new object begins with."""
    match resource.lies_in:
        case "pods":
            pod_defaults.begin(body)
        case "namespaces":
            metadata = body["metadata"]
            labels = {"kubernetes.io/metadata.name": metadata["name"], **metadata.get("labels", {})}
            body["metadata"] = {**metadata, "labels": labels}
            body["spec"] = {**body.get("spec", {}), "finalizers": ["kubernetes"]}
            body["status"] = {"phase": "Active"}
        case "services":
            spec = body.setdefault("spec", {})
            spec.setdefault("type", "ClusterIP")
            spec.setdefault("sessionAffinity", "None")
            body["status"] = {"loadBalancer": {}}
        case "nodes":
            body.setdefault("spec", {})
            body.setdefault("status", {})


def _take_string_data(secret: Json) -> None:
    texts = secret.pop("stringData", None)
    if texts:
        encoded = {key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()}
        secret["data"] = {**secret.get("data", {}), **encoded}


def causes(resource: Resource, body: Json) -> Iterator[Cause]:
    """Broken rules of a new or changed object."""
    match resource.lies_in:
        case "pods":
            yield from _pod_causes(body.get("spec", {}))
        case "secrets":
            yield from _key_causes(body.get("data", {}), "data")
        case "configmaps":
            for field in ("data", "binaryData"):
                yield from _key_causes(body.get(field, {}), field)
            for key in body.get("data", {}).keys() & body.get("binaryData", {}).keys():
                yield Cause("FieldValueInvalid", f"data[{key}]", f'Invalid value: "{key}": duplicate of a key present')
        case "leases.coordination.k8s.io":
            yield from _lease_causes(body.get("spec", {}))
        case "events":
            involved = body.get("involvedObject", {})
            if involved.get("namespace", "") not in ("", body["metadata"].get("namespace")) or (
                not involved.get("namespace") and body["metadata"].get("namespace") != "default"
            ):
                # Events about cluster-scoped objects live in `default`; anywhere else nobody would find them.
                yield Cause(
                    "FieldValueInvalid",
                    "involvedObject.namespace",
                    f'Invalid value: "{involved.get("namespace", "")}": does not match event.namespace',
                )


def _pod_causes(spec: Json) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield required("spec.containers")
    seen: set[str] = set()
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field, [])):
            name = container.get("name")
            if not name:
                yield required(f"spec.{field}[{index}].name")
            elif name in seen:
                yield Cause("FieldValueDuplicate", f"spec.{field}[{index}].name", f'Duplicate value: "{name}"')
            else:
                seen.add(name)
                yield from _label_causes(name, f"spec.{field}[{index}].name")
            if not container.get("image"):
                yield required(f"spec.{field}[{index}].image")
            for number, variable in enumerate(container.get("env", [])):
                if not variable.get("name"):
                    yield required(f"spec.{field}[{index}].env[{number}].name")
    yield from _volume_causes(spec.get("volumes", []))
    if spec.get("restartPolicy") not in ("Always", "OnFailure", "Never"):
        yield Cause(
            "FieldValueNotSupported",
            "spec.restartPolicy",
            f'Unsupported value: "{spec.get("restartPolicy")}": supported values: "Always", "Never", "OnFailure"',
        )
    grace = spec.get("terminationGracePeriodSeconds", 0)
    if not isinstance(grace, int) or grace < 0:
        yield Cause(
            "FieldValueInvalid",
            "spec.terminationGracePeriodSeconds",
            f"Invalid value: {grace!r}: must be greater than or equal to 0",
        )


def _lease_causes(spec: Json) -> Iterator[Cause]:
    for field, least, rule in (
        ("leaseDurationSeconds", 1, "must be greater than 0"),
        ("leaseTransitions", 0, "must be greater than or equal to 0"),
    ):
        value = spec.get(field, least)
        if not isinstance(value, int) or value < least:
            yield Cause("FieldValueInvalid", f"spec.{field}", f"Invalid value: {value}: {rule}")


def _volume_causes(volumes: list[Json]) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, volume in enumerate(volumes):
        name, field = volume.get("name"), f"spec.volumes[{index}].name"
        if not name:
            yield required(field)
        elif name in seen:
            yield Cause("FieldValueDuplicate", field, f'Duplicate value: "{name}"')
        else:
            seen.add(name)
            yield from _label_causes(name, field)
        if "hostPath" in volume and not volume["hostPath"].get("path"):
            yield required(f"spec.volumes[{index}].hostPath.path")


def _label_causes(name: str, field: str) -> Iterator[Cause]:
    """Containers and volumes become directories of the kubelet."""
    if not _LABEL.fullmatch(name):
        yield Cause("FieldValueInvalid", field, f'Invalid value: "{name}": {_LABEL_RULE}')


def _key_causes(data: Json, field: str) -> Iterator[Cause]:
    """A key becomes a file."""
    for key in data:
        if not _KEY.fullmatch(key) or key == ".":
            rule = (
                "a valid config key must consist of alphanumeric characters, '-', '_' or '.', and not start with '..'"
            )
            yield Cause("FieldValueInvalid", f"{field}[{key}]", f'Invalid value: "{key}": {rule}')


def update_causes(resource: Resource, old: Json, new: Json) -> Iterator[Cause]:
    """What an update of the object itself (not of its status) may not change."""
    match resource.lies_in:
        case "pods":
            if _fixed_part(old.get("spec", {})) != _fixed_part(new.get("spec", {})):
                yield Cause(
                    "FieldValueForbidden",
                    "spec",
                    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
                    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
                    "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
                    "previously negative)",
                )
        case "configmaps" | "secrets":
            if old.get("type") != new.get("type"):
                yield Cause("FieldValueInvalid", "type", f'Invalid value: "{new.get("type")}": field is immutable')
            for field in ("immutable", "data", "binaryData") if old.get("immutable") else ():
                if old.get(field) != new.get(field):
                    yield Cause("FieldValueForbidden", field, "Forbidden: field is immutable when `immutable` is set")


def _fixed_part(spec: Json) -> Json:
    fixed = {key: value for key, value in spec.items() if key not in _POD_MUTABLE}
    for field in ("containers", "initContainers"):
        fixed[field] = [
            {key: value for key, value in container.items() if key != "image"} for container in spec.get(field, [])
        ]
    return fixed
