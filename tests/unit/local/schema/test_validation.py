"""What validation promises beside single rules: nothing hostile runs away, the unchanged passes, a bad CRD is named."""

from typing import Any

import pytest
from nvcre_local.apiserver.schema import Cause, Reason, SchemaError, StructuralSchema


def schema(spec: dict[str, Any]) -> StructuralSchema:
    root = {"type": "object", "properties": {"spec": {"type": "object", **spec}}}
    return StructuralSchema.from_crd_version({"schema": {"openAPIV3Schema": root}})


def rule(text: str, **more: Any) -> dict[str, Any]:
    return {"x-kubernetes-validations": [{"rule": text, **more}]}


SHORT = {"properties": {"name": {"type": "string", "maxLength": 3}, "other": {"type": "integer"}}}


def test_what_was_stored_before_the_rule_was_stricter_may_stay() -> None:
    old = {"spec": {"name": "too long", "other": 1}}

    assert schema(SHORT).validate({"spec": {"name": "too long", "other": 2}}, old) == []


def test_but_may_not_be_changed_into_something_invalid() -> None:
    old = {"spec": {"name": "too long"}}

    assert schema(SHORT).validate({"spec": {"name": "still too long"}}, old) == [
        Cause(Reason.TOO_LONG, "spec.name", "Too long: may not be more than 3 bytes")
    ]


def test_an_unchanged_part_is_let_through_by_plain_rules_but_not_by_transition_rules() -> None:
    plain = schema({"properties": {"a": {"type": "integer", **rule("self > 5")}, "b": {"type": "integer"}}})
    transition = schema({"properties": {"a": {"type": "integer", **rule("self > oldSelf")}}})

    assert plain.validate({"spec": {"a": 1, "b": 2}}, {"spec": {"a": 1}}) == []
    assert len(plain.validate({"spec": {"a": 2}}, {"spec": {"a": 1}})) == 1
    assert len(transition.validate({"spec": {"a": 1}}, {"spec": {"a": 1}})) == 1


def test_oldself_inside_a_string_makes_no_transition_rule() -> None:
    judge = schema({"properties": {"a": {"type": "string", **rule("self != 'oldSelf'", message="no")}}})

    assert [cause.message for cause in judge.validate({"spec": {"a": "oldSelf"}})] == ['Invalid value: "oldSelf": no']


def test_a_rule_that_cannot_be_evaluated_refuses_and_says_why() -> None:
    judge = schema({**rule("self.a > 0"), "properties": {"a": {"type": "integer"}}})

    (cause,) = judge.validate({"spec": {}})

    assert cause.field == "spec"
    assert "evaluating rule: self.a > 0" in cause.message


def test_a_rule_that_takes_too_long_refuses_and_says_why() -> None:
    nested = "self.l.all(a, self.l.all(b, self.l.all(c, a + b + c != -1)))"
    judge = schema({**rule(nested), "properties": {"l": {"type": "array", "items": {"type": "integer"}}}})

    (cause,) = judge.validate({"spec": {"l": list(range(2000))}})

    assert "budget exceeded" in cause.message
    assert f"evaluating rule: {nested}" in cause.message


@pytest.mark.parametrize(
    ("spec", "where", "what"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "("}}}, "properties[spec].properties[a].pattern", "RE2"),
        ({"properties": {"a": {"type": "string", "pattern": "(?=a)"}}}, "properties[a].pattern", "RE2"),
        (rule("self.a >"), "x-kubernetes-validations[0].rule", "compilation failed"),
        (rule("nobody.a"), "x-kubernetes-validations[0].rule", "undeclared reference"),
        (rule("'text'"), "x-kubernetes-validations[0].rule", "must evaluate to"),
        (rule("true", messageExpression="1"), "x-kubernetes-validations[0].messageExpression", "must evaluate to"),
        (rule("isURL(self.a)"), "x-kubernetes-validations[0].rule", "isURL"),
    ],
)
def test_a_bad_crd_is_refused_with_the_place(spec: dict[str, Any], where: str, what: str) -> None:
    with pytest.raises(SchemaError) as refused:
        schema(spec)

    assert refused.value.field.startswith("schema.openAPIV3Schema.properties[spec]")
    assert refused.value.field.endswith(where)
    assert what in refused.value.message


def test_a_version_without_a_schema_is_refused() -> None:
    with pytest.raises(SchemaError, match="openAPIV3Schema"):
        StructuralSchema.from_crd_version({"name": "v1"})


def test_a_bottomless_object_is_refused_before_anything_descends() -> None:
    bottomless: dict[str, Any] = {}
    inner = bottomless
    for _ in range(100_000):
        inner["a"] = inner = {}
    judge = schema({"x-kubernetes-preserve-unknown-fields": True})
    obj = {"spec": bottomless}

    judge.default(obj)
    judge.prune(obj)
    (cause,) = judge.validate(obj)

    assert "nested deeper than" in cause.message
    while bottomless:  # or the garbage collector would descend
        bottomless = bottomless.pop("a", {})


def test_a_pattern_takes_linear_time() -> None:
    judge = schema({"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}})

    assert len(judge.validate({"spec": {"a": "a" * 100_000 + "b"}})) == 1


def test_the_status_alone_is_validated_in_an_update_of_the_status() -> None:
    root = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "required": ["name"]},
            "status": {"type": "object", "properties": {"phase": {"type": "string", "minLength": 1}}},
        },
    }
    judge = StructuralSchema.from_crd_version({"schema": {"openAPIV3Schema": root}})
    old: dict[str, Any] = {"spec": {}, "status": {}}

    (cause,) = judge.validate({"spec": {}, "status": {"phase": ""}}, old, subresource="status")

    assert cause == Cause(
        Reason.INVALID, "status.phase", 'Invalid value: "": phase in body should be at least 1 chars long'
    )
