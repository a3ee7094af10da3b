"""Reads the text of nccl-tests, any generation since 2019, as a stream of bytes.

    parser = NcclOutputParser()
    parser.feed(chunk)            # any number of times, cut anywhere
    log = parser.finish()         # NcclLog: one NcclTest a table, in order of appearance

A row is read from its right end (the last eight tokens are two sides of time, algbw, busbw and #wrong): the left
columns differ between tests and years.  Wrong elements come from the cells: the footer counts failing checks.
Times in microseconds, bandwidths in GB/s, sizes in bytes.  Format facts: nccl-tests src/common.cu, releases 2.0 to
2.20.  It decides what the text says, not whether the figures are good; memory is bounded whatever comes in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from nvcre_logs.nccl_log import Device, NcclLog, NcclTest, Row, Side

MAX_LINE_BYTES = 64 * 1024
MAX_TESTS = 64
MAX_ROWS = 4096  # per test; -N 0 prints for ever
MAX_FAILURES = 16
MAX_FAILURE_CHARS = 256
MAX_RANKS = 65536

# What launchers and kubectl put before a line: [1,0]<stdout>:  and  [pod/name/container]
_PREFIX = re.compile(r"(?:\[\d+,\d+\]<std(?:out|err)>: ?|\[pod/[^\]\s]{1,300}\] ?)")
_BREAK = re.compile(rb"\r\n|\n|\r")
_ESCAPE = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")
_VERSION = re.compile(r"# nccl-tests version (\S{1,64})(?:.*\bnccl-library=(\d{1,9}))?")
_BANNER = re.compile(r"# Collective test starting: ([a-z_0-9]{1,64}?)_perf\b")
_CONCLUDED = re.compile(r"# Collective test concluded\b")
_PARAMETERS = re.compile(r"#?\s*nThread\s+\d+")
_DEVICE = re.compile(
    r"#\s+Rank\s+(\d{1,7})\s+(?:Group\s+\d+\s+)?Pid\s+(\d{1,10}) on\s+(\S{1,255}) device\s+(\d{1,5})"
    r" \[([0-9a-fA-Fx:.]{1,20})\] (.{1,128})"
)
_HEADING = re.compile(r"#\s+size\s+count\s+type\b")
_BOUNDS = re.compile(r"#?\s*Out of bounds values : (\d{1,12}) (OK|FAILED)")
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*: (\S+)")
_COMMAND = re.compile(r"(?:^|[\s/])([a-z_0-9]{1,64}?)_perf(?:_mpi)?(?=\s|$)")
_FAILURE = re.compile(  # every branch starts at a fixed place and is bounded: a search over a hostile line stays linear
    r"(?<!\S)(?P<host>\S{1,255}): Test (?P<kind>CUDA failure|NCCL failure|timeout)\b"
    r"|\.\. (?P<trace_host>\S{1,255}) pid \d{1,10}: Test failure\b"
    r"|(?P<gpus>Invalid number of GPUs)"
)
_SIDE_TOKENS = 8
_TYPES = frozenset(  # -d of nccl-tests 2.19
    ("int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2")
)


class NcclOutputParser:
    def __init__(self) -> None:
        self._tail = b""
        self._skipping = False  # inside an oversized line
        self._tests: list[NcclTest] = []
        self._test: NcclTest | None = None
        self._command_name: str | None = None
        self._torn: list[str] | None = None  # the left cells of a row that another line tore
        self._oversized = self._undecodable = 0
        self._last_words = ""

    def feed(self, chunk: bytes) -> None:
        # A CR at the very end may be half of a CRLF: it stays until the next byte is known.
        *lines, self._tail = _BREAK.split(self._tail + chunk) if not chunk.endswith(b"\r") else self._hold_back(chunk)
        for line in lines:
            self._line(line)
        if len(self._tail) > MAX_LINE_BYTES:
            if not self._skipping:
                self._oversized += 1
            self._skipping = True
            self._tail = b""

    def _hold_back(self, chunk: bytes) -> list[bytes]:
        *lines, last = _BREAK.split(self._tail + chunk[:-1])
        return [*lines, last + b"\r"]

    def finish(self) -> NcclLog:
        if self._tail:
            self._line(self._tail.rstrip(b"\r"))
            self._tail = b""
        return NcclLog(tuple(self._tests), self._oversized, self._undecodable, self._last_words)

    def _line(self, raw: bytes) -> None:
        if self._skipping:
            self._skipping = False
            return
        if len(raw) > MAX_LINE_BYTES:
            self._oversized += 1
            return
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            self._undecodable += 1
            text = raw.decode(errors="replace")
        if "\x1b" in text:
            text = _ESCAPE.sub("", text)
        while (prefix := _PREFIX.match(text)) is not None:
            text = text[prefix.end() :]
        self._read(text)

    def _read(self, text: str) -> None:
        stripped = text.lstrip()
        if stripped[:1].isdigit() and self._row(stripped.split()):
            return
        if stripped.startswith(("#", "nThread", "Out of bounds")):
            self._comment(text.strip())
        elif (failure := _FAILURE.search(text)) is not None:
            self._failure(failure, stripped)
        else:
            if (command := _COMMAND.search(text)) is not None and "NCCL" not in text:
                self._command_name = command[1]
            self._last_words = stripped.rstrip()[:MAX_FAILURE_CHARS] or self._last_words

    def _comment(self, text: str) -> None:
        if (version := _VERSION.match(text)) is not None:
            test = self._begin(lambda known: known.version is not None or known.name is not None)
            test.version = version[1]
            test.library_version = int(version[2]) if version[2] else None
        elif (banner := _BANNER.match(text)) is not None:
            self._begin(lambda known: known.name is not None).name = banner[1]
        elif _PARAMETERS.match(text):
            self._begin(lambda known: known.has_parameters).has_parameters = True
        elif (device := _DEVICE.match(text)) is not None:
            test = self._begin(lambda known: False)
            if len(test.devices) < MAX_RANKS:
                rank, pid, host, index, pci, product = device.groups()
                test.devices.append(Device(int(rank), int(pid), host, int(index), pci, product.strip()))
        elif _HEADING.match(text):
            self._begin(lambda known: False).has_error_column = bool(re.search(r"\berror\b", text))
        elif self._test is not None:
            self._footer(self._test, text)

    def _footer(self, test: NcclTest, text: str) -> None:
        if (bounds := _BOUNDS.match(text)) is not None:
            test.out_of_bounds, test.out_of_bounds_ok = int(bounds[1]), bounds[2] == "OK"
            if self._torn is not None:
                test.lost_rows += 1
                self._torn = None
        elif (average := _AVERAGE.match(text)) is not None:
            test.avg_busbw_gbps = _float(average[1])
        elif _CONCLUDED.match(text):
            test.concluded = True

    def _begin(self, is_another: Callable[[NcclTest], bool]) -> NcclTest:
        """The test that this header line belongs to: a new one where the current one is past its header."""
        test = self._test
        if test is None or test.rows or test.out_of_bounds is not None or test.failures or is_another(test):
            test = NcclTest(name=self._command_name)
            self._command_name = None
            self._torn = None
            if len(self._tests) < MAX_TESTS:
                self._tests.append(test)
            self._test = test
        return test

    def _failure(self, failure: re.Match[str], text: str) -> None:
        test = self._test or self._begin(lambda known: False)
        reason = _failure_reason(failure, text)
        if reason is not None and reason not in test.failure_reasons:
            test.failure_reasons.append(reason)
        host = failure["host"] or failure["trace_host"]
        if host and host not in test.suspect_hosts and len(test.suspect_hosts) < MAX_FAILURES:
            test.suspect_hosts.append(host[:MAX_FAILURE_CHARS])
        if len(test.failures) < MAX_FAILURES:
            test.failures.append(text[:MAX_FAILURE_CHARS])

    def _row(self, tokens: list[str]) -> bool:
        """True when the line was a row, a part of one, or can be nothing else."""
        test = self._test
        if test is None:
            return False
        if self._torn is not None and len(tokens) == _SIDE_TOKENS and _sides(tokens, test) is not None:
            tokens, self._torn = [*self._torn, *tokens], None
        row = _row(tokens, test)
        if row is None:
            left = _left_cells(tokens)
            if left is None or left[2] not in _TYPES:
                return False
            if self._torn is not None:
                test.lost_rows += 1
            # The row is printed without a line end, so the intruder sticks to the last cell: -1n1:700:760
            glued = len(left) == 4 and len(tokens) > 4 and tokens[4].startswith("-1")
            self._torn = [*left, "-1"] if glued else left
            return True
        if self._torn is not None:
            test.lost_rows += 1
            self._torn = None
        if len(test.rows) < MAX_ROWS:
            test.rows.append(row)
        else:
            test.dropped_rows += 1
        return True


def _failure_reason(failure: re.Match[str], text: str) -> str | None:
    match failure["kind"]:
        case "NCCL failure":
            return "nccl_error"
        case "CUDA failure":
            return "cuda_oom" if "out of memory" in text else "cuda_error"
        case "timeout":
            return "timeout"
    return "gpu_missing" if failure["gpus"] else None  # a line of the call trace has no reason of its own


def _row(tokens: list[str], test: NcclTest) -> Row | None:
    match len(tokens):
        case 15:  # -S appends date and time
            tokens = tokens[:13]
        case 21:  # -I puts four cells behind each #wrong
            tokens = [*tokens[:9], *tokens[13:17]]
        case 11 | 12 | 13:
            pass
        case _:
            return None
    left = _left_cells(tokens[:-_SIDE_TOKENS])
    sides = _sides(tokens[-_SIDE_TOKENS:], test)
    if left is None or sides is None or len(left) != len(tokens) - _SIDE_TOKENS:
        return None
    size, count, kind, *rest = left
    redop = next((cell for cell in rest if not _is_number(cell)), None)
    root = next((int(cell) for cell in rest if _is_number(cell)), None)
    return Row(int(size), int(count), kind, redop, root, *sides)


def _left_cells(tokens: list[str]) -> list[str] | None:
    """size, count, type and, where the table has them, redop and root; None where the line does not begin so."""
    if len(tokens) < 3 or not (tokens[0].isdecimal() and tokens[1].isdecimal()):
        return None
    if max(len(tokens[0]), len(tokens[1])) > 20 or not tokens[2][:1].isalpha() or len(tokens[2]) > 16:
        return None
    rest = list(tokens[:3])
    if len(tokens) > 3 and tokens[3].isalpha() and len(tokens[3]) <= 8:
        rest.append(tokens[3])
    if len(tokens) > len(rest) and _is_number(tokens[len(rest)]):
        rest.append(tokens[len(rest)])
    return rest


def _sides(tokens: list[str], test: NcclTest) -> tuple[Side, Side] | None:
    numbers = [None if cell == "N/A" else _float(cell) for cell in tokens]
    out, inp = numbers[:4], numbers[4:]
    if any(value is None for value in (*out[:3], *inp[:3])):
        return None
    if any(cell != "N/A" and value is None for cell, value in zip(tokens, numbers, strict=True)):
        return None
    return _side(out, test.has_error_column), _side(inp, test.has_error_column)


def _side(cells: list[float | None], is_error: bool) -> Side:
    time_us, algbw, busbw, last = cells
    assert time_us is not None
    assert algbw is not None
    assert busbw is not None
    if is_error:
        return Side(time_us, algbw, busbw, error=last)
    # %g: a million wrong elements print as 1e+06
    wrong = None if last is None or not math.isfinite(last) else max(0, round(last))
    return Side(time_us, algbw, busbw, wrong=wrong)


def _float(cell: str) -> float | None:
    if len(cell) > 32 or "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def _is_number(token: str) -> bool:
    return token.removeprefix("-").isdecimal() and len(token) <= 11
