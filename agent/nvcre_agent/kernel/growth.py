"""Wakes the event loop when a followed file changes: inotify, so that following it costs nothing while it is quiet.

It may wake for nothing and must be opened again for a file that was replaced; where the kernel gives no inotify,
`open` answers None and the caller polls.
"""

import ctypes
import os
from pathlib import Path

_IN_MODIFY, _IN_ATTRIB, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x2, 0x4, 0x400, 0x800  # linux/inotify.h


class FileGrowth:
    """`fd` is readable after a change; `clear` reads the notifications away."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def open(cls, path: Path) -> "FileGrowth | None":
        libc = ctypes.CDLL(None, use_errno=True)
        fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if fd < 0:
            return None
        mask = _IN_MODIFY | _IN_ATTRIB | _IN_DELETE_SELF | _IN_MOVE_SELF
        if libc.inotify_add_watch(fd, os.fsencode(path), mask) < 0:
            os.close(fd)
            return None
        return cls(fd)

    def clear(self) -> None:
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self.fd)
