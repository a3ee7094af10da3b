"""Bytes as decisions: what a fake at the outer edge does next; used up, they are zero, and it behaves."""


class Choices:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        taken = self._data[self._at : self._at + count]
        self._at += len(taken)
        return taken.ljust(count, b"\0")

    def number(self, size: int = 1) -> int:
        return int.from_bytes(self.take(size), "little")
