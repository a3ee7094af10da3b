"""Which old value belongs to which new one, and whether they are the same.

An update is compared with what was stored: transition rules see the old value, and an unchanged part that would be
invalid today is let through (Kubernetes calls that ratcheting). Items correlate in lists of type map only.
"""

from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from typing import Any, Final, Literal


class _Absent(Enum):
    ABSENT = 0


ABSENT: Final = _Absent.ABSENT
"""No old value to compare with; None would be a value."""

Old = Any | Literal[_Absent.ABSENT]


def child(old: Old, key: str) -> Old:
    return old[key] if isinstance(old, dict) and key in old else ABSENT


def items_by_key(old: Old, keys: Sequence[str]) -> Callable[[Any], Old]:
    """For a list of type map: finds the old item with the keys of a new one."""
    index: dict[Hashable, Any] = {}
    for item in old if isinstance(old, list) else ():
        if (key := item_key(item, keys)) is not None:
            index.setdefault(key, item)

    def find(item: Any) -> Old:
        key = item_key(item, keys)
        return ABSENT if key is None else index.get(key, ABSENT)

    return find


def item_key(item: Any, keys: Sequence[str]) -> tuple[tuple[str, Any], ...] | None:
    """Hashable, with the type beside each value: 1, 1.0 and true are different keys."""
    if not isinstance(item, dict):
        return None
    values = [item.get(key) for key in keys]
    if any(isinstance(value, dict | list) for value in values):
        return None
    return tuple((type(value).__name__, value) for value in values)


def same(new: Any, old: Old) -> bool:
    """Deep equality of JSON values, where 1 and true differ. Without recursion: the values may be hostile."""
    pending = [(new, old)]
    while pending:
        a, b = pending.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            pending.extend((value, b[key]) for key, value in a.items())
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            pending.extend(zip(a, b, strict=True))
        elif type(a) is not type(b) or a != b:
            return False
    return True
