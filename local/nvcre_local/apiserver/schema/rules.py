"""One rule of x-kubernetes-validations, compiled: CEL over `self` and `oldSelf`, and what it says when it fails.

Variables are declared `dyn`; the values bring their types (see `cel_values`), so what a real server finds while it
checks types at the creation of the CRD is found here at evaluation. Kubernetes' own CEL libraries are not available.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional

MAX_MESSAGE_BYTES = 5 << 10
"""A longer messageExpression result is ignored (k8s.io/apiserver apis/cel MaxEvaluatedMessageExpressionSizeBytes)."""

_ENVIRONMENT = cel.NewEnv(
    variables={
        "self": cel.Type.DYN,
        "oldSelf": cel.Type.DYN,
        "previous_self": cel.Type.DYN,
        "has_previous_self": cel.Type.BOOL,
    },
    extensions=[ext_optional.ExtOptional(), ext_bindings.ExtBindings()],
)
_STRING_LITERAL = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')
_OLD_SELF = re.compile(r"(?<![\w.])oldSelf\b")


class RuleError(ValueError):
    """The rule does not compile; `key` is the property of the rule that is at fault."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, slots=True)
class Failed:
    """The rule is false, or cannot be evaluated (`undecided`: the detail then says why)."""

    detail: str
    undecided: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    source: str
    message: str
    reason: str | None
    field_path: str
    transition: bool
    """Mentions oldSelf: evaluated only where there is an old value to compare with."""
    optional_old_self: bool
    program: Any
    message_program: Any | None

    @classmethod
    def compile(cls, source: Mapping[str, Any]) -> "Rule":
        """Raises RuleError."""
        rule: str = source["rule"]
        optional = bool(source.get("optionalOldSelf"))
        message_expression = source.get("messageExpression")
        return cls(
            source=rule.strip(),
            message=str(source.get("message", "")).strip(),
            reason=source.get("reason"),
            field_path=source.get("fieldPath", ""),
            transition=_OLD_SELF.search(_STRING_LITERAL.sub("''", rule)) is not None,
            optional_old_self=optional,
            program=_program(rule, "rule", cel.Type.BOOL, optional),
            message_program=_program(message_expression, "messageExpression", cel.Type.STRING, False)
            if message_expression
            else None,
        )

    def check(self, value: Any, old: Any | None) -> Failed | None:
        """`value` and `old` are CEL values; `old` None where there is none. None: the rule holds or does not apply."""
        if self.transition and old is None and not self.optional_old_self:
            return None
        data = {"self": value, "oldSelf": old, "previous_self": old, "has_previous_self": old is not None}
        try:
            outcome = self.program.eval(data=data)
        except RuntimeError as error:  # it takes more steps than the interpreter allows
            return Failed(f"{error} evaluating rule: {self.message or self.source}", undecided=True)
        if outcome.type() == cel.Type.ERROR:
            return Failed(f"{outcome.value()} evaluating rule: {self.message or self.source}", undecided=True)
        if outcome.value() is True:
            return None
        return Failed(self._evaluated_message(data) or self.message or f"failed rule: {self.source}")

    def _evaluated_message(self, data: Mapping[str, Any]) -> str:
        """Empty where there is no messageExpression or it yields nothing usable: then `message` speaks."""
        if self.message_program is None:
            return ""
        try:
            outcome = self.message_program.eval(data=data)
        except RuntimeError:
            return ""
        text = outcome.value()
        if outcome.type() == cel.Type.ERROR or not isinstance(text, str):
            return ""
        if "\n" in text.strip() or len(text.strip().encode()) > MAX_MESSAGE_BYTES:
            return ""
        return text.strip()


def _program(source: str, key: str, result: Any, optional_old_self: bool) -> Any:
    if optional_old_self:
        # An optional cannot be handed in from Python, so it is made inside. The newline ends a comment of the rule.
        source = (
            "cel.bind(oldSelf, has_previous_self ? optional.of(previous_self) : optional.none(), (" + source + "\n))"
        )
    try:
        program = _ENVIRONMENT.compile(source)
    except RuntimeError as e:  # what cel-expr-python raises for every compile error
        raise RuleError(key, f"compilation failed: {e}") from e
    if program.return_type() not in (result, cel.Type.DYN):
        raise RuleError(key, f"must evaluate to {result.name()}, not {program.return_type().name()}")
    return program
