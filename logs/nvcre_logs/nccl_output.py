"""Reads the text of nccl-tests, any generation since 2017, as a stream of bytes.

    parser = NcclOutputParser()
    parser.feed(chunk)            # any number of times, cut anywhere
    log = parser.finish()         # NcclLog: one NcclTest a table, in order of appearance

A log may hold several tables one after the other, those of several pods (kubectl --prefix), and those of processes that
were meant to be one run and did not know of each other (a binary without MPI, started by mpirun): nccl_tables.py keeps
them apart.  Wrong elements come from the cells: the footer counts failing checks.  Format facts: nccl-tests
src/common.cu and src/util.cu, releases 2.0 to 2.20.  It decides what the text says, not whether the figures are good;
memory is bounded whatever comes in.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import re2

from nvcre_logs.lines import LineFeed, plain, unwrap
from nvcre_logs.nccl_log import COLLECTIVES, Device, NcclLog
from nvcre_logs.nccl_row import Figures, begin, layout_of, without_heading
from nvcre_logs.nccl_tables import Tables

MAX_FAILURE_CHARS = 256
LAST_WORDS_BYTES = 64 * 1024  # of the end of the log: there they are looked for
_LEAST_ROW = 11  # tokens

_VERSION = re.compile(r"# nccl-tests version (\S{1,64})(?:.*\bnccl-library=(\d{1,9}))?")
_BANNER = re.compile(r"# Collective test (starting|concluded): ([a-z_0-9]{1,64}?)_perf")
_PARAMETERS = re.compile(r"#?\s*nThread\s+(\d{1,6})\b")
_PARAMETER = re.compile(r"\b(nGpus|minBytes|maxBytes|step:)\s*(\d{1,20})(\(factor\)|\(bytes\))?")
_REDUCED = re.compile(r"# Reducing maxBytes to (\d{1,20}) ")
_DEVICE = re.compile(
    r"#\s+Rank\s+(\d{1,7})\s+(?:Group\s+(?P<group>\d{1,7})\s+)?(?:Pid\s+(?P<pid>\d{1,10})\s+)?on\s+(?P<host>\S{1,255})"
    r"\s+device\s+(?P<index>\d{1,5})\s+\[(?P<pci>[0-9a-fA-Fx:.]{1,20})\]\s*(?P<product>.{0,128})"
)
_CUT_DEVICE = re.compile(r"(?:#\s+R.{0,300})?\.\.\.$")
_HEADING = re.compile(r"#\s+(?:size\s+count|bytes\s+N)\s+type\b")
_BOUNDS = re.compile(r"#?\s*Out of bounds values\s*: (\d{1,12}) (OK|FAILED)")
_AVERAGE = re.compile(r"#?\s*Avg bus bandwidth\s*: (\S{1,32})(?:\s+(OK|FAILED))?")
_COMMAND = re.compile(rf"(?:^|[\s/'\"=])({'|'.join(COLLECTIVES)})_perf(?:_[a-z]{{1,16}})?(?=[\s'\",\]]|$)")
_FAILURE = re.compile(  # every branch starts at a fixed place and is bounded: a search over a hostile line stays linear
    r"(?<!\S)(?P<host>\S{1,255}): Test (?P<kind>CUDA failure|NCCL failure|timeout)\b"
    r"|\.\. (?P<trace_host>\S{1,255}) pid \d{1,10}: Test failure\b"
    r"|(?P<gpus>Invalid number of GPUs)"
    r"|(?P<time>DUE TO TIME LIMIT)"
    r"|(?P<reach>ssh: connect to host \S{1,255} port|ssh: Could not resolve hostname|Host key verification failed"
    r"|lost communication with a remote daemon|unable to reliably start one or more daemons)"
)
_NETWORK = re.compile(
    r"network error|remote process exited|NET/|\bib[vf]?_|[Ss]ocket|No route to host|[Uu]nreachable"
    r"|[Cc]onnect(?:ion)?\b.{0,200}(?:refused|timed out|reset|closed)"
)
_NO_GPU = re.compile(r"no CUDA-capable device|invalid device ordinal")
_REPORT = ("#", "nThread", "Out of bounds", "Avg bus", "...")
# Every line that can change what is known of the tables, and few others; bytes that are no ASCII may be blanks.
_INTERESTING = (
    r"(?m)^(?: *(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) "
    r"|\[pod/[^\]\s]+\] ?|\[[^\]\s]+\](?:<std(?:out|err)>)?: ?|\d{1,7}: ))*"
    r"[\x00-\x20]*(?:\d+(?:[A-Za-z_\[(.<#>\x00-\x20]|--|$)|[\x80-\xff]|N/A|inf|nan|#|nThread"
    r"|Out of bounds|Avg bus|\.\.\.)"
    r"|: Test (?:CUDA failure|NCCL failure|timeout)|: Test failure|Invalid number of GPUs|DUE TO TIME LIMIT"
    r"|ssh: connect to host|ssh: Could not resolve|Host key verification failed|lost communication with a remote"
    r"|unable to reliably start|_perf"
)


def _compile_interesting() -> re2.Pattern:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.log_errors = False
    return re2.compile(_INTERESTING.encode(), options)


_SEARCH_INTERESTING = _compile_interesting().search


class NcclOutputParser:
    """With `on_rows`, that hears of every row as it is finished, and none is kept."""

    def __init__(self, on_rows: Callable[[list[Figures]], None] | None = None) -> None:
        self._lines = LineFeed()
        self._tables = Tables(on_rows)
        self._undecodable = 0
        self._end = b""  # whole lines
        self._row = b""  # the last whole one

    def feed(self, chunk: bytes) -> None:
        self.read(self._lines.feed(chunk))

    def finish(self) -> NcclLog:
        self.read(self._without_cut_cell(self._lines.finish()))
        return NcclLog(self._tables.finish(), self._lines.skipped_lines, self._undecodable, _last_words(self._end))

    def _without_cut_cell(self, rest: bytes) -> bytes:
        """The text behind the last line end: a row that is shorter than the one before it was cut in its last cell."""
        text = unwrap(rest).text.split()
        if len(text) < _LEAST_ROW or not text[0].isdecimal() or 0 < len(self._row.rstrip()) <= len(rest.rstrip()):
            return rest
        return rest.rstrip().rpartition(b" ")[0]

    def read(self, block: bytes) -> None:
        """Whole lines, as LineFeed cuts them: most say nothing about a table and are passed over together."""
        block = plain(block)
        self._undecodable += _undecodable(block)
        self._end = block if len(block) >= LAST_WORDS_BYTES else (self._end + block)[-LAST_WORDS_BYTES:]
        position, size = 0, len(block)
        while position < size and (hit := _SEARCH_INTERESTING(block, position)) is not None:
            start = block.rfind(b"\n", position, hit.start()) + 1 or position
            position, row = self._tables.plain_rows(block, start, one=start != position)
            if row:
                self._row = row
            else:
                end = block.find(b"\n", start)
                position = end + 1
                if not _is_chatter(raw := block[start:end]):
                    self._line(raw)

    def _line(self, raw: bytes) -> None:
        line = unwrap(raw)
        self._tables.turn_to(line.pod, line.rank)
        stripped = line.text.strip()
        if stripped[:1].isdigit() or stripped.startswith(("N/A", "inf", "nan")):
            tokens = stripped.split()
            behind = self._tables.row(tokens, raw)
            if behind is not None and not behind:
                self._row = raw if len(tokens) >= _LEAST_ROW else self._row
                return
            stripped = behind if behind is not None else stripped
        elif stripped.startswith(_REPORT):
            self._report(stripped)
            return
        if (failure := _FAILURE.search(stripped)) is not None:
            self._failure(failure, stripped)
        elif "NCCL" not in stripped and (command := _COMMAND.search(stripped)) is not None:
            self._tables.command(command[1])

    def _report(self, text: str) -> None:
        """The lines of nccl-tests' own report but its rows."""
        if (version := _VERSION.match(text)) is not None:
            test = self._tables.header("version")
            test.version, test.library_version = version[1], int(version[2]) if version[2] else None
        elif (banner := _BANNER.match(text)) is not None:
            if banner[1] == "starting":
                self._tables.name(banner[2])
            else:
                self._tables.conclude(banner[2])
        elif (threads := _PARAMETERS.match(text)) is not None:
            self._parameters(int(threads[1]), text)
        elif (reduced := _REDUCED.match(text)) is not None:
            self._tables.header("maximum").max_bytes = int(reduced[1])
        elif (device := _DEVICE.match(text)) is not None:
            pid = int(device["pid"]) if device["pid"] else None
            group, index = int(device["group"] or 0), int(device["index"])
            product = device["product"].strip()
            self._tables.device(
                Device(int(device[1]), pid, device["host"], index, device["pci"], product, group),
                cut=product.endswith("..."),
            )
        elif _CUT_DEVICE.match(text):
            self._tables.cut_devices()
        elif _HEADING.match(text):
            self._tables.heading(layout_of(text))
        elif (bounds := _BOUNDS.match(text)) is not None:
            self._tables.bounds(int(bounds[1]), ok=bounds[2] == "OK")
        elif (average := _AVERAGE.match(text)) is not None:
            self._tables.average(_float(average[1]), failed=average[2] == "FAILED")

    def _parameters(self, threads: int, text: str) -> None:
        test = self._tables.header("parameters")
        test.threads = threads
        for name, number, unit in _PARAMETER.findall(text):
            match name, unit:
                case "nGpus", _:
                    test.gpus_per_process = threads * int(number)
                case "maxBytes", _:
                    test.max_bytes = int(number)
                case "step:", "(factor)":
                    test.step_factor = int(number)
                case "step:", "(bytes)":
                    test.step_bytes = int(number)

    def _failure(self, failure: re.Match[str], text: str) -> None:
        host = failure["host"] or failure["trace_host"] or ""
        self._tables.failure(text[:MAX_FAILURE_CHARS], self._failure_reason(failure, text), host[:MAX_FAILURE_CHARS])

    @staticmethod
    def _failure_reason(failure: re.Match[str], text: str) -> str | None:
        reason: str | None = None  # a line of the call trace has none of its own
        match failure["kind"]:
            case "NCCL failure" | "CUDA failure" if "out of memory" in text:
                reason = "cuda_oom"
            case "NCCL failure":
                reason = "network_error" if _NETWORK.search(text) else "nccl_error"
            case "CUDA failure":
                reason = "gpu_missing" if _NO_GPU.search(text) else "cuda_error"
            case "timeout":
                reason = "timeout"
            case _ if failure["gpus"]:
                reason = "gpu_missing"
            case _ if failure["reach"]:
                reason = "network_error"
            case _ if failure["time"]:
                reason = "timeout"
        return reason


def _is_chatter(raw: bytes) -> bool:
    """Most of a log with NCCL_DEBUG=INFO; a row that such a line tore begins with a blank or a number."""
    return b" NCCL INFO " in raw and raw[:1].isalpha()


def _undecodable(block: bytes) -> int:
    """Lines that are not UTF-8."""
    if block.isascii():
        return 0
    lines = (raw.decode(errors="replace") for raw in block.split(b"\n") if not _is_chatter(raw))
    return sum("\ufffd" in line for line in lines)


def _last_words(end: bytes) -> str:
    """The last line that is neither of the report nor of NCCL's chatter."""
    for raw in reversed(end.split(b"\n")):
        text = "" if _is_chatter(raw) else unwrap(raw).text.strip()
        tokens = text.split()
        if text and not text.startswith(_REPORT) and begin(tokens, without_heading(tokens)) is None:
            return text[:MAX_FAILURE_CHARS]
    return ""


def _float(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
