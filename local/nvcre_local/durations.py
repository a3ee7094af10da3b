"""Durations as people write them in scenarios and on the command line: 300ms, 30s, 5m, 1h, 1h30m."""

from __future__ import annotations

import re

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


def parse_duration(text: str) -> float:
    """Seconds.  Raises ValueError."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write for example 30s, 5m, 1h or 1h30m")
    return sum(float(number) * _MILLISECONDS[unit] for number, unit in parts) / 1000
