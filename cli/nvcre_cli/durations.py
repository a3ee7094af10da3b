"""How long to wait, as a person says it on the command line, and how long it took."""

from __future__ import annotations

from nvcre_local.durations import parse_duration

from nvcre_cli.problems import UsageProblem


def parse_timeout(text: str) -> float:
    """Seconds. Raises UsageProblem."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageProblem(f"--timeout: {error}") from None
    if seconds <= 0:
        raise UsageProblem(f"--timeout: {text!r} must be longer than nothing")
    return seconds


def show_duration(seconds: float) -> str:
    """`75` -> `1m15s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
