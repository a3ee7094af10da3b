"""The subresources that are verbs: binding a pod to a node, evicting it, asking for a token, reading its log."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from nvcre_kube.timestamps import rfc3339

from nvcre_local.apiserver import errors, requests
from nvcre_local.apiserver.kubelet_logs import KubeletLogs
from nvcre_local.apiserver.operations import Operations
from nvcre_local.apiserver.requests import Target
from nvcre_local.apiserver.resources import Resource
from nvcre_local.apiserver.storage import Json, Stored
from nvcre_local.apiserver.tokens import TokenIssuer
from nvcre_local.apiserver.writing import json_response, object_of

_SUCCESS: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


class Subresources:
    def __init__(self, operations: Operations, issuer: TokenIssuer, logs: KubeletLogs) -> None:
        self._operations = operations
        self._issuer = issuer
        self._logs = logs

    async def handle(self, request: web.Request, resource: Resource, target: Target) -> web.StreamResponse:
        if request.method != ("GET" if target.subresource == "log" else "POST"):
            raise errors.method_not_allowed(f"{request.method} {resource.plural}/{target.subresource}")
        stored = self._operations.get(resource, target.namespace, target.name)
        match target.subresource:
            case "log":
                return await self._logs.serve(request, stored)
            case "binding":
                return self._bind(resource, stored, await object_of(request), request)
            case "eviction":
                return self._evict(resource, stored, await object_of(request))
            case "token":
                return json_response(self._issuer.issue(stored, await object_of(request)), 201)
            case _:
                raise errors.no_such_path()

    def _bind(self, resource: Resource, pod: Stored, binding: Json, request: web.Request) -> web.Response:
        options = requests.write_options(request.query, "CreateOptions")
        pod = self._operations.get(resource, pod.key.namespace, pod.key.name)
        node = _object(binding.get("target")).get("name")
        metadata = _object(binding.get("metadata"))
        if not isinstance(node, str) or not node:
            raise errors.bad_request("target.name of a Binding must name a node")
        if metadata.get("uid", pod.uid) != pod.uid:
            why = f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {pod.uid}"
            raise errors.conflict("", "pods", pod.key.name, why)
        if "deletionTimestamp" in pod.metadata:
            why = f"pod {pod.key.name} is being deleted, cannot be assigned to a host"
            raise errors.conflict("", "pods", pod.key.name, why)
        placed = pod.body["spec"].get("nodeName")
        if placed:
            raise errors.conflict(
                "", "pods/binding", pod.key.name, f'pod {pod.key.name} is already assigned to node "{placed}"'
            )
        if not options.dry_run:
            self._operations.store.put(pod.key, bound(pod.body, node, rfc3339(self._operations.clock())))
        return json_response(_SUCCESS, 201)

    def _evict(self, resource: Resource, pod: Stored, eviction: Json) -> web.Response:
        options = requests.delete_options({}, _object(eviction.get("deleteOptions")))
        self._operations.delete(resource, pod.key.namespace, pod.key.name, options)
        return json_response(_SUCCESS, 201)


def bound(pod: Json, node: str, now: str) -> Json:
    """The pod as it is once a scheduler has chosen its node."""
    status = pod.get("status", {})
    others = [found for found in status.get("conditions", ()) if found.get("type") != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    return {
        **pod,
        "metadata": {**pod["metadata"]},
        "spec": {**pod["spec"], "nodeName": node},
        "status": {**status, "conditions": [*others, scheduled]},
    }


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
