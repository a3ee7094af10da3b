"""Compiles a LogProfile and finds its lines in a log: bulk scan over whole chunks, captures only on hits.

Patterns are RE2 (linear time on hostile input) and apply to one line without the kubelet's time prefix. The scan
searches a chunk with the pattern in multi-line mode and then checks the line it hit alone, so a pattern that could
match across lines finds exactly what it would find line by line. Patterns that `re` provably matches in linear time too
(linear_pattern.py: the built-in ones that matter) are left to it, because it is several times as fast from Python. A
line longer than 1 MiB is skipped and counted, and no other row is lost (the reference gives such a log up).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import re2

from nvcre_coordinator.api.log_profile import EventPattern, LogProfile
from nvcre_coordinator.core.bandwidth import BandwidthRow
from nvcre_coordinator.core.go_time import GoTimeParser, LayoutError, compile_layout
from nvcre_coordinator.core.linear_pattern import LinearPattern, linear_pattern
from nvcre_coordinator.core.log_lines import split_prefixes

MAX_LINE_BYTES = 1024 * 1024
MAX_INT64 = 2**63 - 1
_BANDWIDTH_CAPTURES = ("size", "algBW", "busBW")
_PATTERN_MEMORY = 8 << 20
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


@dataclass(frozen=True, slots=True)
class CompiledProfile:
    name: str
    replicated_job: str
    container: str
    timestamp: GoTimeParser
    bandwidth: LinePattern
    transport: LinePattern | None


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
    groups = {name.decode(): number for name, number in line.groupindex.items()}
    missing = [name for name in required if name not in groups]
    if missing:
        raise LogProfileError(f"{path}.regex lacks the named group(s) {', '.join(missing)}")
    if pattern.example and line.search(pattern.example.encode()) is None:
        raise LogProfileError(f"{path}.example does not match {path}.regex")
    return LinePattern(line, bulk, tuple(groups[name] for name in required), linear_pattern(pattern.regex))


def compile_bandwidth_profile(profile: LogProfile) -> CompiledProfile:
    """What a BandwidthMeasurement needs of a profile.  Raises LogProfileError."""
    patterns = profile.spec.patterns
    if patterns.bandwidth_result is None:
        raise LogProfileError(f"LogProfile {profile.metadata.name} has no spec.patterns.bandwidthResult")
    try:
        timestamp = compile_layout(profile.spec.timestamp.layout)
    except LayoutError as error:
        raise LogProfileError(f"spec.timestamp.layout: {error}") from error
    strategy = profile.spec.worker_strategy
    transport = patterns.network_transport
    return CompiledProfile(
        name=profile.metadata.name,
        replicated_job=(strategy.replicated_job_name if strategy is not None else "") or "node",
        container=profile.spec.container_name,
        timestamp=timestamp,
        bandwidth=compile_pattern(patterns.bandwidth_result, "spec.patterns.bandwidthResult", _BANDWIDTH_CAPTURES),
        transport=None
        if transport is None
        else compile_pattern(transport, "spec.patterns.networkTransport", ("transport",)),
    )


def bandwidth_rows(pattern: LinePattern, text: bytes) -> list[BandwidthRow]:
    """Rows of whole lines; a row whose figures are no finite numbers (N/A) is none."""
    rows = []
    for size, algbw, busbw in pattern.scan(text):
        if size is None or algbw is None or busbw is None or len(size) > 19 or len(algbw) > 32 or len(busbw) > 32:
            continue
        try:
            row = BandwidthRow(int(size), float(algbw), float(busbw))
        except ValueError:
            continue
        if math.isfinite(row.algbw_gbps) and math.isfinite(row.busbw_gbps) and 0 <= row.size_bytes <= MAX_INT64:
            rows.append(row)
    return rows


@dataclass(slots=True)
class LineFeed:
    """Cuts a stream of chunks into blocks of whole lines, in bounded memory."""

    skipped_lines: int = 0  # longer than MAX_LINE_BYTES
    _rest: bytearray = field(default_factory=bytearray)
    _skipping: bool = False

    def feed(self, chunk: bytes) -> bytes:
        """The whole lines that are complete now, prefixes removed; empty when there are none."""
        if self._skipping:
            newline = chunk.find(b"\n")
            if newline < 0:
                return b""
            chunk = chunk[newline + 1 :]
            self._skipping = False
        last = chunk.rfind(b"\n")
        if last < 0:
            self._rest += chunk
            if len(self._rest) > MAX_LINE_BYTES:
                self.skipped_lines += 1
                self._skipping = True
                self._rest.clear()
            return b""
        block = bytes(self._rest) + chunk[: last + 1]
        self._rest = bytearray(chunk[last + 1 :])
        if len(self._rest) > MAX_LINE_BYTES:
            self.skipped_lines += 1
            self._skipping = True
            self._rest.clear()
        return self._clean(block)

    def finish(self) -> bytes:
        """What came after the last newline."""
        block, self._rest = bytes(self._rest), bytearray()
        return self._clean(block)

    def _clean(self, block: bytes) -> bytes:
        if len(block) > MAX_LINE_BYTES:
            lines = block.split(b"\n")
            kept = [line for line in lines if len(line) <= MAX_LINE_BYTES]
            self.skipped_lines += len(lines) - len(kept)
            block = b"\n".join(kept)
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        return split_prefixes(block)


def _text(error: re2.error) -> str:
    detail = error.args[0] if error.args else str(error)
    return detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
