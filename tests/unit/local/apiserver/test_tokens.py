"""ServiceAccount tokens: what they say, and everything that ends them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from nvcre_local.apiserver.authentication import Authenticator, TokenFileError, read_token_file, review_token
from nvcre_local.apiserver.deletion import DeleteOptions
from nvcre_local.apiserver.errors import ApiError
from nvcre_local.apiserver.tokens import API_AUDIENCE, InvalidToken, TokenIssuer


@pytest.fixture
def issuer(world: Any) -> TokenIssuer:
    world.make("nodes", "node-0")
    world.make_pod("p", node="node-0")
    return TokenIssuer(world.store, world.clock)


def issue(issuer: TokenIssuer, world: Any, **spec: Any) -> str:
    account = world.get("serviceaccounts", "default")
    return str(issuer.issue(account, {"spec": spec})["status"]["token"])


def bound_to(world: Any, **more: Any) -> dict[str, Any]:
    return {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": world.get("pods", "p").uid, **more}


def test_a_bound_token_names_its_pod_and_node(issuer: TokenIssuer, world: Any) -> None:
    token = issue(issuer, world, audiences=["them"], boundObjectRef=bound_to(world))
    user = issuer.check(token, ["us", "them"])
    pod, node = world.get("pods", "p"), world.get("nodes", "node-0")
    assert user.name == "system:serviceaccount:default:default"
    assert user.audiences == ("them",)
    assert user.extra["authentication.kubernetes.io/pod-name"] == ["p"]
    assert user.extra["authentication.kubernetes.io/pod-uid"] == [pod.uid]
    assert user.extra["authentication.kubernetes.io/node-name"] == ["node-0"]
    assert user.extra["authentication.kubernetes.io/node-uid"] == [node.uid]
    assert user.extra["authentication.kubernetes.io/credential-id"][0].startswith("JTI=")
    assert "system:serviceaccounts:default" in user.groups


def test_its_claims_are_those_of_a_real_cluster(issuer: TokenIssuer, world: Any) -> None:
    payload = issue(issuer, world, boundObjectRef=bound_to(world)).split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["aud"] == [API_AUDIENCE]
    assert claims["exp"] - claims["iat"] == 3600
    assert claims["kubernetes.io"] == {
        "namespace": "default",
        "node": {"name": "node-0", "uid": world.get("nodes", "node-0").uid},
        "pod": {"name": "p", "uid": world.get("pods", "p").uid},
        "serviceaccount": {"name": "default", "uid": world.get("serviceaccounts", "default").uid},
    }


def test_time_ends_it(issuer: TokenIssuer, world: Any) -> None:
    token = issue(issuer, world, expirationSeconds=600)
    world.clock.advance(599)
    issuer.check(token)
    world.clock.advance(1)
    with pytest.raises(InvalidToken, match="expired"):
        issuer.check(token)


@pytest.mark.parametrize("plural", ["pods", "serviceaccounts"])
def test_the_end_of_its_pod_or_account_ends_it_even_if_another_takes_the_name(
    issuer: TokenIssuer, world: Any, plural: str
) -> None:
    token = issue(issuer, world, boundObjectRef=bound_to(world))
    name = "p" if plural == "pods" else "default"
    world.operations.delete(world.of(plural), "default", name, DeleteOptions(grace_seconds=0))
    with pytest.raises(InvalidToken, match="deleted or replaced"):
        issuer.check(token)
    world.make_pod("p") if plural == "pods" else world.make(plural, name)
    with pytest.raises(InvalidToken, match="deleted or replaced"):
        issuer.check(token)


def test_it_is_good_for_its_audience_only(issuer: TokenIssuer, world: Any) -> None:
    with pytest.raises(InvalidToken, match="audiences"):
        issuer.check(issue(issuer, world, audiences=["them"]))


@pytest.mark.parametrize("forge", [
    lambda t: t[:-2] + ("AA" if t[-2:] != "AA" else "BB"),
    lambda t: ".".join([t.split(".")[0], "eyJzdWIiOiJyb290In0", t.split(".")[2]]),
    lambda t: t.rsplit(".", 1)[0] + ".",
    lambda t: "x", lambda t: "a.b.c", lambda t: "é.é.é", lambda t: t * 100,
])  # fmt: skip
def test_forged_tokens_are_refused(issuer: TokenIssuer, world: Any, forge: Any) -> None:
    with pytest.raises(InvalidToken):
        issuer.check(forge(issue(issuer, world)))


def test_a_token_of_another_server_is_refused(issuer: TokenIssuer, world: Any) -> None:
    with pytest.raises(InvalidToken):
        TokenIssuer(world.store, world.clock).check(issue(issuer, world))


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"expirationSeconds": 599}, 422),
        ({"expirationSeconds": "x"}, 422),
        ({"expirationSeconds": 2**40}, 422),
        ({"audiences": "x"}, 422),
        ({"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "p"}}, 400),
        ({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "nope"}}, 404),
        ({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "other"}}, 409),
    ],
)
def test_requests_that_are_refused(issuer: TokenIssuer, world: Any, spec: dict[str, Any], code: int) -> None:
    with pytest.raises(ApiError) as refused:
        issue(issuer, world, **spec)
    assert refused.value.code == code


def test_a_review_tells_the_user_or_the_reason(issuer: TokenIssuer, world: Any) -> None:
    authenticator = Authenticator({}, issuer)
    token = issue(issuer, world, audiences=["them"])
    status = review_token(authenticator, {"spec": {"token": token, "audiences": ["them"]}})["status"]
    assert (status["authenticated"], status["audiences"]) == (True, ["them"])
    assert status["user"]["username"] == "system:serviceaccount:default:default"
    status = review_token(authenticator, {"spec": {"token": token}})["status"]
    assert "authenticated" not in status
    assert "audiences" in status["error"]


def test_static_users_come_from_a_file(tmp_path: Path, issuer: TokenIssuer) -> None:
    file = tmp_path / "tokens"
    file.write_text('# comment\nsecret,admin,1,"system:masters, ops"\nother,bob,2\n')
    authenticator = Authenticator(read_token_file(file), issuer)
    user = authenticator.user("Bearer secret")
    assert (user.name, user.uid) == ("admin", "1")
    assert user.groups == ("system:masters", "ops", "system:authenticated")
    for header in (None, "", "Bearer", "Bearer wrong", "Basic secret", "secret"):
        with pytest.raises(ApiError) as refused:
            authenticator.user(header)
        assert refused.value.code == 401


@pytest.mark.parametrize("content", ["", "just-a-token\n", ",user,uid\n", b"\xff\xfe"])
def test_a_token_file_that_cannot_be_used_is_named(tmp_path: Path, content: str | bytes) -> None:
    file = tmp_path / "tokens"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TokenFileError, match=str(file)):
        read_token_file(file)
