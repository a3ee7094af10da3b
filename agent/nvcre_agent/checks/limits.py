"""Reads limits.yaml: the thresholds of the checks and the driver's recovery actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml
from nvcre_protos.vocabulary import FaultClass


@dataclass(frozen=True, slots=True)
class Hysteresis:
    raise_after_s: float
    clear_after_s: float


@dataclass(frozen=True, slots=True)
class RecoveryAction:
    name: str
    fault_class: FaultClass
    remedy: str


@dataclass(frozen=True, slots=True)
class Limits:
    hysteresis: Mapping[str, Hysteresis]  # by check
    ecc_uncorrected_delta: int
    recovery_actions: Mapping[int, RecoveryAction]


def parse(text: str) -> Limits:
    """KeyError, TypeError or ValueError where a check lacks a number or names an unknown fault class."""
    raw: dict[str, Any] = yaml.safe_load(text)
    return Limits(
        hysteresis={
            check: Hysteresis(float(numbers["raise_after_s"]), float(numbers["clear_after_s"]))
            for check, numbers in raw.items()
        },
        ecc_uncorrected_delta=int(raw["ecc_uncorrected"]["delta"]),
        recovery_actions={
            int(value): RecoveryAction(action["name"], FaultClass(action["fault_class"]), action["remedy"])
            for value, action in raw["recovery_action"]["actions"].items()
        },
    )


def shipped() -> Limits:
    return parse(resources.files(__package__).joinpath("limits.yaml").read_text(encoding="utf-8"))
