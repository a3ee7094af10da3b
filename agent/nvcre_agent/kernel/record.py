"""One record of /dev/kmsg as a value: `priority,sequence,microseconds,flags[,...];text` and its KEY=VALUE lines.

Format: https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg. Pure; reading the device is kmsg.py.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

MAX_TEXT = 4096  # the kernel's own limit for one message is about 1 KB; more is somebody's noise
_HEADER = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,20}),[^;]{0,256};")
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


class MalformedRecordError(ValueError):
    """Not a kmsg record: no header, or text that is mostly not text."""


@dataclass(frozen=True, slots=True)
class Record:
    priority: int
    sequence: int
    microseconds: int  # since boot, of the kernel's own clock
    text: str  # un-escaped; may have several lines
    tags: Mapping[str, str]

    @property
    def from_kernel(self) -> bool:
        """A process that writes to /dev/kmsg cannot set facility 0, so any other facility may be forged."""
        return self.priority >> 3 == 0


def parse_record(raw: bytes) -> Record:
    """Read one record. Raises MalformedRecordError; the caller counts and goes on."""
    header = _HEADER.match(raw[:320])
    if header is None:
        raise MalformedRecordError(f"no kmsg header in {raw[:40]!r}")
    first, _, rest = raw[header.end() : header.end() + 2 * MAX_TEXT].partition(b"\n")
    text = _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), first)[:MAX_TEXT].decode("utf-8", "replace")
    tags = {}
    for line in rest.split(b"\n") if rest else ():
        key, equals, value = line.decode("utf-8", "replace").partition("=")
        if equals and key.startswith(" "):
            tags[key[1:]] = value
    return Record(int(header[1]), int(header[2]), int(header[3]), text, tags)
