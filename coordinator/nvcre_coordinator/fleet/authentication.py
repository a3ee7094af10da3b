"""Who is at the other end of a stream? The node name comes from the credential, never from the payload.

An agent presents the ServiceAccount token that is projected into its Pod (audience nvcre-coordinator). The API server
reviews it; the node is what the token itself is bound to: its node claim, or, on servers that have none (Kubernetes
< 1.32), the node of the Pod it is bound to. So a token of another node's Pod can speak only for that node.

Reviews are cached by the token's hash for at most two minutes, so a reconnect storm does not become a review storm.
What a token says about itself (its expiry) is read only after the API server has accepted it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import grpc
from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.resources import PODS, TOKEN_REVIEWS, JsonObject

AUDIENCE = "nvcre-coordinator"
SERVICE_ACCOUNT = "nvcre-agent"
NODE_CLAIM = "authentication.kubernetes.io/node-name"
POD_CLAIM = "authentication.kubernetes.io/pod-name"
POD_UID_CLAIM = "authentication.kubernetes.io/pod-uid"
CACHE_FOR = timedelta(minutes=2)
CACHE_SIZE = 20_000
MAX_TOKEN = 16 * 1024
PARALLEL_REVIEWS = 32
REFUSED_FOR = timedelta(seconds=10)  # a token that was just projected may not be known to every API server yet
# A token without an expiry of its own still ends its stream: the reviews behind it must not grow old.
WITHOUT_EXPIRY = timedelta(hours=1)


class Refused(Exception):
    """The stream is not accepted; `code` and the text go to the agent."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Identity:
    """The node that the stream may speak for, until `expires_at`."""

    node: str
    pod: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class _Cached:
    until: datetime
    identity: Identity | None
    refusal: Refused | None = None


class Authenticator:
    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_review: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._on_review = on_review
        self._cache: OrderedDict[bytes, _Cached] = OrderedDict()
        self._reviewing = asyncio.Semaphore(PARALLEL_REVIEWS)

    async def authenticate(self, metadata: Sequence[tuple[str, str | bytes]]) -> Identity:
        """Raises Refused."""
        token = bearer_token(metadata)
        now = self._clock()
        digest = hashlib.sha256(token.encode()).digest()
        cached = self._cache.get(digest)
        if cached is not None and now < cached.until:
            self._on_review("cached")
        else:
            async with self._reviewing:
                cached = await self._review(token, now)
            self._remember(digest, cached)
        if cached.refusal is not None or cached.identity is None:
            raise _again(cached.refusal)
        if cached.identity.expires_at <= now:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "the token has expired; present the projected file's newest")
        return cached.identity

    def _remember(self, digest: bytes, cached: _Cached) -> None:
        self._cache[digest] = cached
        self._cache.move_to_end(digest)
        while len(self._cache) > CACHE_SIZE:
            self._cache.popitem(last=False)

    async def _review(self, token: str, now: datetime) -> _Cached:
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        try:
            status = (await self._client.create(TOKEN_REVIEWS, review)).get("status") or {}
            user = agent_user(status, self._namespace)
            pod = bound_pod(user)
            node = claim(user, NODE_CLAIM) or await self._node_of_pod(pod, claim(user, POD_UID_CLAIM))
        except Refused as refusal:
            self._on_review("refused")
            return _Cached(now + REFUSED_FOR, None, refusal)
        except (*CONNECTION_ERRORS, ApiError) as error:
            self._on_review("error")
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"the token could not be reviewed: {error}") from error
        self._on_review("accepted")
        expires_at = expiry(token) or now + WITHOUT_EXPIRY
        identity = Identity(node, pod, expires_at)
        return _Cached(min(now + CACHE_FOR, expires_at), identity)

    async def _node_of_pod(self, name: str, uid: str | None) -> str:
        try:
            pod = await self._client.get(PODS, name, self._namespace)
        except ApiError as error:
            if error.not_found:
                raise Refused(grpc.StatusCode.PERMISSION_DENIED, f"the token's Pod {name} is gone") from error
            raise
        node = (pod.get("spec") or {}).get("nodeName")
        if not node or (uid and pod["metadata"].get("uid") != uid):
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, f"the token's Pod {name} is on no node")
        return str(node)


def _again(refusal: Refused | None) -> Refused:
    """A new exception each time: a cached one would grow a traceback with every raise."""
    if refusal is None:
        return Refused(grpc.StatusCode.UNAUTHENTICATED, "the token was not accepted")
    return Refused(refusal.code, refusal.message)


def bearer_token(metadata: Sequence[tuple[str, str | bytes]]) -> str:
    """From `authorization: Bearer ...`. Raises Refused."""
    values = [value for key, value in metadata if key == "authorization"]
    if len(values) != 1 or not isinstance(values[0], str):
        raise Refused(grpc.StatusCode.UNAUTHENTICATED, "metadata needs one 'authorization: Bearer <token>'")
    scheme, _, token = values[0].partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN or not token.isascii():
        raise Refused(grpc.StatusCode.UNAUTHENTICATED, "authorization: a bearer token of at most 16 KiB is expected")
    return token


def agent_user(status: Mapping[str, object], namespace: str) -> JsonObject:
    """The user of a TokenReview's status if it is our agents' ServiceAccount. Raises Refused."""
    if status.get("authenticated") is not True:
        reason = status.get("error") or "not authenticated"
        raise Refused(grpc.StatusCode.UNAUTHENTICATED, f"the API server does not accept the token: {reason}")
    audiences = status.get("audiences")
    # A server that knows no audiences leaves the field out; then the token is one for the API server itself.
    if not isinstance(audiences, list) or AUDIENCE not in audiences:
        raise Refused(grpc.StatusCode.UNAUTHENTICATED, f"the token is not for the audience {AUDIENCE}")
    user = status.get("user")
    wanted = f"system:serviceaccount:{namespace}:{SERVICE_ACCOUNT}"
    if not isinstance(user, dict) or user.get("username") != wanted:
        raise Refused(grpc.StatusCode.PERMISSION_DENIED, f"only {wanted} may connect")
    return user


def bound_pod(user: JsonObject) -> str:
    """A token of no Pod, or of a Node (Kubernetes binds to those too), is nobody's on a node. Raises Refused."""
    pod = claim(user, POD_CLAIM)
    if pod is None:
        raise Refused(
            grpc.StatusCode.PERMISSION_DENIED,
            "the token is bound to no Pod; use a projected serviceAccountToken volume of the agent's Pod",
        )
    return pod


def claim(user: JsonObject, name: str) -> str | None:
    """One value of the user's extra; several values are as good as none."""
    values = (user.get("extra") or {}).get(name)
    return str(values[0]) if isinstance(values, list) and len(values) == 1 and values[0] else None


def expiry(token: str) -> datetime | None:
    """The exp claim of an accepted JWT; None for a token of another form."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return datetime.fromtimestamp(int(claims["exp"]), UTC)
    except (binascii.Error, ValueError, TypeError, KeyError, OverflowError, OSError):
        return None
