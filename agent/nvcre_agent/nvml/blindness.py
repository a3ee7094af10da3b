"""The states of the NVML monitor in which it sees nothing, each with its sentence for the person on call.

When it is in one decides monitor.py; what the driver itself gives as a reason is in driver.py.
"""

from __future__ import annotations

from datetime import UTC, datetime

from nvcre_agent.nvml.call_note import Note
from nvcre_agent.nvml.snapshot import MonitorState, Sight

UNRESPONSIVE = "NvmlUnresponsive"
STARTING = MonitorState(Sight.BLIND, "Starting", "NVML has not answered yet")


def unresponsive(note: Note, since_s: float) -> MonitorState:
    return MonitorState(
        Sight.BLIND,
        UNRESPONSIVE,
        f"{note} has not come back since {_at(since_s)}; look for Xid 119/120 and blocked tasks in the kernel log, the"
        " node may need a reboot",
    )


def slow(since_s: float) -> MonitorState:
    return MonitorState(
        Sight.BLIND,
        UNRESPONSIVE,
        f"single calls come back, but so slowly that nothing was seen since {_at(since_s)}; look for Xid 119/120 in the"
        " kernel log, the node may need a reboot",
    )


def died(code: int | None) -> MonitorState:
    return MonitorState(Sight.BLIND, "WorkerDied", f"the NVML process ended with code {code}; restarting it")


def not_started(error: OSError) -> MonitorState:
    message = (
        f"the NVML process cannot be started ({error.strerror}); see the limits of processes and memory; trying again"
    )
    return MonitorState(Sight.BLIND, "WorkerDied", message)


def garbled(what: str) -> MonitorState:
    return MonitorState(Sight.BLIND, "WorkerGarbled", f"the NVML process wrote {what}; restarting it")


def released(until_s: float) -> MonitorState:
    return MonitorState(
        Sight.BLIND,
        "Released",
        f"NVML was given back on request and is taken up again at {_at(until_s)}; no GPU is watched through NVML until"
        " then",
    )


def _at(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
