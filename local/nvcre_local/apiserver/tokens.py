"""ServiceAccount tokens: issuing (TokenRequest) and checking (authentication, TokenReview).

Signed JWTs (ES256, the key lives in memory and dies with the server), with the claims a kube-apiserver of 1.32 or later
puts in: bound to a Pod, they name its node.  A token is good while its signature, time, audience, ServiceAccount and
Pod are.  Static users of a token file are in `authentication`.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from nvcre_kube.timestamps import rfc3339

from nvcre_local.apiserver import errors
from nvcre_local.apiserver.schema import Cause
from nvcre_local.apiserver.storage import Json, Key, Store, Stored

ISSUER = "https://kubernetes.default.svc.cluster.local"
API_AUDIENCE = ISSUER
MIN_SECONDS = 600
MAX_SECONDS = 2**32
DEFAULT_SECONDS = 3600
MAX_TOKEN_BYTES = 16 * 1024

_HALF = 32  # bytes of each of the two numbers of a P-256 signature


@dataclass(frozen=True, slots=True)
class User:
    """Who a token speaks for; `audiences` are those the token was checked for."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = field(default_factory=dict)
    audiences: tuple[str, ...] = (API_AUDIENCE,)

    def info(self) -> Json:
        """authentication.k8s.io/v1 UserInfo."""
        found: Json = {"username": self.name, "uid": self.uid, "groups": list(self.groups), "extra": self.extra}
        return {key: value for key, value in found.items() if value}


class InvalidToken(Exception):
    """Why a token is refused (told to a TokenReview, not to the bearer)."""


class TokenIssuer:
    def __init__(self, store: Store, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock
        self._key = ec.generate_private_key(ec.SECP256R1())

    # --- issuing

    def issue(self, account: Stored, request: Json) -> Json:
        """Answer a TokenRequest for this ServiceAccount: the request with its status. Raises ApiError."""
        spec = request.get("spec")
        spec = spec if isinstance(spec, dict) else {}
        seconds = spec.get("expirationSeconds", DEFAULT_SECONDS)
        audiences = spec.get("audiences") or [API_AUDIENCE]
        self._refuse_invalid(account.key.name, seconds, audiences)
        now = int(self._clock().timestamp())
        claims: Json = {
            "aud": audiences,
            "exp": now + seconds,
            "iat": now,
            "iss": ISSUER,
            "jti": str(uuid.uuid4()),
            "nbf": now,
            "sub": f"system:serviceaccount:{account.key.namespace}:{account.key.name}",
            "kubernetes.io": {
                "namespace": account.key.namespace,
                "serviceaccount": {"name": account.key.name, "uid": account.uid},
                **self._bound(account, spec.get("boundObjectRef")),
            },
        }
        expires = datetime.fromtimestamp(claims["exp"], self._clock().tzinfo)
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": account.key.name,
                "namespace": account.key.namespace,
                "creationTimestamp": rfc3339(self._clock()),
            },
            "spec": {**spec, "audiences": audiences, "expirationSeconds": seconds},
            "status": {"token": self._sign(claims), "expirationTimestamp": rfc3339(expires)},
        }

    @staticmethod
    def _refuse_invalid(name: str, seconds: Any, audiences: Any) -> None:
        where, rule = "spec.expirationSeconds", ""
        if not isinstance(seconds, int) or isinstance(seconds, bool):
            rule = "must be an integer"
        elif seconds < MIN_SECONDS:
            rule = "may not specify a duration less than 10 minutes"
        elif seconds > MAX_SECONDS:
            rule = "may not specify a duration larger than 2^32 seconds"
        elif not isinstance(audiences, list) or not all(isinstance(audience, str) for audience in audiences):
            where, rule = "spec.audiences", "must be a list of strings"
        if rule:
            cause = Cause("FieldValueInvalid", where, f"Invalid value: {rule}")
            raise errors.invalid("authentication.k8s.io", "TokenRequest", name, [cause])

    def _bound(self, account: Stored, reference: Any) -> Json:
        if not isinstance(reference, dict):
            return {}
        kind, name, uid = (reference.get(key) for key in ("kind", "name", "uid"))
        if kind != "Pod" or reference.get("apiVersion", "v1") != "v1":
            raise errors.bad_request(
                f"cannot bind token for serviceaccount to object of type {kind!r}; only Pods are supported"
            )
        pod = self._store.get(Key("pods", account.key.namespace, str(name)))
        if pod is None:
            raise errors.not_found("", "pods", str(name))
        if uid and uid != pod.uid:
            why = f"the UID in the bound object reference ({uid}) does not match the UID in record ({pod.uid})"
            raise errors.conflict("", "pods", str(name), why)
        spec = pod.body.get("spec", {})
        if spec.get("serviceAccountName", "default") != account.key.name:
            raise errors.bad_request(
                f"cannot bind token for serviceaccount {account.key.name!r} to a pod of another serviceaccount"
            )
        bound: Json = {"pod": {"name": pod.key.name, "uid": pod.uid}}
        if spec.get("nodeName"):
            node = self._store.get(Key("nodes", "", spec["nodeName"]))
            bound["node"] = {"name": spec["nodeName"], **({"uid": node.uid} if node else {})}
        return bound

    def _sign(self, claims: Json) -> str:
        signed = f"{_b64(msgspec.json.encode({'alg': 'ES256', 'typ': 'JWT'}))}.{_b64(msgspec.json.encode(claims))}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_b64(r.to_bytes(_HALF, 'big') + s.to_bytes(_HALF, 'big'))}"

    # --- checking

    def check(self, token: str, audiences: Sequence[str] = (API_AUDIENCE,)) -> User:
        """Raises InvalidToken."""
        claims = self._verified(token)
        now = self._clock().timestamp()
        if claims["exp"] <= now:
            raise InvalidToken("service account token has expired")
        if claims["nbf"] > now:
            raise InvalidToken("service account token is not valid yet")
        shared = tuple(audience for audience in audiences if audience in claims["aud"])
        if not shared:
            raise InvalidToken(f"token audiences {claims['aud']} is invalid for the target audiences {list(audiences)}")
        about = claims["kubernetes.io"]
        namespace, account = about["namespace"], about["serviceaccount"]
        self._require(Key("serviceaccounts", namespace, account["name"]), account["uid"], "service account")
        extra = {"authentication.kubernetes.io/credential-id": [f"JTI={claims['jti']}"]}
        if "pod" in about:
            self._require(Key("pods", namespace, about["pod"]["name"]), about["pod"]["uid"], "pod")
        for kind in ("pod", "node"):
            for part, value in about.get(kind, {}).items():
                extra[f"authentication.kubernetes.io/{kind}-{part}"] = [value]
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        return User(claims["sub"], account["uid"], groups, extra, shared)

    def _verified(self, token: str) -> Json:
        """The claims of a token that we signed: their shape is ours and needs no second look."""
        if len(token) > MAX_TOKEN_BYTES:
            raise InvalidToken("token is too long")
        signed, _, signature_text = token.rpartition(".")
        try:
            signature = _unb64(signature_text)
            if len(signature) != 2 * _HALF:
                raise InvalidToken("invalid bearer token")
            r, s = int.from_bytes(signature[:_HALF], "big"), int.from_bytes(signature[_HALF:], "big")
            self._key.public_key().verify(encode_dss_signature(r, s), signed.encode(), ec.ECDSA(hashes.SHA256()))
            claims: Json = msgspec.json.decode(_unb64(signed.partition(".")[2]))
        except (binascii.Error, ValueError, InvalidSignature):
            raise InvalidToken("invalid bearer token") from None
        return claims

    def _require(self, key: Key, uid: str, what: str) -> None:
        found = self._store.get(key)
        if found is None or found.uid != uid:
            raise InvalidToken(f"{what} {key.namespace}/{key.name} has been deleted or replaced")


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
