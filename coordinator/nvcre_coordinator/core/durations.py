"""Go duration strings (`30s`, `1h30m`, `1.5h`), as the CRDs hold them."""

from __future__ import annotations

import re
from datetime import timedelta

_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = timedelta(days=365)
DEFAULT_SAMPLE_INTERVAL = timedelta(seconds=60)


def parse_go_duration(text: str) -> timedelta:
    """Raises ValueError with the offending text; cut at a year, far beyond anything we wait for."""
    if text == "0":
        return timedelta(0)
    position, seconds = 0, 0.0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            break
        seconds += float(part[1]) * _SECONDS[part[2]]
        position = part.end()
    if not text or position != len(text) or len(text) > 64:
        raise ValueError(f"{text[:64]!r} is not a Go duration such as 30s, 5m or 1h30m")
    return min(timedelta(seconds=min(seconds, _LONGEST.total_seconds())), _LONGEST)


def sample_interval(text: str | None) -> timedelta:
    """Of a measurement; the default for what is absent or no duration (the CRD's pattern refuses the latter)."""
    if not text:
        return DEFAULT_SAMPLE_INTERVAL
    try:
        return parse_go_duration(text)
    except ValueError:
        return DEFAULT_SAMPLE_INTERVAL


def go_duration(value: timedelta) -> str:
    """As Go prints it, for whole seconds: 3s, 5m0s, 1h0m0s."""
    total = int(value.total_seconds())
    hours, rest = divmod(total, 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
