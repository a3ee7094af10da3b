"""Who is asking: tokens of ServiceAccounts (TokenRequest) and what a server says of them (TokenReview)."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from .place import Place, pod
from .servers import Answer
from .starting import wait_for

AUDIENCE = "nvcre-coordinator"


def request_token(place: Place, spec: dict[str, Any], account: str = "default") -> Answer:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return place.post("serviceaccounts", body, account, "token")


def token(place: Place, **spec: Any) -> str:
    found: str = request_token(place, spec).expect(201)["status"]["token"]
    return found


def review(place: Place, found: str, *audiences: str) -> dict[str, Any]:
    spec = {"token": found, **({"audiences": list(audiences)} if audiences else {})}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    answer = place.server.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body)
    status: dict[str, Any] = answer.expect(201)["status"]
    return status


def bound_to(made: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "Pod", "apiVersion": "v1", "name": made["metadata"]["name"], "uid": made["metadata"]["uid"]}


def claims(found: str) -> dict[str, Any]:
    part = found.split(".")[1]
    decoded: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return decoded


def test_a_token_speaks_for_its_service_account(place: Place) -> None:
    status = review(place, token(place))
    assert status["authenticated"] is True
    assert status["user"]["username"] == f"system:serviceaccount:{place.namespace}:default"
    account = place.get("serviceaccounts", "default").expect(200)
    assert status["user"]["uid"] == account["metadata"]["uid"]
    assert set(status["user"]["groups"]) == {
        "system:serviceaccounts",
        f"system:serviceaccounts:{place.namespace}",
        "system:authenticated",
    }


def test_a_token_opens_the_api(place: Place) -> None:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = place.server.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body, token=token(place))
    user = answer.expect(201)["status"]["userInfo"]
    assert user["username"] == f"system:serviceaccount:{place.namespace}:default"


def test_a_token_of_a_pod_names_the_pod_and_its_node(place: Place) -> None:
    node = f"of-{place.namespace}"
    node_uid = place.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})["metadata"][
        "uid"
    ]
    made = place.create("pods", pod("a", {"nodeName": node}))
    bound = token(place, audiences=[AUDIENCE], boundObjectRef=bound_to(made))
    assert claims(bound)["kubernetes.io"]["pod"] == {"name": "a", "uid": made["metadata"]["uid"]}

    status = review(place, bound, AUDIENCE)

    assert (status["authenticated"], status["audiences"]) == (True, [AUDIENCE])
    extra = status["user"]["extra"]
    prefix = "authentication.kubernetes.io"
    assert extra[f"{prefix}/pod-name"] == ["a"]
    assert extra[f"{prefix}/pod-uid"] == [made["metadata"]["uid"]]
    assert extra[f"{prefix}/node-name"] == [node]
    assert extra[f"{prefix}/node-uid"] == [node_uid]
    place.delete("nodes", node).expect(200)


def test_a_token_is_good_for_its_audiences_only(place: Place) -> None:
    found = token(place, audiences=[AUDIENCE, "other"])
    assert review(place, found, AUDIENCE)["audiences"] == [AUDIENCE]
    assert review(place, found, "third", "other")["audiences"] == ["other"]
    for audiences in (("third",), ()):
        status = review(place, found, *audiences)
        assert not status.get("authenticated")
        assert status["user"] == {}
        assert status["error"]
    answer = place.server.request("GET", "/version", token=found)
    assert place.server.request("GET", "/api", token=found).refusal == (401, "Unauthorized"), answer


def test_a_token_dies_with_its_pod(place: Place) -> None:
    made = place.create("pods", pod("a"))
    bound = token(place, audiences=[AUDIENCE], boundObjectRef=bound_to(made))
    place.delete("pods", "a").expect(200)
    assert not review(place, bound, AUDIENCE).get("authenticated")
    place.create("pods", pod("a"))  # another one of that name
    assert not review(place, bound, AUDIENCE).get("authenticated")


def test_a_token_dies_with_its_service_account(place: Place) -> None:
    place.create("serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "agent"}})
    found = request_token(place, {"audiences": [AUDIENCE]}, "agent").expect(201)["status"]["token"]
    place.delete("serviceaccounts", "agent").expect(200)
    wait_for("its token to be refused", lambda: not review(place, found, AUDIENCE).get("authenticated"))


def test_a_token_says_when_it_ends(place: Place) -> None:
    answer = request_token(place, {"expirationSeconds": 1200}).expect(201)
    said = answer["status"]["expirationTimestamp"]
    until = datetime.strptime(said, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    found = claims(answer["status"]["token"])
    assert found["exp"] == until
    assert found["exp"] - found["iat"] == 1200
    assert answer["spec"]["expirationSeconds"] == 1200


@pytest.mark.parametrize("tampered", ["garbage", "a.b.c", "", "first", "last"])
def test_what_is_no_token_of_ours_is_not_authenticated(place: Place, tampered: str) -> None:
    good = token(place)
    match tampered:
        case "first":
            found = ("f" if good[0] == "e" else "e") + good[1:]
        case "last":
            found = good[:-12] + ("A" * 12 if good[-12:] != "A" * 12 else "B" * 12)
        case _:
            found = tampered
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": found}}
    answer = place.server.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body)
    if not found:
        assert answer.refusal == (400, "BadRequest")
    else:
        assert not answer.expect(201)["status"].get("authenticated")


@pytest.mark.parametrize(
    ("spec", "field"),
    [({"expirationSeconds": 60}, "spec.expirationSeconds"), ({"expirationSeconds": 2**33}, "spec.expirationSeconds")],
)
def test_a_token_lasts_between_ten_minutes_and_2_to_the_32_seconds(place: Place, spec: dict, field: str) -> None:
    answer = request_token(place, spec)
    assert answer.refusal == (422, "Invalid")
    assert answer.causes == [("FieldValueInvalid", field)]


def test_a_token_of_an_account_that_is_not_there_is_not_found(place: Place) -> None:
    assert request_token(place, {}, "nobody").refusal == (404, "NotFound")


def test_a_token_is_bound_to_what_is_there(place: Place) -> None:
    ref = {"kind": "Pod", "apiVersion": "v1", "name": "none", "uid": "u"}
    assert request_token(place, {"boundObjectRef": ref}).refusal == (404, "NotFound")
    place.create("pods", pod("a"))
    assert request_token(place, {"boundObjectRef": {**ref, "name": "a"}}).refusal == (409, "Conflict")


def test_a_token_is_bound_to_a_pod_of_its_account(place: Place) -> None:
    place.create("serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "agent"}})
    made = place.create("pods", pod("a"))
    assert request_token(place, {"boundObjectRef": bound_to(made)}, "agent").refusal == (400, "BadRequest")


@pytest.mark.parametrize("wrong", ["", "wrong"])
def test_without_a_good_token_nothing_is_told(place: Place, wrong: str) -> None:
    for path in ("/api", place.path("pods"), "/openapi/v3"):
        answer = place.server.request("GET", path, token=wrong)
        assert answer.refusal in ((401, "Unauthorized"), (403, "Forbidden"))


def test_whoever_may_everything_is_told_so(place: Place) -> None:
    attributes = {"namespace": place.namespace, "verb": "create", "resource": "pods"}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = place.server.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    assert answer.expect(201)["status"]["allowed"] is True
