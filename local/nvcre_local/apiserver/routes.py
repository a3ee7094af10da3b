"""From a URL and a method to the handler; around all of them: who is asking, and every error is a Status object."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from nvcre_local.apiserver import authentication, discovery, errors, requests
from nvcre_local.apiserver.authentication import Authenticator
from nvcre_local.apiserver.builtin import CRD_COLLECTION
from nvcre_local.apiserver.operations import Operations
from nvcre_local.apiserver.reading import Reading
from nvcre_local.apiserver.requests import Target, parse_path
from nvcre_local.apiserver.resources import Resource
from nvcre_local.apiserver.storage import Json
from nvcre_local.apiserver.subresources import Subresources
from nvcre_local.apiserver.tokens import User
from nvcre_local.apiserver.writing import Writing, json_response, object_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_OPEN_TO_ALL = ("/healthz", "/livez", "/readyz")
_VERB_OF_METHOD = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_STATUS_METHODS = ("GET", "PUT", "PATCH")

log = logging.getLogger(__name__)


class Routes:
    def __init__(
        self,
        operations: Operations,
        authenticator: Authenticator,
        reading: Reading,
        writing: Writing,
        subresources: Subresources,
    ) -> None:
        self._operations = operations
        self._authenticator = authenticator
        self._reading = reading
        self._writing = writing
        self._subresources = subresources

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Every request of the server."""
        path = request.rel_url.raw_path
        if path.rstrip("/").startswith(_OPEN_TO_ALL) and request.method == "GET":
            return web.Response(text="ok")
        user = self._authenticator.user(request.headers.get("Authorization"))
        target = parse_path(path)
        if target is None:
            return self._document(request, path)
        resource = self._operations.registry.find(target.group, target.version, target.plural)
        if resource is None:
            raise errors.no_such_path()
        if resource.lies_in.endswith(("reviews.authentication.k8s.io", "reviews.authorization.k8s.io")):
            return await self._review(request, resource, user)
        if target.namespace and not resource.namespaced:
            raise errors.no_such_path()
        if resource.namespaced and not target.namespace and target.name:
            raise errors.no_such_path()
        if resource.namespaced and not target.namespace and request.method == "POST":
            raise errors.method_not_allowed(f"create {resource.plural}")
        if target.subresource not in ("", "status"):
            known = any(found.name == target.subresource for found in resource.subresources)
            if not known:
                raise errors.no_such_path()
            return await self._subresources.handle(request, resource, target)
        return await self._resource(request, resource, target)

    async def _resource(  # noqa: PLR0911 - one return a verb
        self, request: web.Request, resource: Resource, target: Target
    ) -> web.StreamResponse:
        if target.subresource == "status" and not resource.has_status:
            raise errors.no_such_path()
        if target.subresource == "status" and request.method not in _STATUS_METHODS:
            raise errors.method_not_allowed(f"{request.method} {resource.plural}/status")
        match request.method, bool(target.name):
            case "GET", _ if requests.flag(request.query, "watch"):
                return await self._reading.watch(request, resource, target)
            case "GET", True:
                return self._reading.one(request, resource, target)
            case "GET", False:
                return self._reading.many(request, resource, target)
            case "POST", False:
                return await self._writing.create(request, resource, target)
            case "PUT", True:
                return await self._writing.update(request, resource, target)
            case "PATCH", True:
                return await self._writing.patch(request, resource, target)
            case "DELETE", True:
                return await self._writing.delete(request, resource, target)
            case "DELETE", False if "deletecollection" in resource.verbs:
                return await self._writing.delete_collection(request, resource, target)
            case method, _:
                raise errors.method_not_allowed(f"{_VERB_OF_METHOD.get(method, method.lower())} {resource.plural}")

    async def _review(self, request: web.Request, resource: Resource, user: User) -> web.Response:
        if request.method != "POST":
            raise errors.method_not_allowed(f"{request.method} {resource.plural}")
        body = await object_of(request)
        match resource.kind:
            case "TokenReview":
                answer = authentication.review_token(self._authenticator, body)
            case "SelfSubjectReview":
                answer = authentication.review_self(user)
            case kind:
                answer = authentication.review_access(kind, body)
        return json_response(answer, 201)

    # --- discovery

    def _document(self, request: web.Request, path: str) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise errors.no_such_path()
        if path.startswith("/openapi/v2"):
            requests.negotiate(request.headers.get("Accept", ""))
        found = self._found_document(path.strip("/").split("/"))
        if found is None:
            raise errors.no_such_path()
        return json_response(found)

    def _found_document(self, parts: list[str]) -> Json | None:  # noqa: PLR0911 - one return a path
        registry = self._operations.registry
        match parts:
            case ["version"]:
                return discovery.VERSION
            case ["api"]:
                return discovery.core_versions()
            case ["apis"]:
                return discovery.group_list(registry)
            case ["apis", group]:
                versions = registry.groups().get(group)
                return discovery.group(group, versions) if versions else None
            case ["api", version]:
                resources = registry.in_version("", version)
                return discovery.resource_list(resources, version) if resources else None
            case ["apis", group, version]:
                resources = registry.in_version(group, version)
                return discovery.resource_list(resources, f"{group}/{version}") if resources else None
            case ["openapi", "v3"]:
                return discovery.openapi_index(registry)
            case ["openapi", "v3", "api", version]:
                return self._openapi("", version)
            case ["openapi", "v3", "apis", group, version]:
                return self._openapi(group, version)
            case ["openapi", "v2"]:
                return {"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.33.0"}, "paths": {}}
            case [""]:
                return {"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]}
            case _:
                return None

    def _openapi(self, group: str, version: str) -> Json | None:
        definitions = [stored.body for stored in self._operations.store.items(CRD_COLLECTION)]
        return discovery.openapi_document(self._operations.registry, definitions, group, version)


@web.middleware
async def status_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Whatever goes wrong reaches the client as a Status object, never as a traceback."""
    try:
        return await handler(request)
    except errors.ApiError as error:
        return _refusal(error)
    except web.HTTPRequestEntityTooLarge:
        return _refusal(errors.too_large(requests.MAX_BODY_BYTES))
    except web.HTTPException as error:
        return _refusal(errors.ApiError(error.status, "Unknown", error.reason))
    except Exception as error:
        # The boundary of one request: a defect in it is logged and answered, and must not touch the others.
        log.exception("request failed method=%s path=%s", request.method, request.path)
        return _refusal(errors.internal(f"{type(error).__name__} (see the server's log)"))


def _refusal(error: errors.ApiError) -> web.Response:
    response = json_response(error.status(), error.code)
    if error.code == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
