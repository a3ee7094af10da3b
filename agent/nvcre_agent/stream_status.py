"""How the coordinator ended a stream, whatever gRPC says afterwards.

A write that fails because the server has ended the stream makes grpc.aio overwrite the status that the server sent by
INTERNAL "Internal error from Core" (https://github.com/grpc/grpc/issues/36066): a refused token looked like a fault of
the network, and a follower's redirect was lost. The first status that a call gets is the server's.
"""

from collections.abc import Coroutine
from typing import Any

import grpc.aio


class FirstStatus:
    """Watches `call`, from before its first write; `told(error)` is `error` with the status that came first."""

    def __init__(self, call: grpc.aio.Call) -> None:
        self._call = call
        self._first: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._ended)

    def told(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        return self._first or error

    def _ended(self, _: grpc.aio.Call) -> None:
        """In the callback, not in a task of its own: that one would see what was overwritten."""
        call = self._call
        self._first = self._first or grpc.aio.AioRpcError(
            _known(call.code()),
            grpc.aio.Metadata(),
            grpc.aio.Metadata(*_known(call.trailing_metadata())),
            _known(call.details()),
        )


def _known(answer: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that has nothing to wait for: a call that is over knows its status."""
    try:
        answer.send(None)
    except StopIteration as finished:
        return finished.value
    answer.close()
    raise AssertionError("a call that is over has no status")
