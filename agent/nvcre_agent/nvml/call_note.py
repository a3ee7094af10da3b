"""Which NVML call is in flight, and since when: a few bytes of shared memory between the NVML child and the agent.

The child writes before and after each call; the agent reads when it looks after the child, even if the child cannot run
any more.  A note costs about a microsecond and wakes nobody, where a line on the pipe would cost both sides a wakeup
for each of some hundred calls a snapshot.  What is too long is decided here, what follows from it in monitor.py.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
import time
from dataclasses import dataclass
from typing import Self

_LAYOUT = struct.Struct("<QqHh64sQ")  # version, since (monotonic ns), doing, GPU index or -1, call, version again


class Doing(enum.IntEnum):
    STARTING = 0  # the process is not up yet
    NOTHING = 1  # between two calls
    CALLING = 2  # inside NVML


_KNOWN = frozenset(Doing)


@dataclass(frozen=True, slots=True)
class Note:
    doing: Doing
    since_ns: int
    call: str = ""
    gpu: int | None = None

    def age_s(self, now_ns: int) -> float:
        return max(0.0, (now_ns - self.since_ns) / 1e9)

    def __str__(self) -> str:
        if self.doing is not Doing.CALLING:
            return "the NVML process"
        return self.call if self.gpu is None else f"{self.call} on GPU {self.gpu}"


class CallNote:
    """One writer, any readers, no lock: a reader that meets a write in progress sees what it saw before.

    So the note of a child that was stopped in the middle of a write grows old too.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, _LAYOUT.size)
        self._version = 0
        self._seen = Note(Doing.STARTING, time.monotonic_ns())

    @classmethod
    def create(cls) -> Self:
        fd = os.memfd_create("nvcre-nvml-call", os.MFD_CLOEXEC)
        os.ftruncate(fd, _LAYOUT.size)
        note = cls(fd)
        note.write(Doing.STARTING)
        return note

    def write(self, doing: Doing, call: str = "", gpu: int = -1) -> None:
        self._version += 1
        since_ns = time.monotonic_ns()
        _LAYOUT.pack_into(self._memory, 0, self._version, since_ns, doing, gpu, call.encode()[:64], self._version)

    def read(self) -> Note:
        for _ in range(3):  # a write takes a microsecond
            version, since_ns, doing, gpu, call, again = _LAYOUT.unpack_from(self._memory, 0)
            if version == again and doing in _KNOWN:
                name = call.rstrip(b"\0").decode(errors="replace")
                self._seen = Note(Doing(doing), since_ns, name, None if gpu < 0 else gpu)
                break
        return self._seen

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)


def overdue(note: Note, now_ns: int, *, start_s: float, hang_s: float) -> bool:
    """Does this take longer than it may?  Starting, and nvmlInit without the persistence daemon, may take `start_s`.

    Ask only when the child has said nothing for a while: one that waits for a slow reader is not overdue.
    """
    match note:
        case Note(doing=Doing.STARTING) | Note(call="nvmlInit"):
            return note.age_s(now_ns) > start_s
    return note.age_s(now_ns) > hang_s
