"""Who is asking: static users of the token file, and ServiceAccount tokens; and the review kinds that tell others.

There is no authorization: whoever is known may do everything, as access reviews say.
"""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path
from typing import Any

from nvcre_local.apiserver import errors
from nvcre_local.apiserver.storage import Json
from nvcre_local.apiserver.tokens import API_AUDIENCE, InvalidToken, TokenIssuer, User


class TokenFileError(ValueError):
    """The token file cannot be used; the message names file, line and remedy."""


def read_token_file(path: Path) -> dict[bytes, User]:
    """Lines of `token,user,uid,"group,group"` (kube-apiserver's --token-auth-file), by the tokens' digests."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenFileError(f"cannot read token file {path}: {error}") from error
    users: dict[bytes, User] = {}
    for number, row in enumerate(csv.reader(text.splitlines(), skipinitialspace=True), 1):
        if not row or row[0].startswith("#"):
            continue
        if len(row) < 3 or not row[0] or not row[1]:
            raise TokenFileError(f'{path} line {number}: expected token,user,uid,"group,group"')
        groups = tuple(group.strip() for group in ",".join(row[3:]).split(",") if group.strip())
        users[_digest(row[0])] = User(row[1], row[2], (*groups, "system:authenticated"))
    if not users:
        raise TokenFileError(f'{path} has no tokens: give it a line token,user,uid,"group,group"')
    return users


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class Authenticator:
    def __init__(self, static: dict[bytes, User], issuer: TokenIssuer) -> None:
        self._static = static  # by digest: a lookup's timing then tells nothing about a token
        self._issuer = issuer

    def user(self, authorization: str | None) -> User:
        """The user of an Authorization header. Raises ApiError 401."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise errors.unauthorized()
        try:
            return self.check(token.strip(), (API_AUDIENCE,))
        except InvalidToken:
            raise errors.unauthorized() from None

    def check(self, token: str, audiences: tuple[str, ...]) -> User:
        """Raises InvalidToken."""
        known = self._static.get(_digest(token))
        if known is None:
            return self._issuer.check(token, audiences)
        if API_AUDIENCE not in audiences:
            raise InvalidToken(f"a static token is good for {API_AUDIENCE} only, not for {list(audiences)}")
        return known


def review_token(authenticator: Authenticator, review: Json) -> Json:
    """authentication.k8s.io/v1 TokenReview."""
    spec = _spec(review)
    token, audiences = spec.get("token"), spec.get("audiences") or [API_AUDIENCE]
    if not isinstance(token, str) or not token:
        raise errors.bad_request("token is required for TokenReview in authentication")
    if not isinstance(audiences, list) or not all(isinstance(audience, str) for audience in audiences):
        raise errors.bad_request("spec.audiences of a TokenReview must be a list of strings")
    try:
        user = authenticator.check(token, tuple(audiences))
    except InvalidToken as error:
        status: Json = {"user": {}, "error": f"[invalid bearer token, {error}]"}
    else:
        status = {"authenticated": True, "user": user.info(), "audiences": list(user.audiences)}
    return _answer("authentication.k8s.io/v1", "TokenReview", spec, status)


def review_self(user: User) -> Json:
    return _answer("authentication.k8s.io/v1", "SelfSubjectReview", None, {"userInfo": user.info()})


def review_access(kind: str, review: Json) -> Json:
    """Access reviews: everything is allowed to whoever has a token."""
    if kind == "SelfSubjectRulesReview":
        rules: Json = {
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": False,
        }
        return _answer("authorization.k8s.io/v1", kind, _spec(review), rules)
    status = {"allowed": True, "reason": "this server has no authorization: every known token may do everything"}
    return _answer("authorization.k8s.io/v1", kind, _spec(review), status)


def _spec(review: Json) -> dict[str, Any]:
    spec = review.get("spec")
    return spec if isinstance(spec, dict) else {}


def _answer(version: str, kind: str, spec: Json | None, status: Json) -> Json:
    found: Json = {"kind": kind, "apiVersion": version, "metadata": {}}
    if spec is not None:
        found["spec"] = spec
    return {**found, "status": status}
