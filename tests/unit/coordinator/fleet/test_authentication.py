"""Who may open a stream, and for which node. The API server is the fake: its answers are those of a TokenReview."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import grpc
import pytest
from nvcre_coordinator.fleet.authentication import CACHE_FOR, Authenticator, Refused, bearer_token, expiry
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import PODS, TOKEN_REVIEWS, Resource

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AGENT = "system:serviceaccount:nvcre-system:nvcre-agent"


def jwt(expires_at: datetime | None = NOW + timedelta(hours=1), name: str = "t") -> str:
    claims = {"sub": name} if expires_at is None else {"exp": int(expires_at.timestamp()), "sub": name}
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.sig"


def accepted(username: str = AGENT, audiences: Any = ("nvcre-coordinator",), **extra: Any) -> dict[str, Any]:
    claims = {f"authentication.kubernetes.io/{key.replace('_', '-')}": [value] for key, value in extra.items()}
    return {
        "authenticated": True,
        "audiences": list(audiences),
        "user": {"username": username, "extra": claims},
    }


class ApiServer:
    def __init__(self, status: dict[str, Any], pod: dict[str, Any] | None = None) -> None:
        self.status = status
        self.pod = pod
        self.reviews = 0
        self.down = False

    async def create(self, resource: Resource, obj: dict[str, Any], namespace: str | None = None) -> dict[str, Any]:
        assert resource is TOKEN_REVIEWS
        assert obj["spec"]["audiences"] == ["nvcre-coordinator"]
        self.reviews += 1
        if self.down:
            raise ApiError(500, "InternalError", "down")
        return {"status": self.status}

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> dict[str, Any]:
        assert (resource, namespace) == (PODS, "nvcre-system")
        if self.pod is None:
            raise ApiError(404, "NotFound", "no such pod")
        return self.pod


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


def authenticator(server: ApiServer, clock: Clock | None = None) -> Authenticator:
    return Authenticator(cast(KubeClient, server), "nvcre-system", clock=clock or Clock())


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def test_the_node_is_the_node_claim_of_the_token() -> None:
    identity = await authenticator(ApiServer(accepted(node_name="node-3", pod_name="a"))).authenticate(bearer(jwt()))
    assert (identity.node, identity.expires_at) == ("node-3", NOW + timedelta(hours=1))


async def test_without_a_node_claim_it_is_the_node_of_the_pod_the_token_is_bound_to() -> None:
    pod = {"metadata": {"uid": "u1"}, "spec": {"nodeName": "node-7"}}
    server = ApiServer(accepted(pod_name="a", pod_uid="u1"), pod)
    assert (await authenticator(server).authenticate(bearer(jwt()))).node == "node-7"


@pytest.mark.parametrize(
    ("status", "pod", "code", "text"),
    [
        ({"authenticated": False, "error": "expired"}, None, grpc.StatusCode.UNAUTHENTICATED, "expired"),
        ({}, None, grpc.StatusCode.UNAUTHENTICATED, "not authenticated"),
        (accepted(audiences=(), node_name="n"), None, grpc.StatusCode.UNAUTHENTICATED, "audience"),
        (accepted("system:serviceaccount:other:nvcre-agent"), None, grpc.StatusCode.PERMISSION_DENIED, AGENT),
        (accepted("system:admin"), None, grpc.StatusCode.PERMISSION_DENIED, AGENT),
        (accepted(), None, grpc.StatusCode.PERMISSION_DENIED, "bound to no Pod"),
        (accepted(node_name="n"), None, grpc.StatusCode.PERMISSION_DENIED, "bound to no Pod"),
        (accepted(pod_name="a"), None, grpc.StatusCode.PERMISSION_DENIED, "gone"),
        (
            accepted(pod_name="a", pod_uid="u1"),
            {"metadata": {"uid": "u2"}, "spec": {"nodeName": "node-7"}},
            grpc.StatusCode.PERMISSION_DENIED,
            "on no node",
        ),
        (
            accepted(pod_name="a"),
            {"metadata": {"uid": "u2"}, "spec": {}},
            grpc.StatusCode.PERMISSION_DENIED,
            "on no node",
        ),
    ],
)
async def test_everybody_else_is_refused_with_the_reason(
    status: dict[str, Any], pod: dict[str, Any] | None, code: grpc.StatusCode, text: str
) -> None:
    with pytest.raises(Refused, match=text) as refused:
        await authenticator(ApiServer(status, pod)).authenticate(bearer(jwt()))
    assert refused.value.code is code


async def test_a_review_is_cached_for_two_minutes_and_not_longer() -> None:
    clock, server = Clock(), ApiServer(accepted(node_name="node-3", pod_name="a"))
    subject = authenticator(server, clock)
    for _ in range(5):
        await subject.authenticate(bearer(jwt()))
    assert server.reviews == 1
    clock.now += CACHE_FOR
    await subject.authenticate(bearer(jwt()))
    assert server.reviews == 2


async def test_a_token_is_not_accepted_beyond_its_end_even_from_the_cache() -> None:
    clock, server = Clock(), ApiServer(accepted(node_name="node-3", pod_name="a"))
    subject = authenticator(server, clock)
    token = jwt(NOW + timedelta(seconds=30))
    await subject.authenticate(bearer(token))
    clock.now += timedelta(seconds=30)
    with pytest.raises(Refused, match="expired"):
        await subject.authenticate(bearer(token))


async def test_another_token_is_another_review() -> None:
    server = ApiServer(accepted(node_name="node-3", pod_name="a"))
    subject = authenticator(server)
    await subject.authenticate(bearer(jwt(name="one")))
    await subject.authenticate(bearer(jwt(name="two")))
    assert server.reviews == 2


async def test_an_api_server_that_does_not_answer_is_no_verdict_about_the_token() -> None:
    server = ApiServer(accepted(node_name="node-3", pod_name="a"))
    server.down = True
    subject = authenticator(server)
    with pytest.raises(Refused) as refused:
        await subject.authenticate(bearer(jwt()))
    assert refused.value.code is grpc.StatusCode.UNAVAILABLE
    server.down = False
    assert (await subject.authenticate(bearer(jwt()))).node == "node-3"


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Basic abc"),),
        (("authorization", "Bearer "),),
        (("authorization", "Bearer a"), ("authorization", "Bearer b")),
        (("authorization", "Bearer " + "x" * 20_000),),
        (("authorization", "Bearer tökén"),),
        (("authorization", b"Bearer a"),),
    ],
)
def test_a_credential_of_another_form_is_refused(metadata: tuple[tuple[str, str | bytes], ...]) -> None:
    with pytest.raises(Refused):
        bearer_token(metadata)


@pytest.mark.parametrize(
    "token", ["opaque", "a.b", "a.!!!.c", "a.e30.c", jwt(None), "a.bnVsbA.c", "a.eyJleHAiOjFlOTl9.c"]
)
def test_a_token_without_a_readable_end_has_none(token: str) -> None:
    assert expiry(token) is None
