"""Log entries whose fields stand on lines of their own: the journal's export and verbose formats, JSON over many lines.

Reads the fields and knows where an entry ends; what they say is objects.py's. Keeps only the few fields it needs.
"""

import json
import re
from typing import Any

from nvcre_agent.kernel.envelope import Line
from nvcre_agent.kernel.objects import MAX_TEXT, NAMES, TEXTS, entries, name_of, replaced


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
    _EXPORT = re.compile(r"(?:__?[A-Z][A-Z0-9_]{1,62}|PRIORITY|MESSAGE|SYSLOG_[A-Z]{1,32})=")

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
        return cls._EXPORT.match(line) is not None or line.strip() in cls._OPENS or (cls._HEAD.match(line) is not None)

    def entries(self) -> list[Line]:
        return entries(self._fields)

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
        if name_of(found[1]) in NAMES:
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
        if name_of(key) not in NAMES:
            return
        if name_of(key) in TEXTS:
            self.number = number
        self._fields[key] = replaced(value[:MAX_TEXT]) if isinstance(value, str) else value
