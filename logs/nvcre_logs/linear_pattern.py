"""Which patterns may Python's own `re` match instead of RE2? Those for which it provably needs linear time.

From Python, RE2 costs about ten microseconds a match, `re` one to two; but `re` backtracks, and LogProfiles and logs
are other people's. So a pattern is read here and accepted only if it leaves `re` no choice: every repeat ends at a byte
that it cannot itself take, every alternative begins with a byte of its own. The one exception is `.*` before a literal:
it has no choice either in a line where that literal occurs once, and such lines are told apart by counting. A few
optional groups may leave it the choice of taking or leaving them, which makes the cost a multiple and no power.

Everything else (another syntax, `\\s`, flags, lazy repeats) is not accepted and stays with RE2. On lines of valid UTF-8
both find the same; a byte that is none is matched by `.` here, as in Go's regexp, and not in RE2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

LONGEST_LINE = 1024  # `.*` may be tried from several beginnings, so its cost is the square of this at worst
SHORTEST_LITERAL = 4
MOST_CHOICES = 3  # each doubles the cost at worst
DEEPEST = 32  # groups in groups

_ALL = (1 << 256) - 1
_END = 1 << 256  # the end of the line, as one more byte
_ANY = _ALL & ~(1 << ord("\n"))
_DIGITS = sum(1 << byte for byte in b"0123456789")
_WORD = _DIGITS | sum(1 << byte for byte in b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_ESCAPES = {"t": 1 << 9, "n": 1 << 10, "r": 1 << 13, "f": 1 << 12, "d": _DIGITS, "w": _WORD}
_OPENING = re.compile(r"\((?:\?P?<\w+>|\?:|(?!\?))")
_COUNTS = re.compile(r"\{(\d{1,3})(,?)(\d{0,3})\}")


class _NotAcceptedError(Exception):
    """The pattern uses what is not understood here."""


@dataclass(frozen=True, slots=True)
class _Bytes:
    """One byte of the set `mask`, `least` to `most` times; None: for ever."""

    mask: int
    least: int = 1
    most: int | None = 1

    @property
    def fixed(self) -> bool:
        return self.least == self.most

    @property
    def literal(self) -> bool:
        return self.least == self.most == 1 and self.mask & (self.mask - 1) == 0 and self.mask != _END


@dataclass(frozen=True, slots=True)
class _Group:
    branches: tuple[_Sequence, ...]
    optional: bool


_Sequence = tuple["_Bytes | _Group", ...]


@dataclass(frozen=True, slots=True)
class LinearPattern:
    """A pattern that `re` matches in linear time, and where its lines are."""

    line: re.Pattern[bytes]
    anchored: bool
    literal: bytes  # in every line that matches; only an anchored pattern may have none
    once: tuple[bytes, ...]  # may occur only once in the line

    def candidates(self, text: bytes) -> Iterable[bytes]:
        """The lines of `text` that may match."""
        return self._with_literal(text) if self.literal else text.split(b"\n")

    def _with_literal(self, text: bytes) -> Iterator[bytes]:
        position, size = 0, len(text)
        while (found := text.find(self.literal, position)) >= 0:
            start = text.rfind(b"\n", position, found) + 1 or position
            end = text.find(b"\n", found)
            position = size if end < 0 else end + 1
            yield text[start : size if end < 0 else end]

    @property
    def suits_always(self) -> bool:
        """It begins at the beginning and has no `.*`: linear in lines of any length."""
        return self.anchored and not self.once

    def suits(self, line: bytes) -> bool:
        """False: this line is for RE2."""
        return len(line) <= LONGEST_LINE and all(line.count(literal) <= 1 for literal in self.once)


def linear_pattern(source: str) -> LinearPattern | None:
    """None when it cannot be shown that `re` needs linear time, or where its lines are."""
    try:
        whole = _Reader(source, int(source.startswith("^"))).whole()
        proof = _Proof()
        begins = proof.first(whole, 0)
    except _NotAcceptedError:
        return None
    anchored = source.startswith("^")
    if not anchored and begins & proof.repeated:
        return None  # a search would begin anew within each repeat
    literal = _longest_literal(whole)
    if not literal and not anchored:
        return None
    try:
        line = re.compile(source.encode())
    except re.error:  # RE2 takes (?<name>...) and names that begin with a digit
        return None
    return LinearPattern(line, anchored, literal, tuple(proof.once))


def required_literal(source: str) -> bytes:
    """In every line that the pattern matches; empty where there is none that is worth looking for, or that is seen."""
    try:
        whole = _Reader(source, int(source.startswith("^"))).whole()
    except _NotAcceptedError:
        return b""
    return _longest_literal(whole)


class _Reader:
    """Reads the subset of the syntax in which RE2 and `re` mean the same."""

    def __init__(self, source: str, position: int) -> None:
        if not source.isascii():
            raise _NotAcceptedError
        self._source = source
        self._depth = 0
        self.position = position

    def whole(self) -> _Sequence:
        found = self.sequence()
        if self.position != len(self._source):
            raise _NotAcceptedError
        return found

    def sequence(self) -> _Sequence:
        items: list[_Bytes | _Group] = []
        while (char := self._peek()) not in ("", "|", ")"):
            if char == "(":
                items.append(self._group())
            elif char == "$":
                self.position += 1
                items.append(_Bytes(_END))
                if self._peek() not in ("", "|", ")"):
                    raise _NotAcceptedError
            else:
                items.append(self._repeated(self._byte()))
        return tuple(items)

    def _peek(self) -> str:
        return self._source[self.position : self.position + 1]

    def _group(self) -> _Group:
        opening = _OPENING.match(self._source, self.position)
        self._depth += 1
        if opening is None or self._depth > DEEPEST:
            raise _NotAcceptedError
        self.position = opening.end()
        branches = [self.sequence()]
        while self._peek() == "|":
            self.position += 1
            branches.append(self.sequence())
        if self._peek() != ")":
            raise _NotAcceptedError
        self.position += 1
        self._depth -= 1
        counted = self._repeated(0)
        if counted.most != 1:
            raise _NotAcceptedError
        return _Group(tuple(branches), optional=counted.least == 0)

    def _byte(self) -> int:
        char = self._peek()
        self.position += 1
        match char:
            case ".":
                return _ANY
            case "[":
                return self._class()
            case "\\":
                return self._escape()
            case "^" | "*" | "+" | "?" | "{" | "}" | "]":
                raise _NotAcceptedError
            case _:
                return 1 << ord(char)

    def _escape(self) -> int:
        char = self._peek()
        self.position += 1
        if char in _ESCAPES:
            return _ESCAPES[char]
        if not char or char.isalnum():
            raise _NotAcceptedError
        return 1 << ord(char)

    def _class(self) -> int:
        negated = self._peek() == "^"
        self.position += negated
        mask = 0
        while (char := self._peek()) != "]" or not mask:
            self.position += 1
            if char in ("", "[", "]"):
                raise _NotAcceptedError
            low = self._escape() if char == "\\" else 1 << ord(char)
            after = self._source[self.position + 1 : self.position + 2]
            if self._peek() == "-" and after not in ("", "]"):
                self.position += 2
                if char == "\\" or after in ("\\", "[") or ord(after) < ord(char):
                    raise _NotAcceptedError
                low = (1 << ord(after) + 1) - (1 << ord(char))
            mask |= low
        self.position += 1
        return _ALL & ~mask if negated else mask

    def _repeated(self, mask: int) -> _Bytes:
        least, most = 1, 1
        unbounded = False
        match self._peek():
            case "*":
                least, unbounded = 0, True
            case "+":
                unbounded = True
            case "?":
                least = 0
            case "{":
                counts = _COUNTS.match(self._source, self.position)
                if counts is None:
                    raise _NotAcceptedError
                self.position = counts.end() - 1
                least = int(counts[1])
                unbounded = bool(counts[2]) and not counts[3]
                most = int(counts[3]) if counts[3] else least
                if most < least or not most:
                    raise _NotAcceptedError
            case _:
                if mask >> 128:
                    raise _NotAcceptedError  # one character of UTF-8 is several bytes
                return _Bytes(mask)
        self.position += 1
        if self._peek() in ("?", "+", "*", "{"):
            raise _NotAcceptedError
        if mask >> 128 and not unbounded:
            raise _NotAcceptedError
        return _Bytes(mask, least, None if unbounded else most)


@dataclass(slots=True)
class _Proof:
    """Goes through a pattern from its end and raises where `re` would have a choice."""

    once: list[bytes] = field(default_factory=list)  # literals behind a `.*`
    repeated: int = 0  # bytes of other repeats that something must follow
    choices: int = 0  # optional groups that could be taken or left

    def first(self, sequence: _Sequence, follow: int, *, in_group: bool = False) -> int:
        """The bytes a match of `sequence` may begin with, when `follow` comes after it.

        `follow` 0 is the end of the pattern: there nothing can fail any more.
        """
        for index in range(len(sequence) - 1, -1, -1):
            item = sequence[index]
            if isinstance(item, _Group):
                follow = self._first_of_group(item, follow)
                continue
            if item.mask == _ANY and item.most is None and not in_group:
                literal = _literal_at(sequence, index + 1)
                if len(literal) < SHORTEST_LITERAL:
                    raise _NotAcceptedError
                self.once.append(literal)
            elif not item.fixed:
                if item.mask & follow:
                    raise _NotAcceptedError
                if follow:
                    self.repeated |= item.mask
            follow = item.mask if item.least else item.mask | follow
        return follow

    def _first_of_group(self, group: _Group, follow: int) -> int:
        if group.optional and len(group.branches) == 1 and self.choices < MOST_CHOICES:
            (branch,) = group.branches
            first = self.first(branch, follow)
            self.choices += bool(not branch or first & follow)
            return first | follow
        taken = follow if group.optional else 0
        for branch in group.branches:
            first = self.first(branch, follow, in_group=True)
            if not branch or first & taken:
                raise _NotAcceptedError
            taken |= first
        return taken


def _literal_at(sequence: _Sequence, index: int) -> bytes:
    return next(_literals(sequence[index:]), b"")


def _longest_literal(sequence: _Sequence) -> bytes:
    literal = max(_literals(sequence), key=len, default=b"")
    return literal if len(literal) >= SHORTEST_LITERAL else b""


def _literals(sequence: _Sequence) -> Iterator[bytes]:
    """Runs of literal bytes that every match contains (groups are left out), and empty ones."""
    run = bytearray()
    for item in sequence:
        if isinstance(item, _Bytes) and item.literal:
            run.append(item.mask.bit_length() - 1)
        else:
            yield bytes(run)
            run.clear()
    yield bytes(run)
