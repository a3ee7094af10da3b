"""Durations as people write them: 30s, 5m, 1h, 1h30m."""

from __future__ import annotations

import re

from nvcre_cli.problems import UsageProblem

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds. Raises UsageProblem."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageProblem(f"{text!r} is not a duration; write for example 30s, 5m, 1h or 1h30m")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        raise UsageProblem(f"{text!r}: a timeout must be longer than nothing")
    return seconds


def show_duration(seconds: float) -> str:
    """`75` -> `1m15s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
