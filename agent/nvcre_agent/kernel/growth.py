"""Wakes the event loop when a followed file changes: inotify, so that following it costs nothing while it is quiet.

It may wake for nothing and must be opened again for a file that was replaced; where the kernel gives no inotify,
`open` answers None and the caller polls. DirectoryChanges says which names in a directory were written or replaced,
which is how an editor and a mounted ConfigMap change a file.
"""

import ctypes
import os
import struct
from pathlib import Path

_IN_MODIFY, _IN_ATTRIB, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x2, 0x4, 0x400, 0x800  # linux/inotify.h
_IN_CLOSE_WRITE, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE = 0x8, 0x80, 0x100, 0x200
_EVENT = struct.Struct("iIII")


class FileGrowth:
    """`fd` is readable after a change; `clear` reads the notifications away."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def open(cls, path: Path) -> "FileGrowth | None":
        fd = _watch(path, _IN_MODIFY | _IN_ATTRIB | _IN_DELETE_SELF | _IN_MOVE_SELF)
        return None if fd is None else cls(fd)

    def clear(self) -> None:
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self.fd)


class DirectoryChanges:
    """`fd` is readable after a change; `names` reads which names changed."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def open(cls, path: Path) -> "DirectoryChanges | None":
        fd = _watch(path, _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE)
        return None if fd is None else cls(fd)

    def names(self) -> set[str]:
        found = set()
        try:
            while raw := os.read(self.fd, 8192):
                position = 0
                while position < len(raw):
                    *_, length = _EVENT.unpack_from(raw, position)
                    position += _EVENT.size
                    found.add(os.fsdecode(raw[position : position + length].rstrip(b"\0")))
                    position += length
        except BlockingIOError:
            pass
        return found

    def close(self) -> None:
        os.close(self.fd)


def _watch(path: Path, mask: int) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(path), mask) < 0:
        os.close(fd)
        return None
    return fd
