"""What stands around every line of a saved file and is no part of the log: readers see what the API would have given.

A file of a node (/var/log/pods: `TIME stdout F text`; Docker: a JSON object a line) becomes lines behind the kubelet's
time.  Another prefix (docker compose, stern, journald, ts, pdsh, a wrapper's logging) is known only by what it stands
in front of: the header of nccl-tests.  Prefixes that launchers and kubectl write are lines.py's business.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator

import re2

from nvcre_logs.lines import MAX_LINE_BYTES, STAMP, plain, unwrap

HEAD_BYTES = 1 << 20
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_LONGEST_PREFIX = 200
_RUNTIME = re.compile(rb"^(" + STAMP.pattern + rb")(stdout|stderr) ([FP])(?::\S*)? ?(.*)$", re.MULTILINE)
_UNFINISHED = re.compile(rb"(?:stdout|stderr) P")
_DOCKER = (b'{"log":"', b'{"log": "')
_HEADER = re2.compile(  # `re` needs 60 ms for a head without one
    rb"# nccl-tests version |# Collective test starting: |(?:# )?nThread \d+ nGpus \d|# Using devices"
    rb"|# {1,20}(?:size {1,20}count|bytes {1,20}N) {1,20}type\b"
)
_CHANGING = re.compile(
    r"(?P<pod>\[pod/[^\]\s]+\])|(?P<digits>\d+)|(?P<blanks> +)"
    r"|(?P<name>\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b)|."
)

Source = Callable[[], Iterable[bytes]]
"""Opens the log anew and gives its chunks."""


def opened(source: Source) -> Source:
    """The same log without its envelope; the very same source where it has none."""
    head = _head(source())
    encoding = next((encoding for mark, encoding in _MARKS if head.startswith(mark)), None)
    if encoding is not None:  # a shell of Windows wrote it
        return opened(lambda: (text.encode() for text in codecs.iterdecode(source(), encoding, errors="replace")))
    take_off = _found(head)
    return source if take_off is None else lambda: _by_lines(source(), take_off())


def _head(chunks: Iterable[bytes]) -> bytes:
    head = b""
    for chunk in chunks:
        head += chunk[: HEAD_BYTES - len(head)]
        if len(head) >= HEAD_BYTES:
            break
    return head


def _found(head: bytes) -> Callable[[], Callable[[bytes], bytes]] | None:
    first = head.lstrip()
    if first.startswith(_DOCKER) and _of_docker(first.partition(b"\n")[0]) is not None:
        return lambda: _from_docker
    if _RUNTIME.match(first) is not None:
        return _from_runtime
    header = _HEADER.search(head)
    if header is None:
        return None
    start = max(head.rfind(b"\n", 0, header.start()), head.rfind(b"\r", 0, header.start())) + 1
    raw = plain(head[start : header.end()]).decode(errors="replace").removesuffix("\n")
    text = unwrap(raw).text
    prefix = text.removesuffix(header[0].decode())
    if not prefix.strip() or len(prefix) > _LONGEST_PREFIX:
        return None
    return lambda: _without(_shape(raw.removesuffix(text)), _shape(prefix))


def _by_lines(chunks: Iterable[bytes], take_off: Callable[[bytes], bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        lines, end, rest = (rest + chunk).rpartition(b"\n")
        if end:
            yield take_off(lines + end)
        if len(rest) > MAX_LINE_BYTES:  # nobody will read it
            yield rest
            rest = b""
    if rest:
        yield take_off(rest)


def _from_docker(block: bytes) -> bytes:
    found = [(_of_docker(raw), raw + b"\n") for raw in block.split(b"\n") if raw.strip()]
    return b"".join(raw if line is None else line for line, raw in found)


def _of_docker(raw: bytes) -> bytes | None:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    text, time = (line.get("log"), line.get("time")) if isinstance(line, dict) else (None, None)
    if not isinstance(text, str):
        return None
    return (f"{time} {text}" if isinstance(time, str) else text).encode(errors="replace")


def _from_runtime() -> Callable[[bytes], bytes]:
    begun: dict[bytes, bytes] = {}  # by stream, a line whose end is still to come

    def take_off(block: bytes) -> bytes:
        if not begun and _UNFINISHED.search(block) is None:
            return _RUNTIME.sub(rb"\1\4", block)
        found: list[bytes] = []
        for raw in block.removesuffix(b"\n").split(b"\n"):
            line = _RUNTIME.match(raw)
            if line is None:
                found.append(raw)
                continue
            time, stream, tag, text = line.groups()
            text = begun.pop(stream, time) + text
            if tag == b"P" and len(text) <= MAX_LINE_BYTES:
                begun[stream] = text
            else:
                found.append(text)
        return b"".join(line + b"\n" for line in found)

    return take_off


def _shape(prefix: str) -> str:
    """Of what stands in front of one line, a pattern for what stands in front of the others."""
    pattern = ""
    for part in _CHANGING.finditer(prefix):
        match part.lastgroup:
            case "pod":
                pattern += r"\[pod/[^\]\s]{1,300}\]"
            case "digits":
                pattern += r"\d+"
            case "blanks":
                pattern += " +" if part.end() < len(prefix) else " *"
            case "name":
                pattern += "[A-Z][a-z]{2}"
            case _:
                pattern += re.escape(part[0])
    return pattern


def _without(known: str, prefix: str) -> Callable[[bytes], bytes]:
    pattern = re.compile(f"^({known}){prefix}".encode(), re.MULTILINE)
    return lambda block: pattern.sub(rb"\1", plain(block))
