"""How long the NVML monitor waits for what."""

from __future__ import annotations

from dataclasses import dataclass

# Bounds of the histogram of how long calls take: most need microseconds, a stuck firmware seconds.
CALL_SECONDS = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds.  `start_s` is generous: without the persistence daemon nvmlInit takes half a minute."""

    snapshot_interval_s: float = 30.0
    wait_s: float = 1.0  # one wait for events, which a drain interrupts; less than hang_s
    check_s: float = 5.0  # how often the call in flight is looked at while the child is silent
    hang_s: float = 20.0  # a call inside NVML for longer than this hangs: the monitor is blind
    abandon_s: float = 120.0  # and for longer than this it will not come back: the child is ended
    start_s: float = 90.0
    stop_s: float = 5.0
    first_backoff_s: float = 1.0
    longest_backoff_s: float = 60.0


def failures_in_a_row(before: int, watched_s: float, timing: Timing) -> int:
    """After one more child has ended; one that watched for as long as the longest pause has begun well."""
    return 0 if watched_s >= timing.longest_backoff_s else before + 1


def backoff_s(failures: int, timing: Timing) -> float:
    """Pause before the next child after so many in a row that did not watch for long."""
    return min(timing.longest_backoff_s, timing.first_backoff_s * 2.0 ** min(failures, 16))
