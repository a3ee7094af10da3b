"""What does a Job ask for that this version accepts and does not do?

The manifests of the reference are valid here, so such fields cannot be refused; but nobody may believe that stalls are
watched when they are not.  Pure: controllers/job_actions.py tells the answer once, as an Event.
"""

from __future__ import annotations

from typing import Any

from nvcre_coordinator.core.thresholds import AVG_STEP_TIME, AVG_TFLOPS_PER_GPU, GOODPUT_RATIO

UNMEASURED = frozenset({GOODPUT_RATIO, AVG_TFLOPS_PER_GPU, AVG_STEP_TIME})
"""Threshold keys that nothing gives a value to."""

_FIELDS = {
    "stallMultiplier": "stalls are seen only where something else fills the status of a GoodputMeasurement of the Job",
    "checkpoint": "a workload is restarted only where something else sets lastCheckpointStep in a GoodputMeasurement",
    "goodputMeasurement": "the object is made, goodput is not measured",
}


def unhandled(spec: dict[str, Any]) -> str:
    """One sentence over the Job's raw spec; empty when everything in it is done."""
    found = [f"spec.{name} ({what})" for name, what in _FIELDS.items() if spec.get(name) is not None]
    keys = sorted(UNMEASURED & set(spec.get("thresholds") or ()))
    found += [f"spec.thresholds.{key} (not measured, so the Job will fail when its patience ends)" for key in keys]
    return f"Without effect in this version of nvcre: {'; '.join(found)}" if found else ""
