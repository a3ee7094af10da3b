"""Finds the lines of a LogProfile's pattern: bulk scan over whole chunks, captures only on hits.

Patterns are RE2 (linear time on hostile input) and apply to one line without the kubelet's time prefix. The scan
searches a chunk with the pattern in multi-line mode and then checks the line it hit alone, so a pattern that could
match across lines finds exactly what it would find line by line. Patterns that `re` provably matches in linear time too
(linear_pattern.py: the built-in ones that matter) are left to it, because it is several times as fast from Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import re2

from nvcre_logs.linear_pattern import LinearPattern, linear_pattern
from nvcre_logs.profile import EventPattern

_PATTERN_MEMORY = 8 << 20
MOST_INSTRUCTIONS = 5000
"""Of a compiled pattern, some 20 times those of the largest built-in one: what a line takes grows with them."""
# Such a pattern means the ends of the text, which multi-line mode has no word for: it is applied line by line.
_TEXT_ANCHORS = (r"\A", r"\z", "(?-m", "(?s-m", "(?i-m")


class LogProfileError(ValueError):
    """A profile that cannot be used; the message names the field and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class LinePattern:
    """One compiled pattern; `scan` yields the captures of every line it matches."""

    line: re2.Pattern
    bulk: re2.Pattern | None
    captures: tuple[int, ...]  # group numbers, in the order in which they are yielded
    linear: LinearPattern | None = None  # the same for `re`, where that is safe: five times as fast from Python

    def find(self, line: bytes) -> re2.Match | None:
        """In one line, prefixes already removed; `re` and RE2 count groups alike."""
        linear = self.linear
        if linear is None or not linear.suits(line):
            return self.line.search(line)
        return linear.line.match(line) if linear.anchored else linear.line.search(line)

    def scan(self, text: bytes) -> Iterator[tuple[bytes | None, ...]]:
        """`text` is whole lines, prefixes already removed."""
        captures = self.captures
        if self.linear is not None:
            yield from self._scan_linear(self.linear, text)
            return
        if self.bulk is None:
            for line in text.split(b"\n"):
                if (alone := self.line.search(line)) is not None:
                    yield tuple(alone[number] for number in captures)
            return
        position, size = 0, len(text)
        while position < size:
            hit = self.bulk.search(text, position)
            if hit is None:
                return
            first, last = hit.span()
            end = text.find(b"\n", first)
            end = size if end < 0 else end
            match: re2.Match | None = hit
            if last > end:  # across lines: what does the line have to say alone?
                start = max(text.rfind(b"\n", 0, first) + 1, position)
                match = self.line.search(text[start:end])
            if match is not None:
                yield tuple(match[number] for number in captures)
            position = end + 1

    def _scan_linear(self, linear: LinearPattern, text: bytes) -> Iterator[tuple[bytes | None, ...]]:
        # With the whole match in front `group` gives a tuple, however many captures there are.
        numbers = (0, *self.captures)
        match_line = linear.line.match if linear.anchored else linear.line.search
        if linear.suits_always:
            for match in filter(None, map(match_line, linear.candidates(text))):
                yield match.group(*numbers)[1:]
            return
        for line in linear.candidates(text):
            if not linear.suits(line):
                if (theirs := self.line.search(line)) is not None:
                    yield tuple(theirs[number] for number in self.captures)
            elif (ours := match_line(line)) is not None:
                yield ours.group(*numbers)[1:]


def compile_pattern(pattern: EventPattern, path: str, required: tuple[str, ...]) -> LinePattern:
    """A pattern that yields the named groups `required`.  Raises LogProfileError naming `path`.regex."""
    options = re2.Options()
    options.max_mem = _PATTERN_MEMORY
    options.log_errors = False
    source = pattern.regex.encode()
    try:
        line = re2.compile(source, options)
        anchored = any(anchor in pattern.regex for anchor in _TEXT_ANCHORS)
        bulk = None if anchored else re2.compile(b"(?m)" + source, options)
    except re2.error as error:
        raise LogProfileError(f"{path}.regex does not compile as RE2: {_text(error)}") from error
    if line.programsize > MOST_INSTRUCTIONS:
        raise LogProfileError(
            f"{path}.regex compiles to {line.programsize} instructions, more than {MOST_INSTRUCTIONS}: "
            "write smaller repeats ({1,300}) and classes"
        )
    groups = {name.decode(): number for name, number in line.groupindex.items()}
    missing = [name for name in required if name not in groups]
    if missing:
        raise LogProfileError(f"{path}.regex lacks the named group(s) {', '.join(missing)}")
    if pattern.example and line.search(pattern.example.encode()) is None:
        raise LogProfileError(f"{path}.example does not match {path}.regex")
    return LinePattern(line, bulk, tuple(groups[name] for name in required), linear_pattern(pattern.regex))


def _text(error: re2.error) -> str:
    detail = error.args[0] if error.args else str(error)
    return detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
