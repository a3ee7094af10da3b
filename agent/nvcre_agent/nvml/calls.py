"""One NVML call: its answer, or why there is none.  Every call of the agent goes through here.

Used only inside the NVML child process: any call can block for ever, so each is noted for the agent before it begins
(call_note.py) and timed.  Error codes become the `Unread` that keeps apart what accuses a GPU and what does not;
nothing is retried and nothing judged.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pynvml

from nvcre_agent.nvml.call_note import CallNote, Doing
from nvcre_agent.nvml.snapshot import Unread
from nvcre_agent.nvml.timing import CALL_SECONDS

T = TypeVar("T")

OK = int(pynvml.NVML_SUCCESS)

_UNREAD = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: Unread.NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Unread.NOT_SUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Unread.NOT_SUPPORTED,
    pynvml.NVML_ERROR_GPU_IS_LOST: Unread.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: Unread.RESET_REQUIRED,
    pynvml.NVML_ERROR_NO_PERMISSION: Unread.NO_PERMISSION,
}


def _nothing_counted() -> list[int]:
    return [0] * (len(CALL_SECONDS) + 1)


@dataclass(slots=True)
class Ledger:
    """What the calls of this process took, and where the agent sees the one in flight."""

    note: CallNote | None = None
    gpu: int = -1  # whose turn it is
    count: int = 0
    sum_s: float = 0.0
    max_s: float = 0.0
    within: list[int] = field(default_factory=_nothing_counted)  # by CALL_SECONDS, the last one above them all

    def add(self, took_s: float) -> None:
        self.count += 1
        self.sum_s += took_s
        self.max_s = max(self.max_s, took_s)
        self.within[bisect_left(CALL_SECONDS, took_s)] += 1

    def take(self) -> dict[str, Any]:
        """Since the last time."""
        taken = {"count": self.count, "sum_s": round(self.sum_s, 6), "max_s": round(self.max_s, 6)}
        within = self.within
        self.count, self.sum_s, self.max_s, self.within = 0, 0.0, 0.0, _nothing_counted()
        return {**taken, "within": within}


ledger = Ledger()


def call(function: Callable[..., T], *args: object, timed: bool = True) -> T:
    """NVMLError where there is no answer.  Waiting for events is not `timed`: it is long in good order."""
    if ledger.note is not None:
        ledger.note.write(Doing.CALLING, function.__name__, ledger.gpu)
    started = time.monotonic()
    try:
        return function(*args)
    finally:
        if timed:
            ledger.add(time.monotonic() - started)
        if ledger.note is not None:
            ledger.note.write(Doing.NOTHING)


def unread(code: int) -> Unread:
    return _UNREAD.get(code, Unread.FAILED)


def read(function: Callable[..., T], *args: object) -> T | Unread:
    """The answer of one NVML call or why there is none."""
    try:
        return call(function, *args)
    except pynvml.NVMLLibraryMismatchError:  # what pynvml makes of a missing symbol behind an unversioned name
        return Unread.NOT_SUPPORTED
    except pynvml.NVMLError as error:
        return unread(error.value)
    except UnicodeDecodeError:  # a string that is not text, seen on dying InfoROMs
        return Unread.FAILED


def read_newer(name: str, *args: object) -> Any:
    """A call that not every version of pynvml has."""
    function = getattr(pynvml, name, None)
    return Unread.NOT_SUPPORTED if function is None else read(function, *args)


def code_of(function: Callable[..., object], *args: object) -> int:
    """NVML's return code itself, where more than an `Unread` must be known."""
    try:
        call(function, *args)
    except pynvml.NVMLError as error:
        return int(error.value)
    return OK
