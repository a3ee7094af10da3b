"""The JSONPath subset of printer columns: `.a.b`, `['a.b']`, `[0]`, `[-1]`, `[*]`, `[?(@.type=="Ready")]`.

Pure. Anything else in a path finds nothing, as a column without a value is what the real server shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

Step = Callable[[Any], list[Any]]

_NAME = re.compile(r"\.((?:\\.|[^.\[\]\\])+)")
_QUOTED = re.compile(r"\[\s*(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\")\s*\]")
_INDEX = re.compile(r"\[\s*(-?\d{1,9})\s*\]")
_ALL = re.compile(r"\[\s*\*\s*\]|\.\*")
_FILTER = re.compile(r"\[\?\(\s*@((?:\.(?:\\.|[^.\[\]\\=!\s])+)+)\s*(==|!=)\s*(\"[^\"]*\"|'[^']*'|[-\w.]+)\s*\)\]")


def find(body: Any, path: str) -> list[Any]:
    """All values at the path, in order."""
    found = [body]
    for step in _steps(path):
        found = [value for at in found for value in step(at)]
    return found


@lru_cache(maxsize=1024)
def _steps(path: str) -> tuple[Step, ...]:
    path = path.strip()
    if path.startswith("{") and path.endswith("}"):
        path = path[1:-1]
    path = path.removeprefix("$")
    steps: list[Step] = []
    at = 0
    while at < len(path):
        for grammar, build in _GRAMMARS:
            matched = grammar.match(path, at)
            if matched is not None:
                steps.append(build(matched))
                at = matched.end()
                break
        else:
            return (_nothing,)
    return tuple(steps)


def _nothing(_: Any) -> list[Any]:
    return []


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _field(matched: re.Match[str]) -> Step:
    name = _unescaped(next(group for group in matched.groups() if group is not None))
    return lambda value: [value[name]] if isinstance(value, dict) and name in value else []


def _element(matched: re.Match[str]) -> Step:
    index = int(matched.group(1))
    return lambda value: [value[index]] if isinstance(value, list) and -len(value) <= index < len(value) else []


def _every(_: re.Match[str]) -> Step:
    return lambda value: list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _matching(matched: re.Match[str]) -> Step:
    names = [_unescaped(name) for name in _NAME.findall(matched.group(1))]
    equal, literal = matched.group(2) == "==", matched.group(3)
    wanted = literal[1:-1] if literal[0] in "\"'" else literal

    def keep(entry: Any) -> bool:
        for name in names:
            if not isinstance(entry, dict) or name not in entry:
                return False
            entry = entry[name]
        return (_text(entry) == wanted) is equal

    return lambda value: [entry for entry in value if keep(entry)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


_GRAMMARS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Step]], ...] = (
    (_ALL, _every),
    (_QUOTED, _field),
    (_INDEX, _element),
    (_FILTER, _matching),
    (_NAME, _field),
)
