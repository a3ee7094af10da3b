"""For which node may a stream speak? Real tokens, made and reviewed by the real API server, shown to a coordinator."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from nvcre_agent.stream_status import FirstStatus
from nvcre_kube import resources
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import NODE_HEALTHS, PODS, SECRETS, SERVICE_ACCOUNTS, JsonObject
from nvcre_local.cluster_objects import AGENT_ACCOUNT, COORDINATOR_ACCOUNT, SYSTEM_NAMESPACE, TOKEN_AUDIENCE
from nvcre_protos import nvcre_agent_v1_pb2 as pb
from nvcre_protos.nvcre_agent_v1_pb2_grpc import FleetStub
from support.agent_streams import SERVER_NAME, snapshot

from .conftest import Api
from .processes import NODES, Coordinator, Plane, claims

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("kubelets")]

SHORTEST_LIFE_S = 600


class Tokens:
    """Of Pods as the DaemonSet makes them, without an agent in them, and others that must not pass for such."""

    def __init__(self, api: Api, plane: Plane) -> None:
        self._client = api.client
        self._elsewhere = api.namespace
        self._pods: list[str] = []
        self.plane_s_key = _private_key(next(plane.directory.glob("*/service-accounts.key")))

    async def pod(self, *, node: str | None = NODES[0], account: str = AGENT_ACCOUNT) -> JsonObject:
        container = {"name": "agent", "image": "none", "command": ["sleep", "600"]}
        spec: JsonObject = {
            "serviceAccountName": account,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "nodeSelector": {"there-is": "no-such-node"},
        }
        if node is not None:
            spec = {**spec, "nodeName": node, "nodeSelector": {}}
        name = f"identity-{len(self._pods)}"
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE}}
        made = await self._client.create(PODS, {**body, "spec": spec})
        self._pods.append(name)
        return made

    async def bound(self, pod: JsonObject | None = None, *, audience: str | None = TOKEN_AUDIENCE) -> str:
        """No `audience`: the API server's own."""
        pod = pod or await self.pod()
        reference = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        return await self._ask(pod["spec"]["serviceAccountName"], audience, boundObjectRef=reference)

    async def for_the_api_server(self) -> str:
        return await self.bound(audience=None)

    async def for_somebody_else(self) -> str:
        return await self.bound(audience="vault")

    async def unbound(self) -> str:
        return await self._ask(AGENT_ACCOUNT, TOKEN_AUDIENCE)

    async def of_a_node(self) -> str:
        reference = {"apiVersion": "v1", "kind": "Node", "name": NODES[0]}
        return await self._ask(AGENT_ACCOUNT, TOKEN_AUDIENCE, boundObjectRef=reference)

    async def of_another_account(self) -> str:
        return await self.bound(await self.pod(account=COORDINATOR_ACCOUNT))

    async def of_an_account_of_the_same_name_elsewhere(self) -> str:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": AGENT_ACCOUNT}}
        await self._client.create(SERVICE_ACCOUNTS, account, self._elsewhere)
        return await self._ask(AGENT_ACCOUNT, TOKEN_AUDIENCE, namespace=self._elsewhere)

    async def of_a_pod_on_no_node(self) -> str:
        return await self.bound(await self.pod(node=None))

    async def of_a_deleted_pod(self) -> str:
        pod = await self.pod()
        token = await self.bound(pod)
        await self._client.delete(PODS, pod["metadata"]["name"], SYSTEM_NAMESPACE, grace_period_s=0)
        return token

    async def expired(self) -> str:
        now = int(time.time())
        return signed(await self.bound(), self.plane_s_key, iat=now - 1200, nbf=now - 1200, exp=now - 600)

    async def signed_by_a_stranger(self) -> str:
        return signed(await self.bound(), ec.generate_private_key(ec.SECP256R1()))

    async def garbage(self) -> str:
        return "eyJhbGciOiJub25lIn0.e30."

    async def delete_pods(self) -> None:
        for name in self._pods:
            await delete_if_there(self._client, PODS, name, namespace=SYSTEM_NAMESPACE, grace_period_s=0)

    async def _ask(
        self, account: str, audience: str | None, namespace: str = SYSTEM_NAMESPACE, **more: JsonObject
    ) -> str:
        spec: JsonObject = {"expirationSeconds": SHORTEST_LIFE_S, **more}
        if audience is not None:
            spec["audiences"] = [audience]
        answer = await self._client.create_token(account, namespace, spec)
        return str(answer["status"]["token"])


def signed(token: str, key: ec.EllipticCurvePrivateKey, **changes: int) -> str:
    """The same token with changed claims, signed again (ES256)."""
    header = token.partition(".")[0]
    message = f"{header}.{_base64(json.dumps({**claims(token), **changes}).encode())}"
    r, s = decode_dss_signature(key.sign(message.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{message}.{_base64(r.to_bytes(32) + s.to_bytes(32))}"


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(file.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


@pytest.fixture
async def tokens(api: Api, plane: Plane, coordinator: Coordinator) -> AsyncIterator[Tokens]:
    made = Tokens(api, plane)
    yield made
    await made.delete_pods()


@pytest.fixture
async def channel(client: KubeClient, coordinator: Coordinator) -> AsyncIterator[grpc.aio.Channel]:
    secret = await client.get(SECRETS, "nvcre-coordinator-tls", SYSTEM_NAMESPACE)
    credentials = grpc.ssl_channel_credentials(base64.b64decode(secret["data"]["ca.crt"]))
    options = [("grpc.default_authority", SERVER_NAME)]
    async with grpc.aio.secure_channel(coordinator.grpc, credentials, options=options) as connected:
        yield connected


async def introduced(channel: grpc.aio.Channel, token: str | None, *, outbox: str = "outbox") -> Any:
    """The stream of an agent once it is welcome. Raises AioRpcError when it is refused."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    stream = FleetStub(channel).Connect(metadata=metadata)  # type: ignore[no-untyped-call]
    status = FirstStatus(stream)
    hello = pb.Hello(min_protocol=1, max_protocol=1, agent_version="test", outbox_id=outbox, boot_id="boot")
    try:
        with contextlib.suppress(asyncio.InvalidStateError):  # refused already: read() tells how
            await stream.write(pb.AgentMessage(hello=hello))
        welcome = await stream.read()
    except grpc.aio.AioRpcError as error:
        raise status.told(error) from None
    assert welcome.WhichOneof("body") == "welcome"
    return stream


@pytest.mark.parametrize(
    ("token", "code", "words"),
    [
        (Tokens.for_the_api_server, "UNAUTHENTICATED", "audience"),
        (Tokens.for_somebody_else, "UNAUTHENTICATED", "audience"),
        (Tokens.expired, "UNAUTHENTICATED", "expired"),
        (Tokens.signed_by_a_stranger, "UNAUTHENTICATED", "does not accept"),
        (Tokens.garbage, "UNAUTHENTICATED", "does not accept"),
        (Tokens.of_a_deleted_pod, "UNAUTHENTICATED", "invalidated"),
        (Tokens.unbound, "PERMISSION_DENIED", "bound to no Pod"),
        (Tokens.of_a_node, "PERMISSION_DENIED", "bound to no Pod"),
        (Tokens.of_a_pod_on_no_node, "PERMISSION_DENIED", "on no node"),
        (Tokens.of_another_account, "PERMISSION_DENIED", "only system:serviceaccount:nvcre-system:nvcre-agent"),
        (
            Tokens.of_an_account_of_the_same_name_elsewhere,
            "PERMISSION_DENIED",
            "only system:serviceaccount:nvcre-system:nvcre-agent",
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
async def test_a_token_is_refused(
    tokens: Tokens, channel: grpc.aio.Channel, token: Callable[[Tokens], Awaitable[str]], code: str, words: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await introduced(channel, await token(tokens))
    assert (refused.value.code().name, words in str(refused.value.details())) == (code, True), refused.value.details()


async def test_without_a_token_nobody_is_heard(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await introduced(channel, None)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_token_that_was_signed_again_is_accepted(tokens: Tokens, channel: grpc.aio.Channel) -> None:
    """So it is its time, or the stranger's key, that the others were refused for."""
    stream = await introduced(channel, signed(await tokens.bound(), tokens.plane_s_key))
    stream.cancel()


async def test_a_stream_speaks_for_the_node_of_its_pod_whatever_it_says(
    tokens: Tokens, channel: grpc.aio.Channel, api: Api
) -> None:
    claimed, own = NODES

    async def gpus(node: str) -> list[str]:
        try:
            health = await api.client.get(NODE_HEALTHS, node)
        except ApiError as error:
            if not error.not_found:
                raise
            return []
        inventory = (health.get("status") or {}).get("inventory") or {}
        return [gpu["uuid"] for gpu in inventory.get("gpus", ())]

    before = await gpus(claimed)
    stream = await introduced(channel, await tokens.bound(await tokens.pod(node=own)), outbox=claimed)
    await stream.write(pb.AgentMessage(snapshot=snapshot(claimed)))

    async def told() -> bool:
        return f"GPU-{claimed}-0" in await gpus(own)

    await api.until(told)
    assert await gpus(claimed) == before
    assert f"GPU-{claimed}-0" not in before
    stream.cancel()


async def test_a_node_that_the_coordinator_does_not_look_after_may_speak_too(
    tokens: Tokens, channel: grpc.aio.Channel, api: Api
) -> None:
    """Its label is not there yet; the agent that runs there knows better."""
    metadata = {"name": "bare"}
    await api.client.create(resources.NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    stream = await introduced(channel, await tokens.bound(await tokens.pod(node="bare")), outbox="bare")
    await stream.write(pb.AgentMessage(snapshot=snapshot("bare")))

    async def told() -> bool:
        return "bare" in [one["metadata"]["name"] for one in await api.client.list(NODE_HEALTHS)]

    await api.until(told)
    stream.cancel()
    await api.client.delete(resources.NODES, "bare")


async def delete_if_there(client: KubeClient, resource: resources.Resource, name: str, **more: Any) -> None:
    try:
        await client.delete(resource, name, **more)
    except ApiError as error:
        if not error.not_found:
            raise
