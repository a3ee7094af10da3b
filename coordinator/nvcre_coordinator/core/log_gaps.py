"""Parts of a log that nobody could read: kept with a measurement, so that figures which lack them say so."""

from __future__ import annotations

from nvcre_coordinator.api.measurement import MAX_GAPS, GapReason, LogGap
from nvcre_coordinator.core.log_cursor import Gap, Position

Gaps = tuple[LogGap, ...]


def rotated(gaps: Gaps, pod: str, gap: Gap | None) -> Gaps:
    """The kubelet serves only the current file: what was rotated away while nobody was connected is lost."""
    if gap is None:
        return gaps
    return merged(gaps, (LogGap(pod, GapReason.ROTATED, gap.after, gap.before),))


def pod_gone(gaps: Gaps, pod: str, position: Position | None) -> Gaps:
    """There is no such log any more, and its end was not reached."""
    return merged(gaps, (LogGap(pod, GapReason.POD_GONE, position.time if position is not None else None),))


def unread(gaps: Gaps, pod: str, position: Position | None) -> Gaps:
    return merged(gaps, (LogGap(pod, GapReason.UNREAD, position.time if position is not None else None),))


def merged(gaps: Gaps, others: Gaps) -> Gaps:
    """Each once, the first ones where they are too many."""
    return tuple(dict.fromkeys((*gaps, *others)))[:MAX_GAPS]


def sentence(gaps: Gaps) -> str:
    """What a condition's message says of them; empty without any."""
    if not gaps:
        return ""
    first = gaps[0]
    after = f" after {first.after:%Y-%m-%dT%H:%M:%SZ}" if first.after is not None else ""
    match first.reason:
        case GapReason.ROTATED:
            what = f"lines of pod {first.pod}{after} were rotated away while nobody was connected"
        case GapReason.POD_GONE:
            what = f"pod {first.pod} was gone before its log{after} was read"
        case GapReason.UNREAD:
            what = f"the log of pod {first.pod}{after} could not be read"
    return f"; figures may lack a part of the log: {what}" + (f", and {len(gaps) - 1} more" if gaps[1:] else "")
