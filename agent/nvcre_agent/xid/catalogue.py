"""The catalogue: the files beside this module, and the file of an operator that overrides single keys of them.

They are the only place of codes, remedies and effects. Judging by them is classify.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml
from nvcre_protos.vocabulary import Blame, FaultClass

from nvcre_agent.operator_file import LOADER, RefusedFileError, UnusableFileError, meant, text_of, yaml_of
from nvcre_agent.xid.model import Classification, Clears

_Word = TypeVar("_Word", bound=StrEnum)
_KEYS = frozenset(
    {"mnemonic", "class", "blame", "clears", "condition", "remedy", "remark", "boards", "hardware", "source"}
)
_SECTIONS = ("xid", "recovery_action")


class CatalogueError(RefusedFileError):
    """A catalogue file of an operator that cannot be used; the text names file, entry and key."""


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


_in_use: list[Catalogue] = []


def catalogue() -> Catalogue:
    """What this process judges by: the catalogue as shipped, or what `override` made of it."""
    return _in_use[0] if _in_use else _shipped()


def override(path: Path | None) -> None:
    """Judge by the shipped catalogue with the keys of `path` over it, entry by entry; None: as shipped.

    The file has the form of catalogue.yaml, of which it may hold `xid` and `recovery_action`: an entry that is known
    needs only the keys that change, a new number needs class, blame, clears and remedy. Raises CatalogueError, and
    what was in use stays so.
    """
    use(None if path is None else built(path))


def built(path: Path) -> Catalogue:
    """What `override` would use. Raises CatalogueError."""
    return _built(_merged(_load("catalogue.yaml"), path))


def use(catalogue: Catalogue | None) -> None:
    _in_use[:] = () if catalogue is None else (catalogue,)


@cache
def _shipped() -> Catalogue:
    return _built(_load("catalogue.yaml"))


def _built(main: Mapping[str, Any]) -> Catalogue:
    links = _load("nvlink5.yaml")
    switches = _load("sxid.yaml")
    effects = main["effects"]
    source = main["source"]
    return Catalogue(
        xid={code: _classification(row, source) for code, row in main["xid"].items()},
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
    loaded: dict[str, Any] = yaml.load(text, Loader=LOADER)  # noqa: S506 - a safe loader
    return loaded


def _classification(row: Mapping[str, Any], source: str = "") -> Classification:
    return Classification(
        fault_class=FaultClass(row["class"]),
        blame=Blame(row["blame"]),
        clears=Clears(row["clears"]),
        mnemonic=row.get("mnemonic", ""),
        condition=row.get("condition", ""),
        remedy=row["remedy"],
        remark=row.get("remark", ""),
        hardware=row.get("hardware"),
        boards=row.get("boards", ""),
        source=row.get("source", source),
    )


def _unit(row: Mapping[str, Any]) -> LinkUnit:
    statuses = tuple((bit, action) for action in ("ResetGpu", "Eval154", "Ignore") for bit in row.get(action, ()))
    return LinkUnit(statuses=statuses, always=row.get("any", ""), by_reason=row.get("by_reason", False))


# --- the operator's file


def _merged(main: dict[str, Any], path: Path) -> dict[str, Any]:
    try:
        given = yaml_of(text_of(path))
    except UnusableFileError as error:
        raise CatalogueError(f"{path}: {error}") from None
    if not isinstance(given, dict):
        raise CatalogueError(f"{path}: must be a mapping with {' or '.join(_SECTIONS)}")
    problems: list[str] = []
    for section, rows in given.items():
        if section not in _SECTIONS:
            problems.append(f"{path}: {section!r} cannot be overridden, only {' and '.join(_SECTIONS)}")
        elif not isinstance(rows, dict):
            problems.append(f"{path}: {section} must map numbers to entries")
        else:
            for code, row in rows.items():
                try:
                    main[section][code] = _entry(f"{path}: {section} {code}", main[section], code, row)
                except CatalogueError as error:
                    problems += error.problems
    if problems:
        raise CatalogueError(*problems)
    return main


def _entry(entry: str, known: Mapping[int, Any], code: object, row: object) -> dict[str, Any]:
    if not isinstance(code, int) or isinstance(code, bool) or code < 0:
        raise CatalogueError(f"{entry}: the number must be a whole one, not {code!r}")
    if not isinstance(row, dict):
        raise CatalogueError(f"{entry}: must be a mapping of {', '.join(sorted(_KEYS))}")
    if problems := list(_wrong_keys(entry, row)):
        raise CatalogueError(*problems)
    return _checked(entry, known.get(code, {}), row)


def _wrong_keys(entry: str, row: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in row.items():
        if key not in _KEYS:
            yield f"{entry}: unknown key {str(key)[:64]!r}; {meant(str(key)[:64], sorted(_KEYS))}"
        elif key == "hardware":
            if value is not None and not isinstance(value, bool):
                yield f"{entry}: hardware must be true, false or null, not {value!r}"
        elif not isinstance(value, str):
            # YAML reads a bare No as false, so this is where an unquoted blame ends.
            yield f'{entry}: {key} must be a text in quotes (blame: "No"), not {value!r}'


def _checked(entry: str, known: Mapping[str, Any], row: Mapping[Any, Any]) -> dict[str, Any]:
    merged = {**known, **row}
    for key in ("class", "blame", "clears", "remedy"):
        if not merged.get(key):
            raise CatalogueError(f"{entry}: {key} is missing; a new number needs class, blame, clears and remedy")
    _word(entry, "class", FaultClass, merged["class"])
    _word(entry, "clears", Clears, merged["clears"])
    blame = _word(entry, "blame", Blame, merged["blame"])
    if blame is not Blame.CONDITIONAL and "condition" not in row:
        merged.pop("condition", None)
    if (blame is Blame.CONDITIONAL) != bool(merged.get("condition")):
        raise CatalogueError(f"{entry}: condition is given exactly where blame is Conditional")
    return merged


def _word(entry: str, key: str, words: type[_Word], value: str) -> _Word:
    try:
        return words(value)
    except ValueError:
        raise CatalogueError(f"{entry}: {key} {value!r} is none of {', '.join(words)}") from None
