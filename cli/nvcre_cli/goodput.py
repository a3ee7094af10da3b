"""The goodput part of a report: figures of a GoodputMeasurement as numbers, and where the time went.  Pure."""

from __future__ import annotations

from typing import Any

from nvcre_kube.resources import JsonObject

PARTS = (
    ("lost", "lostWorkTimeSec"),
    ("reschedule", "rescheduleTimeSec"),
    ("resume", "resumeTimeSec"),
    ("checkpoint", "checkpointSaveTimeSec"),
)
"""What takes time from the training, and the field of the status that says how much."""
COPIED = ("startTime", "completionTime", "currentStep", "highestStep", "interruptionCount", "lastCheckpointStep")


def goodput_of(measurement: JsonObject) -> JsonObject:
    """Times in seconds; what was not measured is absent."""
    status = measurement.get("status") or {}
    figures = {
        "name": measurement["metadata"]["name"],
        "ratio": _number(status.get("result")),
        "avgStepTimeSec": _number(status.get("avgStepTimeSec")),
        "avgTFLOPSPerGPU": _number(status.get("avgTFLOPSPerGPU")),
        **{key: status.get(key) for key in COPIED},
    }
    known = {key: value for key, value in figures.items() if value is not None}
    return known | {
        "breakdownSec": breakdown(status),
        "stepTimes": [
            {"step": point["step"], "seconds": seconds}
            for point in status.get("stepTimes") or ()
            if (seconds := _number(point.get("stepTimeSec"))) is not None
        ],
        "interruptions": list(status.get("interruptions") or ()),
    }


def breakdown(status: JsonObject) -> dict[str, float]:
    """The whole training time in parts, `productive` first; empty where none was measured."""
    total = _number(status.get("trainingTimeSec"))
    if not total:
        return {}
    parts = {name: _number(status.get(field)) or 0.0 for name, field in PARTS}
    return {"productive": max(0.0, total - sum(parts.values())), **parts}


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
