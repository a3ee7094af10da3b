"""Loads the catalogue files that stand beside this module; they are the only place of codes, remedies and effects."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml
from nvcre_protos.vocabulary import Blame, FaultClass

from nvcre_agent.xid.model import Classification, Clears


@dataclass(frozen=True, slots=True)
class LinkUnit:
    """How the status word of one NVLink 5 unit is read: (bit or value, action) pairs, or by reason, or always."""

    statuses: tuple[tuple[int, str], ...]
    always: str = ""
    by_reason: bool = False


@dataclass(frozen=True, slots=True)
class Catalogue:
    xid: Mapping[int, Classification]
    recovery_action: Mapping[int, Classification]
    kernel: Mapping[tuple[str, str], Classification]  # (incident kind, variant)
    effect_window_s: float
    effects: Mapping[int, frozenset[int]]  # root code -> codes that follow it
    effects_of_any: frozenset[int]
    link_units: Mapping[tuple[int, str], LinkUnit]  # (Xid, unit name)
    link_down_reasons: Mapping[int, tuple[str, str]]  # reason -> (action, who)
    sxid_always_fatal: frozenset[int]
    sxid_never_fatal: frozenset[int]
    sxid: Mapping[str, Classification]  # fatal | non_fatal | undetermined


@cache
def catalogue() -> Catalogue:
    """The catalogue as shipped; read once."""
    main = _load("catalogue.yaml")
    links = _load("nvlink5.yaml")
    switches = _load("sxid.yaml")
    effects = main["effects"]
    return Catalogue(
        xid={code: _classification(row) for code, row in main["xid"].items()},
        recovery_action={value: _classification(row) for value, row in main["recovery_action"].items()},
        kernel={
            (kind, variant): _classification(row)
            for kind, variants in main["kernel"].items()
            for variant, row in variants.items()
        },
        effect_window_s=float(effects["window_s"]),
        effects={root: frozenset(codes) for root, codes in effects["by_root"].items()},
        effects_of_any=frozenset(effects["by_any_root"]),
        link_units={(row["xid"], name): _unit(row) for row in links["units"] for name in row["names"]},
        link_down_reasons={
            reason: (str(row["action"]), str(row["who"])) for reason, row in links["link_down_reasons"].items()
        },
        sxid_always_fatal=frozenset(switches["always_fatal"]),
        sxid_never_fatal=frozenset(switches["never_fatal"]),
        sxid={key: _classification(switches[key]) for key in ("fatal", "non_fatal", "undetermined")},
    )


def _load(name: str) -> dict[str, Any]:
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return loaded


def _classification(row: Mapping[str, Any]) -> Classification:
    return Classification(
        fault_class=FaultClass(row["class"]),
        blame=Blame(row["blame"]),
        clears=Clears(row["clears"]),
        mnemonic=row.get("mnemonic", ""),
        condition=row.get("condition", ""),
        remedy=row["remedy"],
        remark=row.get("remark", ""),
    )


def _unit(row: Mapping[str, Any]) -> LinkUnit:
    statuses = tuple((bit, action) for action in ("ResetGpu", "Eval154", "Ignore") for bit in row.get(action, ()))
    return LinkUnit(statuses=statuses, always=row.get("any", ""), by_reason=row.get("by_reason", False))
