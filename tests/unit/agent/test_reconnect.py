"""Why a stream ended, and how long the agent stays away after it."""

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata
from nvcre_agent.reconnect import (
    LONGEST_CEILING_S,
    SERVED_S,
    Ending,
    ceiling_s,
    ending,
    failures_in_a_row,
    leader,
    worth_a_line,
)

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def error(code: grpc.StatusCode, leader: str | None = None) -> AioRpcError:
    trailing = Metadata(("nvcre-leader", leader)) if leader else Metadata()
    return AioRpcError(code, Metadata(), trailing, "details")


@pytest.mark.parametrize(
    ("code", "welcomed", "how"),
    [
        (UNAVAILABLE, False, Ending.UNREACHABLE),
        (UNAVAILABLE, True, Ending.BROKEN),
        (grpc.StatusCode.UNAUTHENTICATED, True, Ending.TOKEN_EXPIRED),
        (grpc.StatusCode.UNAUTHENTICATED, False, Ending.REFUSED),
        (grpc.StatusCode.PERMISSION_DENIED, False, Ending.REFUSED),
        (grpc.StatusCode.INVALID_ARGUMENT, True, Ending.REFUSED),
        (grpc.StatusCode.ABORTED, True, Ending.REPLACED),
        (grpc.StatusCode.DEADLINE_EXCEEDED, False, Ending.UNREACHABLE),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, True, Ending.BROKEN),
    ],
)
def test_how_a_stream_ended(code: grpc.StatusCode, welcomed: bool, how: Ending) -> None:
    assert ending(error(code), welcomed=welcomed) is how


@pytest.mark.parametrize(
    ("named", "address"),
    [
        ("10.0.0.7:9443", "10.0.0.7:9443"),
        ("[fd00::7]:9443", "[fd00::7]:9443"),
        (None, None),
        ("nobody", None),
        (":9443", None),
        ("host:port", None),
        ("h" * 300 + ":1", None),
    ],
)
def test_a_follower_names_the_leader_or_nobody(named: str | None, address: str | None) -> None:
    refused = error(UNAVAILABLE, named)
    assert leader(refused) == address
    assert ending(refused, welcomed=False) is (Ending.REDIRECTED if address else Ending.UNREACHABLE)


def test_only_unavailable_redirects() -> None:
    assert leader(error(grpc.StatusCode.UNAUTHENTICATED, "10.0.0.7:9443")) is None


@pytest.mark.parametrize("how", Ending)
def test_only_an_asked_for_end_or_a_stream_that_served_is_no_failure(how: Ending) -> None:
    no_failure = how in (Ending.DRAINED, Ending.TOKEN_EXPIRED)
    assert failures_in_a_row(3, how, 0.0) == (0 if no_failure else 4)
    assert failures_in_a_row(3, how, SERVED_S) == 0


def test_a_coordinator_that_welcomes_and_ends_at_once_is_not_hammered() -> None:
    failures = 0
    for _ in range(8):
        failures = failures_in_a_row(failures, Ending.BROKEN, 0.1)
    assert ceiling_s(failures) == LONGEST_CEILING_S


def test_the_ceiling_doubles_to_its_end_and_stays_there() -> None:
    assert [ceiling_s(failures) for failures in range(10)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert ceiling_s(10**9) == LONGEST_CEILING_S


def test_a_long_absence_is_told_ever_more_rarely() -> None:
    assert [failures for failures in range(40) if worth_a_line(failures)] == [0, 1, 2, 4, 8, 16, 32]
