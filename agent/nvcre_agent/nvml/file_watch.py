"""Sleeps until a file grows: inotify where the kernel gives it, a short sleep where it does not.

For the simulated driver only, whose wait call stands for the driver's own and must not burn CPU over many simulated
nodes.  It may wake for nothing; the caller looks at the file itself.
"""

from __future__ import annotations

import ctypes
import os
import select
import weakref
from pathlib import Path

_IN_MODIFY, _IN_CREATE, _IN_MOVED_TO = 0x2, 0x100, 0x80  # linux/inotify.h
_POLL_S = 0.05  # without inotify


class FileWatch:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        self._poll = select.poll()
        self._on_file = False
        self._on_directory = False
        self._interrupts = -1

    def interrupted_by(self, fd: int) -> None:
        """End a wait early when `fd` (not blocking) becomes readable."""
        self._interrupts = fd
        self._poll.register(fd, select.POLLIN)

    def arm(self) -> None:
        """Before looking at the file, so that nothing written after the look is missed."""
        if self._fd < 0:
            self._open()
        if self._fd < 0 or self._on_file:
            return
        self._on_file = self._add(self._path, _IN_MODIFY)
        if not self._on_file and not self._on_directory:
            self._on_directory = self._add(self._path.parent, _IN_CREATE | _IN_MOVED_TO)

    def _open(self) -> None:
        """Only for who waits: a user has 128 of them unless the node is configured otherwise."""
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            self._poll.register(self._fd, select.POLLIN)
            weakref.finalize(self, os.close, self._fd)

    def _add(self, path: Path, mask: int) -> bool:
        return bool(self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask) >= 0)

    def wait(self, timeout_s: float) -> bool:
        """True when it was interrupted."""
        if not (self._on_file or self._on_directory):
            timeout_s = min(timeout_s, _POLL_S)
        ready = {fd for fd, _ in self._poll.poll(max(0, round(timeout_s * 1000)))}
        for fd in ready:
            _empty(fd)
        return self._interrupts in ready


def _empty(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
