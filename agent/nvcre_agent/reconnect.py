"""Why did a stream end, and when does the agent come back? Decides; link.py does it.

Full jitter: any moment up to a ceiling that doubles with each failure in a row, so that ten thousand agents that lost
the same coordinator at the same instant spread by themselves. A stream that served for a while, was drained, or ended
because its token did, is no failure; one that ends as soon as it began is, or its agent would come back for ever.
"""

from enum import StrEnum

import grpc
import grpc.aio

FIRST_CEILING_S = 0.5
LONGEST_CEILING_S = 60.0
SERVED_S = 10.0
MAX_PAUSE_S = 600.0  # whatever a Drain says
LEADER_METADATA = "nvcre-leader"


class Ending(StrEnum):
    """Labels of a metric."""

    DRAINED = "drained"  # the coordinator asked us to come back later
    TOKEN_EXPIRED = "token_expired"  # noqa: S105 - a word
    REDIRECTED = "redirected"  # a follower named the leader
    REFUSED = "refused"  # credential, protocol or message
    REPLACED = "replaced"  # by another stream of this node
    UNREACHABLE = "unreachable"  # no Welcome: nobody there, certificate, time
    BROKEN = "broken"  # after the Welcome
    NOT_ACKNOWLEDGED = "not_acknowledged"  # the stream lived and events were not acknowledged
    CLOSED = "closed"  # the coordinator ended it without a word


def ending(error: grpc.aio.AioRpcError, *, welcomed: bool) -> Ending:
    match error.code():
        case grpc.StatusCode.UNAUTHENTICATED if welcomed:
            return Ending.TOKEN_EXPIRED
        case (
            grpc.StatusCode.UNAUTHENTICATED
            | grpc.StatusCode.PERMISSION_DENIED
            | grpc.StatusCode.INVALID_ARGUMENT
            | grpc.StatusCode.UNIMPLEMENTED
        ):
            return Ending.REFUSED
        case grpc.StatusCode.ABORTED:
            return Ending.REPLACED
        case _ if not welcomed and leader(error) is not None:
            return Ending.REDIRECTED
        case _:
            return Ending.BROKEN if welcomed else Ending.UNREACHABLE


def failures_in_a_row(before: int, how: Ending, served_s: float) -> int:
    """`served_s` is the time from Welcome to the end, on the monotonic clock."""
    if how in (Ending.DRAINED, Ending.TOKEN_EXPIRED) or served_s >= SERVED_S:
        return 0
    return before + 1


def ceiling_s(failures: int) -> float:
    """Come back at any moment up to this."""
    return min(FIRST_CEILING_S * 2.0 ** min(failures, 16), LONGEST_CEILING_S)


def worth_a_line(failures: int) -> bool:
    """Logs of an absence get rarer: after 1, 2, 4, 8, ... failures in a row."""
    return failures & (failures - 1) == 0


def leader(error: grpc.aio.AioRpcError) -> str | None:
    """The address that a follower names: UNAVAILABLE with trailing metadata `nvcre-leader: host:port`."""
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return None
    for key, value in error.trailing_metadata() or ():
        if key == LEADER_METADATA:
            address = value if isinstance(value, str) else value.decode("ascii", "replace")
            host, colon, port = address.rpartition(":")
            return address if colon and host and port.isdigit() and len(address) <= 256 else None
    return None
