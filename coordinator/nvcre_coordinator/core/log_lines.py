"""The kubelet's line prefix: an RFC 3339 time (Z or a numeric offset) and one space, when timestamps are asked for.

A line without a valid prefix is returned unchanged and without a time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_PREFIX = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")
_PREFIXES = re.compile(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) ", re.MULTILINE)


def split_prefix(line: str) -> tuple[datetime | None, str]:
    match = _PREFIX.match(line)
    if match is None:
        return None, line
    zone = "+00:00" if match[3] == "Z" else match[3]
    try:
        time = datetime.fromisoformat(f"{match[1]}.{(match[2] or '0')[:6].ljust(6, '0')}{zone}")
    except ValueError:
        return None, line
    return time.astimezone(UTC), line[match.end() :]


def split_prefixes(block: bytes) -> bytes:
    """A block of lines without their prefixes; a block whose first line has none is returned as it is."""
    return block if _PREFIXES.match(block) is None else _PREFIXES.sub(b"", block)
