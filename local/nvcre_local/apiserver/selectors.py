"""Label and field selectors: parsing and matching.  Pure; which fields a kind supports is said by the caller."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

MAX_REQUIREMENTS = 256

_TOKEN = re.compile(r"\s*(==|!=|=|!|,|\(|\)|[^\s=!,()<>]+)")
_SIGNS = ("=", "==", "!=", ",", "(", ")")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")


class SelectorError(ValueError):
    """The selector cannot be parsed; the message says where."""


class Operator(Enum):
    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    MISSING = "!"


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case Operator.IN:
                return self.key in labels and labels[self.key] in self.values
            case Operator.NOT_IN:
                return self.key not in labels or labels[self.key] not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case Operator.MISSING:
                return self.key not in labels


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    path: str
    equal: bool
    value: str


def field_value(body: Mapping[str, Any], path: str) -> str:
    """The value at a dotted path as selectors compare it; absent is the empty string."""
    value: Any = body
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)


@dataclass(frozen=True, slots=True)
class Selector:
    """Both selectors of a request; empty matches everything. `read` finds a field's value as text."""

    labels: tuple[LabelRequirement, ...] = ()
    fields: tuple[FieldRequirement, ...] = ()
    read: Callable[[Mapping[str, Any], str], str] = field_value

    def __bool__(self) -> bool:
        return bool(self.labels or self.fields)

    def named(self, name: str) -> Selector:
        """The same, for the one object of this name."""
        return replace(self, fields=(*self.fields, FieldRequirement("metadata.name", equal=True, value=name)))

    def matches(self, body: Mapping[str, Any]) -> bool:
        if self.labels:
            labels = body["metadata"].get("labels") or {}
            if not all(requirement.matches(labels) for requirement in self.labels):
                return False
        return all((self.read(body, wanted.path) == wanted.value) is wanted.equal for wanted in self.fields)


def parse_labels(text: str) -> tuple[LabelRequirement, ...]:
    """`a=b,c!=d,e in (f,g),h notin (i),j,!k`. Raises SelectorError."""
    tokens = _tokens(text)
    requirements: list[LabelRequirement] = []
    at = 0
    while at < len(tokens):
        requirement, at = _requirement(tokens, at)
        requirements.append(requirement)
        if len(requirements) > MAX_REQUIREMENTS:
            raise SelectorError(f"more than {MAX_REQUIREMENTS} requirements in a label selector")
        if at < len(tokens):
            if tokens[at] != ",":
                raise SelectorError(f"found '{tokens[at]}', expected: ',' or 'end of string'")
            at += 1
            if at == len(tokens):
                raise SelectorError("found '', expected: identifier after ','")
    return tuple(requirements)


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise SelectorError(f"unable to parse requirement at {text[at : at + 20]!r}")
        tokens.append(found.group(1))
        at = found.end()
    return tokens


def _requirement(tokens: list[str], at: int) -> tuple[LabelRequirement, int]:
    def token(position: int) -> str:
        return tokens[position] if position < len(tokens) else ""

    if token(at) in _SIGNS:
        raise SelectorError(f"found '{token(at)}', expected: !, identifier, or 'end of string'")
    if token(at) == "!":
        return LabelRequirement(_key(token(at + 1)), Operator.MISSING), at + 2
    key = _key(token(at))
    match token(at + 1):
        case "" | ",":
            return LabelRequirement(key, Operator.EXISTS), at + 1
        case "=" | "==" | "!=" as sign:
            operator = Operator.NOT_IN if sign == "!=" else Operator.IN
            if token(at + 2) in ("", ","):
                return LabelRequirement(key, operator, frozenset([""])), at + 2
            return LabelRequirement(key, operator, frozenset([_value(token(at + 2))])), at + 3
        case "in" | "notin" as word:
            values, after = _set(tokens, at + 2)
            return LabelRequirement(key, Operator.IN if word == "in" else Operator.NOT_IN, values), after
        case other:
            raise SelectorError(f"found '{other}', expected: in, notin, =, ==, !=")


def _set(tokens: list[str], at: int) -> tuple[frozenset[str], int]:
    if at >= len(tokens) or tokens[at] != "(":
        raise SelectorError(f"found '{tokens[at] if at < len(tokens) else ''}', expected: '('")
    values: set[str] = set()
    at += 1
    while at < len(tokens) and tokens[at] != ")":
        if tokens[at] != ",":
            values.add(_value(tokens[at]))
        at += 1
    if at == len(tokens):
        raise SelectorError("found '', expected: ',' or ')'")
    return frozenset(values or {""}), at + 1


def _key(text: str) -> str:
    prefix, slash, name = text.rpartition("/")
    if not _NAME.fullmatch(name) or len(name) > 63 or (slash and not prefix):
        raise SelectorError(
            f"found '{text}', expected: a label key (prefix/name, name of at most 63 letters, digits, -_.)"
        )
    return text


def _value(text: str) -> str:
    if not _VALUE.fullmatch(text) or len(text) > 63:
        raise SelectorError(f"found '{text}', expected: a label value (at most 63 letters, digits, -_.)")
    return text


def parse_fields(text: str, supported: Collection[str]) -> tuple[FieldRequirement, ...]:
    """`metadata.name=a,status.phase!=Running`; a backslash escapes `,`, `=` and itself. Raises SelectorError."""
    requirements: list[FieldRequirement] = []
    for term in _split_terms(text):
        found = re.match(r"([^=!\\]+)(!=|==|=)(.*)", term, re.DOTALL)
        if found is None:
            raise SelectorError(f"invalid selector: '{text}'; can't understand '{term}'")
        path, sign, value = found.group(1).strip(), found.group(2), found.group(3)
        if path not in supported:
            raise SelectorError(f"field label not supported: {path}")
        requirements.append(FieldRequirement(path, sign != "!=", re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)))
    if len(requirements) > MAX_REQUIREMENTS:
        raise SelectorError(f"more than {MAX_REQUIREMENTS} requirements in a field selector")
    return tuple(requirements)


def _split_terms(text: str) -> list[str]:
    terms = re.findall(r"(?:[^,\\]|\\.)+", text, re.DOTALL)
    return [term for term in terms if term.strip()]
