"""Log entries that are named fields instead of a line: the journal's json, export and verbose formats, dmesg --json,
and the JSON lines of container runtimes and log shippers.

Decides which field is the kernel's text and whether the kernel wrote it. Keeps only the few fields it needs.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from nvcre_agent.kernel.envelope import Clock, Line, Stamp, Writer, unwrap

MAX_TEXT = 16 * 1024
_TEXT_KEYS = ("MESSAGE", "message", "msg", "log", "textPayload")
_WHO_KEYS = ("_TRANSPORT", "SYSLOG_FACILITY", "SYSLOG_IDENTIFIER", "fac", "pri")
_TIME_KEYS = ("__REALTIME_TIMESTAMP", "time", "@timestamp", "timestamp")
_KEPT = frozenset((*_TEXT_KEYS, *_WHO_KEYS, *_TIME_KEYS))


def json_line(text: str) -> Line | None:
    """A line that is one JSON object (journalctl -o json, json-sse and json-seq, docker, shippers); else None."""
    text = text.strip("\x1e ").removeprefix("data: ")
    if not (text.startswith("{") and text.rstrip().endswith("}")):
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    inner = fields.get("jsonPayload")
    return entry({**fields, **inner} if isinstance(inner, dict) else fields)


def entry(fields: Mapping[str, Any]) -> Line | None:
    """The line that the fields make; None where none of them is a text."""
    text = next((said for key in _TEXT_KEYS if (said := _text(fields.get(key))) is not None), None)
    if text is None:
        return None
    stamp = _stamp(fields)
    writer = _writer(fields)
    if writer is not Writer.NOBODY_SAYS:
        return Line(writer, text, stamp)
    inner = unwrap(text)
    # What a container printed is a process's word, unless it printed a kernel log.
    return Line(
        Writer.PROCESS if inner.writer is Writer.NOBODY_SAYS else inner.writer, inner.text, inner.stamp or stamp
    )


def _text(value: object) -> str | None:
    if isinstance(value, list):  # the journal's JSON for what is not UTF-8
        if all(isinstance(one, int) and 0 <= one < 256 for one in value):
            return bytes(value[:MAX_TEXT]).decode("utf-8", "replace")
        return None
    return replaced(value[:MAX_TEXT].rstrip("\n")) if isinstance(value, str) else None


def _writer(fields: Mapping[str, Any]) -> Writer:
    facility = str(fields.get("SYSLOG_FACILITY", "0"))
    transport, identifier = fields.get("_TRANSPORT"), fields.get("SYSLOG_IDENTIFIER")
    if transport is not None:
        return Writer.KERNEL if transport == "kernel" and facility == "0" else Writer.PROCESS
    if identifier is not None:
        return Writer.KERNEL if identifier == "kernel" and facility == "0" else Writer.PROCESS
    if "msg" in fields and ("fac" in fields or "pri" in fields):  # dmesg --json, with and without --decode
        priority = str(fields.get("pri", "0"))
        by_number = priority.isdigit() and int(priority) >> 3 != 0
        return Writer.KERNEL if fields.get("fac", "kern") == "kern" and not by_number else Writer.PROCESS
    return Writer.NOBODY_SAYS


def _stamp(fields: Mapping[str, Any]) -> Stamp | None:
    value = str(next((fields[key] for key in _TIME_KEYS if key in fields), ""))[:64]
    if "__REALTIME_TIMESTAMP" in fields and value.isdecimal():
        at = datetime.fromtimestamp(min(int(value[:17]) / 1e6, 2e11), UTC)
        return Stamp(f"{at:%Y-%m-%dT%H:%M:%S}Z", Clock.CALENDAR)
    if re.fullmatch(r" *\d{1,12}\.\d{1,9}", value):
        return Stamp(value.strip(), Clock.UPTIME)
    return unwrap(f"{value} ").stamp if value else None


def replaced(text: str) -> str:
    """Text that was decoded with surrogateescape, or came from JSON, with replacement characters for what is none."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # half a pair, which only JSON escapes can spell
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class FieldBlock:
    """An entry whose fields stand on lines of their own; feed it lines until it is complete.

    It begins with a line for which `begins` is true. `feed` answers False for a line that is not of the entry.
    Binary values need the bytes as they were: lines come decoded with surrogateescape.
    """

    _HEAD = re.compile(r"[^\W\d_]{2,4} (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,9} \S{1,8}) \[s=")  # verbose
    _FIELD = re.compile(r"(?: {4})?([A-Z_][A-Z0-9_]{0,63})=(.*)", re.DOTALL)
    _BINARY = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
    _JSON_FIELD = re.compile(r'\s*"([\w@.-]{1,64})"\s*:\s*(.+?),?\s*', re.DOTALL)
    _OPENS = ("{", "[", "[{", "},{", '"dmesg": [')

    def __init__(self, number: int, line: str) -> None:
        self._fields: dict[str, Any] = {}
        self.number = number  # of the line that has the text
        self.complete = False
        self._json = line.strip() in self._OPENS
        self._binary_key = ""
        self._binary = ""
        self._binary_left: int | None = None  # bytes of the value that are still to come; None: its length is not known
        self._binary_number = 0
        self._pending = ""
        if (head := self._HEAD.match(line)) is not None:
            self._fields["timestamp"] = head[1]
        else:
            self.feed(number, line)

    @classmethod
    def begins(cls, line: str) -> bool:
        return (
            line.startswith(("__CURSOR=", "__REALTIME_TIMESTAMP="))
            or line.strip() in cls._OPENS
            or (cls._HEAD.match(line) is not None)
        )

    def entry(self) -> Line | None:
        return entry(self._fields)

    def feed(self, number: int, raw: str) -> bool:
        if self._json:
            return self._feed_json(number, raw)
        if self._binary_key:
            self._feed_binary(number, raw)
            return True
        return self._feed_journal(number, raw)

    def _feed_journal(self, number: int, raw: str) -> bool:
        line = raw.replace("\0", "")
        if (found := self._FIELD.fullmatch(line)) is not None:
            self._keep(number, found[1], found[2])
            return True
        if not line:
            self.complete = True
            return True
        if self._BINARY.fullmatch(line) is not None:
            self._binary_key, self._binary, self._binary_left = line, "", None
            return True
        if line.startswith("        ") and "MESSAGE" in self._fields:  # verbose, a message of several lines
            if len(self._fields["MESSAGE"]) < MAX_TEXT:
                self._keep(self.number, "MESSAGE", f"{self._fields['MESSAGE']}\n{line.strip()}")
            return True
        self.complete = True
        return False

    def _feed_json(self, number: int, raw: str) -> bool:
        line = raw.strip().replace("\0", "")
        if line in self._OPENS and not self._fields:
            return True
        if line.startswith(("}", "]")):
            self.complete = True
            return line != "},{"
        if (found := self._JSON_FIELD.fullmatch(line)) is None:
            self.complete = True
            return False
        if found[1] in _KEPT:
            try:
                self._keep(number, found[1], json.loads(found[2]))
            except (ValueError, RecursionError):
                return True
        return True

    def _feed_binary(self, number: int, raw: str) -> None:
        """KEY, then eight bytes of length (least first), the value, and a newline, whatever the value contains."""
        part = self._pending + raw + "\n"
        if self._binary_left is None:
            self._pending = part
            if len(part) <= 8:  # a newline among the bytes of the length
                return
            self._binary_left = 1 + sum((ord(one) & 0xFF) << (8 * at) for at, one in enumerate(part[:8]))
            part = part[8:]
            self._binary_number = number
        self._pending = ""
        self._binary_left -= len(part.encode("utf-8", "surrogateescape"))
        if len(self._binary) < MAX_TEXT:
            self._binary += part
        if self._binary_left <= 0:
            self._keep(self._binary_number, self._binary_key, self._binary.removesuffix("\n"))
            self._binary_key = ""

    def _keep(self, number: int, key: str, value: object) -> None:
        if key not in _KEPT:
            return
        if key in _TEXT_KEYS:
            self.number = number
        self._fields[key] = replaced(value[:MAX_TEXT]) if isinstance(value, str) else value
