"""The schema of one CRD version, as the API server uses it: prune, default, validate.

Order of validation as in a kube-apiserver: values, then uniqueness in lists, then the rules (CEL), and those only over
an object whose shape they can rely on.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from nvcre_local.apiserver.schema import causes, cel_values, coercion, lists, values
from nvcre_local.apiserver.schema.causes import BLOCKING, Cause, Reason
from nvcre_local.apiserver.schema.correlation import ABSENT, Old, child, items_by_key, same
from nvcre_local.apiserver.schema.node import Node, SchemaError, compile_node
from nvcre_local.apiserver.schema.rules import Failed, Rule

MAX_DEPTH = 200
"""Nesting of an object. etcd would take more; our recursion, and every client's, would not."""

Json = dict[str, Any]


class StructuralSchema:
    __slots__ = ("_root",)

    def __init__(self, root: Node) -> None:
        self._root = root

    @classmethod
    def from_crd_version(cls, version: Mapping[str, Any]) -> Self:
        """`version` is one entry of a CRD's `spec.versions`. Raises SchemaError naming the path that is at fault."""
        schema = version.get("schema", {}).get("openAPIV3Schema")
        if not isinstance(schema, Mapping):
            raise SchemaError("schema.openAPIV3Schema", "Required value: schemas are required")
        return cls(compile_node(schema, "schema.openAPIV3Schema"))

    def prune(self, obj: Json) -> list[str]:
        """Drop unknown fields in place; answers their paths. apiVersion, kind and metadata are not looked at."""
        return coercion.prune(obj, self._root)

    def default(self, obj: Json) -> None:
        """Fill in defaults in place; drop nulls of fields that are not nullable."""
        coercion.default(obj, self._root)

    def validate(
        self, obj: Json, old: Json | None = None, *, subresource: str = "", found_before: Iterable[Cause] = ()
    ) -> list[Cause]:
        """Why `obj` is refused, `found_before` included; empty when it is not.

        With `old` it is an update: transition rules apply, and what did not change is let through. An update of the
        subresource `status` validates the values of the status alone, and its messages count from there.
        """
        if _deeper_than(obj, MAX_DEPTH):
            return [
                *found_before,
                causes.invalid_rule(causes.NO_FIELD, f"nested deeper than {MAX_DEPTH} levels; flatten the object"),
            ]
        before: Old = ABSENT if old is None else old
        if subresource:
            found = [*found_before, *self._check_below(subresource, obj, before)]
        else:
            found = [*found_before, *values.check(obj, self._root, "", before)]
        if old is None or not any(lists.check(old, self._root, "")):
            found.extend(lists.check(obj, self._root, ""))
        if not self._root.has_rules:
            return found
        if any(cause.reason in BLOCKING for cause in found):
            found.append(causes.rules_not_checked())
        else:
            found.extend(_check_rules(obj, self._root, "", before, None))
        return found

    def _check_below(self, field: str, obj: Json, old: Old) -> list[Cause]:
        node = self._root.properties.get(field)
        if node is None or field not in obj:
            return []
        return [_below(field, cause) for cause in values.check(obj[field], node, "", child(old, field))]


@dataclass(frozen=True, slots=True)
class _Pair:
    """A part of the object beside its old value: the nearest such pair decides whether a failed rule is let through."""

    new: Any
    old: Any

    def unchanged(self) -> bool:
        return same(self.new, self.old)


def _check_rules(value: Any, node: Node, path: str, old: Old, around: _Pair | None) -> Iterator[Cause]:
    if not node.has_rules or value is None:
        return
    if old is not ABSENT:
        around = _Pair(value, old)
    if node.rules:
        yield from _check_own_rules(value, node, path, old, around)
    match value:
        case dict():
            for key, member in value.items():
                if key in node.properties:
                    below, here = node.properties[key], f"{path}.{key}" if path else key
                elif node.additional is not None:
                    below, here = node.additional, f"{path}[{key}]"
                else:
                    continue
                yield from _check_rules(member, below, here, child(old, key), around)
        case list() if node.items is not None:
            old_item = items_by_key(old, node.list_keys) if node.list_type == "map" else None
            for i, item in enumerate(value):
                yield from _check_rules(
                    item, node.items, f"{path}[{i}]", old_item(item) if old_item else ABSENT, around
                )
        case _:
            pass


def _check_own_rules(value: Any, node: Node, path: str, old: Old, around: _Pair | None) -> Iterator[Cause]:
    root = not path
    compared = any(rule.transition for rule in node.rules) and old is not ABSENT and old is not None
    plain = cel_values.to_cel(value, node, root=root)
    beside = cel_values.to_cel(value, node, old, ordered=False, root=root) if compared else None
    before = cel_values.to_cel(old, node, value, ordered=False, root=root) if compared else None
    for rule in node.rules:
        failed = rule.check(beside, before) if rule.transition and compared else rule.check(plain, None)
        if failed is None:
            continue
        if failed.undecided or rule.transition or around is None or not around.unchanged():
            yield _cause(rule, failed, value, path)


def _cause(rule: Rule, failed: Failed, value: Any, path: str) -> Cause:
    field = path or causes.NO_FIELD
    if failed.undecided:
        return causes.invalid(field, values.json_type(value), failed.detail)
    if rule.field_path:
        field = f"{path}{rule.field_path}" if path else rule.field_path.removeprefix(".")
    match rule.reason:
        case Reason.REQUIRED:
            return causes.required(field, failed.detail)
        case Reason.FORBIDDEN:
            return causes.forbidden(field, failed.detail)
        case Reason.DUPLICATE:
            return causes.duplicate(field, value)
        case _ if isinstance(value, dict | list):
            return causes.invalid_rule(field, failed.detail)
        case _:
            return causes.invalid(field, value, failed.detail)


def _below(field: str, cause: Cause) -> Cause:
    return replace(cause, field=field if cause.field == causes.NO_FIELD else f"{field}.{cause.field}")


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            below
            for container in level
            for below in (container.values() if isinstance(container, dict) else container)
            if isinstance(below, dict | list)
        ]
        if not level:
            return False
    return True
