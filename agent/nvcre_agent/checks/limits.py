"""The limits of the checks: limits.yaml beside this module, and the file of an operator that overrides its numbers.

Every number is there with its source; the rules hold none.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from nvcre_agent.operator_file import RefusedFileError, UnusableFileError, meant, text_of, yaml_of

_HYSTERESIS = ("raise_after_s", "clear_after_s")


class LimitsError(RefusedFileError):
    """A limits file of an operator that cannot be used; the text names file, check and key."""


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """`waits`: the time before `raise_after_s` is a waiting state or several samples; one look does not judge it."""

    raise_after_s: float
    clear_after_s: float
    waits: bool = False


@dataclass(frozen=True, slots=True)
class MaskField:
    """A part of the fabric health mask; values that are not listed are healthy."""

    shift: int
    width: int
    faults: Mapping[int, str]
    recovering: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Limits:
    """A number of limits.yaml is `<check>_<key>` here."""

    hysteresis: Mapping[str, Hysteresis]  # by check
    recovery_action_names: Mapping[int, str]
    fabric_health_fields: tuple[MaskField, ...]
    temperature_margin_celsius_of: Mapping[str, float]  # by a word of the product's name
    ecc_uncorrected_delta: float
    ecc_corrected_per_min: float
    row_remap_limit_rows: float
    retired_pages_hard: float
    retired_pages_soft: float
    nvlink_errors_delta: float
    nvlink_errors_crc_per_s: float
    pcie_link_pstate: float
    pcie_link_utilization_percent: float
    pcie_replays_per_min: float
    hw_slowdown_per_min: float
    temperature_margin_celsius: float
    ib_port_down_seconds: float
    ib_port_flapping_outages: float
    ib_port_flapping_outage_s: float
    ib_port_flapping_window_s: float
    ib_port_flapping_quiet_s: float


_in_use: list[Limits] = []


def in_use() -> Limits:
    """What this process judges by: the limits as shipped, or what `override` made of them."""
    return _in_use[0] if _in_use else shipped()


def override(path: Path | None) -> None:
    """Judge by the shipped limits with the numbers of `path` over them; None: as shipped.

    The file has the form of limits.yaml and holds only what differs. Raises LimitsError, and what was in use stays so.
    """
    use(None if path is None else built(path))


def built(path: Path) -> Limits:
    """The shipped limits with the numbers of `path` over them, not in use yet. Raises LimitsError."""
    return _built(_merged(_load(), path))


def use(limits: Limits | None) -> None:
    _in_use[:] = () if limits is None else (limits,)


@cache
def shipped() -> Limits:
    return _built(_load())


def _load() -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load(
        resources.files(__package__).joinpath("limits.yaml").read_text(encoding="utf-8")
    )
    return raw


def _built(raw: Mapping[str, Mapping[str, Any]]) -> Limits:
    numbers = {
        f"{check}_{key}": float(value)
        for check, keys in raw.items()
        for key, value in keys.items()
        if key not in _HYSTERESIS and _is_number(value)
    }
    return Limits(
        hysteresis={
            check: Hysteresis(
                float(keys["raise_after_s"]), float(keys["clear_after_s"]), waits=keys.get("waits", False)
            )
            for check, keys in raw.items()
        },
        recovery_action_names=raw["recovery_action"]["names"],
        fabric_health_fields=tuple(_mask_field(one) for one in raw["fabric_health"]["fields"]),
        temperature_margin_celsius_of=raw["temperature_margin"]["celsius_of"],
        **numbers,
    )


def _mask_field(raw: Mapping[str, Any]) -> MaskField:
    def meaning(verdict: str) -> dict[int, str]:
        return {value: one["means"] for value, one in raw["values"].items() if one["verdict"] == verdict}

    return MaskField(raw["shift"], raw["width"], faults=meaning("fault"), recovering=meaning("recovering"))


def _merged(shipped: dict[str, Any], path: Path) -> dict[str, Any]:
    try:
        given = yaml_of(text_of(path))
    except UnusableFileError as error:
        raise LimitsError(f"{path}: {error}") from None
    if not isinstance(given, dict):
        raise LimitsError(f"{path}: must be a mapping of checks, such as pcie_replays: {{per_min: 20}}")
    problems: list[str] = []
    for check, keys in given.items():
        if check not in shipped:
            problems.append(f"{path}: unknown check {str(check)[:64]!r}; {meant(str(check)[:64], shipped)}")
        elif not isinstance(keys, dict):
            problems.append(f"{path}: {check}: must be a mapping of {_changeable(shipped[check])}")
        else:
            for key, value in keys.items():
                try:
                    shipped[check][key] = _checked(f"{path}: {check}", shipped[check], key, value)
                except LimitsError as error:
                    problems += error.problems
    if problems:
        raise LimitsError(*problems)
    return shipped


def _checked(where: str, known: Mapping[str, Any], key: object, value: object) -> object:
    """A number stays a number, and a map of numbers gains entries; names and masks are the driver's and stay."""
    before = known.get(str(key))
    if isinstance(before, dict) and _is_numbers(before):
        if not isinstance(value, dict) or not value or not _is_numbers(value):
            raise LimitsError(f"{where}: {key} must map words of product names to numbers, not {value!r}")
        return {**before, **{str(word): number for word, number in value.items()}}
    if not _is_number(before):
        raise LimitsError(f"{where}: unknown key {key!r}; known are {_changeable(known)}")
    if not _is_number(value) or (str(key).endswith("_s") and float(str(value)) < 0):
        raise LimitsError(
            f"{where}: {key} must be a number{' of seconds' if str(key).endswith('_s') else ''}, not {value!r}"
        )
    return value


def _changeable(known: Mapping[str, Any]) -> str:
    return ", ".join(key for key, value in known.items() if _is_number(value) or _is_numbers(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))
