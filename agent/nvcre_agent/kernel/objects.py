"""Log entries that are objects: the journal's JSON, container runtimes, log shippers and stores, logfmt.

Decides which field is the kernel's text and whether the kernel wrote it. Every product names its fields in its own way,
so names are compared without case and leading underscores, and a nested field by its last word. Nothing here knows
whole lines (saved.py) or fields on lines of their own (fields.py).
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from nvcre_agent.kernel.envelope import Clock, Line, Stamp, Writer, unwrap

MAX_TEXT = 64 * 1024
MAX_DEPTH = 8
MAX_FIELDS = 256

# By preference. `log` may also be an object with the file's name, `output` is a serial console's whole text.
TEXTS = ("message", "msg", "log", "textpayload", "short_message", "line", "raw", "output", "stringvalue")
_IDENTIFIERS = ("syslog_identifier", "identifier", "ident", "appname", "app_name", "programname", "syslogtag")
_LOOSE_IDENTIFIERS = ("tag", "program", "app", "process")  # somebody's label, unless it says kernel
_FACILITIES = ("syslog_facility", "facility", "fac")
_TIMES = ("realtime_timestamp", "time", "@timestamp", "timestamp", "ts", "date")
_KMSG_INPUT = {"sec", "usec", "sequence"}  # fluent-bit's kmsg input, which does not keep the facility
NAMES = frozenset((*TEXTS, *_IDENTIFIERS, *_LOOSE_IDENTIFIERS, *_FACILITIES, *_TIMES, *_KMSG_INPUT, "transport", "pri"))
_NUMBERED = ("code", "name")  # {"facility": {"code": 0, "name": "kernel"}}
_RUBY = re.compile(r"\[\d{1,9}\] \S{1,128}: \[")  # fluent-bit's standard output
_LOGFMT = re.compile(r'([A-Za-z_@][\w.@-]{0,63})=("(?:[^"\\]|\\.)*"|\S*)(?: |$)')


def name_of(key: str) -> str:
    """A field's name as the tables above spell it."""
    return key.lower().lstrip("_")


def object_line(text: str) -> list[Line] | None:
    """The entries of a line that is one object; None where it is none."""
    text = text.strip("\x1e ").removeprefix("data: ").strip()
    if text.startswith("[") and _RUBY.match(text) is not None:
        text = text[text.find('{"') :].rstrip("]").replace('"=>', '":')
    if text.startswith(("{", "[{")) and text.endswith(("}", "]")):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return list(_walk(found, {}, 0))
    if "msg=" in text or "message=" in text:
        return _logfmt(text)
    return None


def entries(fields: Mapping[str, Any]) -> list[Line]:
    """The lines that the fields of one entry make, by whatever names."""
    return list(_walk(dict(fields), {}, 0))


def _logfmt(text: str) -> list[Line] | None:
    fields: dict[str, Any] = {}
    at = 0
    while at < len(text) and len(fields) < MAX_FIELDS:
        if (found := _LOGFMT.match(text, at)) is None:
            return None
        value = found[2]
        fields[found[1]] = value[1:-1].replace('\\"', '"') if value.startswith('"') else value
        at = found.end()
    return entries(fields)


def _walk(node: object, around: Mapping[str, Any], depth: int) -> Iterator[Line]:
    """Objects that have a text are entries; others may hold some, and what they say holds for those too."""
    if depth > MAX_DEPTH:
        return
    if isinstance(node, list):
        for one in node:
            if isinstance(one, list) and len(one) >= 2 and isinstance(one[0], str) and isinstance(one[1], str):
                yield from _entry(one[1], {**around, "timestamp": one[0]}, depth)  # Loki: [nanoseconds, line]
            elif isinstance(one, dict | list):
                yield from _walk(one, around, depth + 1)
        return
    if not isinstance(node, dict):
        return
    own = {name_of(key): value for key, value in list(node.items())[:MAX_FIELDS]}
    known = {**around, **_scalars(node, 0)}
    text = next((said for name in TEXTS if (said := _text(own.get(name))) is not None), None)
    if text is not None:
        yield from _entry(text, known, depth)
        return
    for value in own.values():
        if isinstance(value, dict | list):
            yield from _walk(value, known, depth + 1)


def _scalars(node: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """What the object says about itself, in nested objects too; its own fields win."""
    own: dict[str, Any] = {}
    nested: dict[str, Any] = {}
    for key, value in list(node.items())[:MAX_FIELDS]:
        name = name_of(key.rpartition(".")[2])
        if isinstance(value, dict) and depth < 3:
            inner = _scalars(value, depth + 1)
            if (number := next((inner[word] for word in _NUMBERED if word in inner), None)) is not None:
                nested.setdefault(name, number)
            nested.update({word: said for word, said in inner.items() if word not in nested})
        elif isinstance(value, str | int | float):
            own[name] = value
    return nested | own


def _entry(text: str, known: Mapping[str, Any], depth: int) -> Iterator[Line]:
    writer, stamp = _writer(known), _stamp(known)
    if writer is Writer.PROCESS:
        yield Line(writer, text, stamp)
        return
    if writer is Writer.KERNEL:
        inner = unwrap(text.lstrip())
        said = inner.text if inner.writer is Writer.KERNEL and inner.stamp is not None else text
        yield Line(writer, said, stamp)
        return
    if text.startswith("{") and depth < MAX_DEPTH and (inner_object := object_line(text)) is not None:
        yield from inner_object
        return
    lines = text.splitlines() if "\n" in text else [text]
    if len(lines) > 1 and any(unwrap(line).writer is not Writer.KERNEL for line in lines[:2] if line):
        lines = [text]
    for line in lines:
        inner = unwrap(line)
        # What a container printed is a process's word, unless it printed a kernel log.
        bare = inner.writer is Writer.NOBODY_SAYS
        yield replace(inner, writer=Writer.PROCESS if bare else inner.writer, stamp=inner.stamp or stamp)


def _text(value: object) -> str | None:
    if isinstance(value, list):  # the journal's JSON for what is not UTF-8
        if value and all(isinstance(one, int) and 0 <= one < 256 for one in value):
            return bytes(value[:MAX_TEXT]).decode("utf-8", "replace")
        return None
    return replaced(value[:MAX_TEXT].rstrip("\r\n")) if isinstance(value, str) else None


def _writer(known: Mapping[str, Any]) -> Writer:
    facility = next((str(known[name]).lower() for name in _FACILITIES if name in known), None)
    if facility is not None and facility not in ("0", "kern", "kernel"):
        return Writer.PROCESS
    who = next((str(known[name]) for name in ("transport", *_IDENTIFIERS) if name in known), facility and "kernel")
    if who is not None:
        return Writer.KERNEL if who.rstrip(":") == "kernel" else Writer.PROCESS
    if "pri" in known and "msg" in known:  # dmesg --json; a number unless --decode was given
        priority = str(known["pri"])
        return Writer.PROCESS if priority.isdigit() and int(priority) >> 3 != 0 else Writer.KERNEL
    if known.keys() >= _KMSG_INPUT or any(known.get(name) == "kernel" for name in _LOOSE_IDENTIFIERS):
        return Writer.KERNEL
    return Writer.NOBODY_SAYS


def _stamp(known: Mapping[str, Any]) -> Stamp | None:
    if known.keys() >= _KMSG_INPUT:
        return Stamp(f"{known['sec']}.{str(known['usec']).zfill(6)}", Clock.UPTIME)
    value = str(next((known[name] for name in _TIMES if name in known), ""))[:64].strip()
    if re.fullmatch(r"\d{10}(?:\d{3}|\d{6}|\d{9})?(?:\.\d{1,9})?", value):  # s, ms, us or ns since 1970
        at = datetime.fromtimestamp(int(value[:10]), UTC)
        return Stamp(f"{at:%Y-%m-%dT%H:%M:%S}Z", Clock.CALENDAR)
    if re.fullmatch(r"\d{1,9}\.\d{1,9}", value):
        return Stamp(value, Clock.UPTIME)
    return unwrap(f"{value} ").stamp if value else None


def replaced(text: str) -> str:
    """Text that was decoded with surrogateescape, or came from JSON, with replacement characters for what is none."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # half a pair, which only JSON escapes can spell
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
