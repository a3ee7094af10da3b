"""What users demand of a run: six known keys, each with a CEL expression over `value` that must be true.

`check` finds the mistakes before a workload is created, `evaluate` judges measured values.  `value` is declared dyn
(the runtime has no mixed int/double comparison, and people write `value >= 400`); a trial evaluation must give a bool.
Expressions are bounded by the CRD (2048 characters, 32 entries), by the runtime's own iteration budget, and to one loop
(core/loops.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from cel_expr_python import cel

from nvcre_coordinator.api.conditions import Reason
from nvcre_coordinator.core.limits import clip
from nvcre_coordinator.core.loops import depth_of_loops

BUS_BANDWIDTH = "busBandwidthGBps"
ALG_BANDWIDTH = "algBandwidthGBps"
GOODPUT_RATIO = "goodputRatio"
AVG_TFLOPS_PER_GPU = "avgTFLOPsPerGPU"
AVG_STEP_TIME = "avgStepTimeSec"
MIN_NODE_BUS_BANDWIDTH = "minNodeBusBandwidthGBps"  # ours: the slowest node of the run, by probes
KNOWN_KEYS = frozenset(
    {BUS_BANDWIDTH, ALG_BANDWIDTH, GOODPUT_RATIO, AVG_TFLOPS_PER_GPU, AVG_STEP_TIME, MIN_NODE_BUS_BANDWIDTH}
)

MAX_EXPRESSION = 2048
_TRIAL_VALUE = 1.0
_PLACE = re.compile(r"(?:INVALID_ARGUMENT: )?ERROR: <input>:(\d+):(\d+): ")


class ThresholdError(ValueError):
    """An expression that cannot be compiled, is not a bool, or fails; the message has the reason in one line."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why thresholds cannot be judged at all: reason of ValidationFailed, and its message."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Violation:
    key: str
    message: str


@lru_cache(maxsize=1)
def _environment() -> cel.Env:
    return cel.NewEnv(variables={"value": cel.Type.DYN})


@lru_cache(maxsize=256)
def _compiled(expression: str) -> cel.Expression:
    if len(expression) > MAX_EXPRESSION:
        raise ThresholdError(f"longer than {MAX_EXPRESSION} characters")
    if depth_of_loops(expression) > 1:
        raise ThresholdError("has a loop within a loop or over another's result; value is one number")
    try:
        return _environment().compile(expression)
    except RuntimeError as error:  # what the CEL runtime raises for every rejected expression
        raise ThresholdError(one_line(str(error))) from error


def holds(expression: str, value: float) -> bool:
    """Is the expression true for this value?  Raises ThresholdError."""
    program = _compiled(expression)
    try:
        result = program.eval(data={"value": float(value)})
    except RuntimeError as error:
        raise ThresholdError(one_line(str(error))) from error
    if result.type() == cel.Type.ERROR:
        raise ThresholdError(one_line(str(result.value())))
    if result.type() != cel.Type.BOOL:
        raise ThresholdError(f"gives {result.type().name()}, must give a bool")
    return bool(result.value())


def check(thresholds: Mapping[str, str]) -> Problem | None:
    """The first mistake a person must correct: unknown keys before bad expressions."""
    unknown = sorted(set(thresholds) - KNOWN_KEYS)
    if unknown:
        return Problem(
            Reason.UNKNOWN_THRESHOLD_KEY,
            clip(f"Unknown threshold key(s): [{' '.join(unknown)}]; known are {', '.join(sorted(KNOWN_KEYS))}", 1024),
        )
    for key in sorted(thresholds):
        try:
            holds(thresholds[key], _TRIAL_VALUE)
        except ThresholdError as error:
            return _invalid(key, thresholds[key], error)
    return None


def evaluate(thresholds: Mapping[str, str], measured: Mapping[str, float]) -> tuple[Violation, ...] | Problem:
    """All violations sorted by key; keys without a measured value are skipped (who waits for them is the lifecycle)."""
    violations: list[Violation] = []
    for key in sorted(thresholds):
        if key not in measured:
            continue
        try:
            satisfied = holds(thresholds[key], measured[key])
        except ThresholdError as error:
            return _invalid(key, thresholds[key], error)
        if not satisfied:
            message = f'Threshold "{key}" violated: measured {measured[key]:.4f}, expression: {thresholds[key]}'
            violations.append(Violation(key, clip(message, 1024)))
    return tuple(violations)


def _invalid(key: str, expression: str, error: ThresholdError) -> Problem:
    remedy = 'write CEL over value that gives a bool, such as "value >= 300.0"'
    text = f'Threshold "{key}": {clip(str(error), 512)} in "{clip(expression, 256)}"; {remedy}'
    return Problem(Reason.INVALID_THRESHOLD_EXPRESSION, clip(text, 1024))


def one_line(text: str) -> str:
    """The runtime's message without its drawing of the expression, and with places a person can count to."""
    flat = " ".join(line.strip() for line in text.splitlines() if not line.lstrip().startswith("|")).strip()
    return _PLACE.sub(r"line \1 column \2: ", flat)
