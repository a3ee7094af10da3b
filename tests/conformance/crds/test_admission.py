"""What the CRDs accept and refuse: the tables in cases/, judged by our engine, by the embedded
API server, and by a real kube-apiserver.

The rules are those of the Job page and of DESIGN section 4. A refusal is expected with reason, field and a part of the
message; the judges must agree in every word.
"""

from typing import Any

import pytest

from ..starting import crds
from .case import Case, Expected, base, judge
from .cases import immutability, job_spec, labels, other_kinds, status
from .judges import UNCHECKED, Engine, Refused, ServerJudge

CASES = [*labels.CASES, *immutability.CASES, *job_spec.CASES, *status.CASES, *other_kinds.CASES]


def is_expected(found: Expected, expected: Expected) -> bool:
    return found[:2] == expected[:2] and expected[2] in found[2]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_engine_judges_as_the_table_says(engine: Engine, case: Case) -> None:
    verdict = judge(engine, base(case.kind), case, "case")

    causes = [cause for cause in verdict.causes if UNCHECKED not in cause[2]] if isinstance(verdict, Refused) else []
    assert len(causes) == len(case.refused), causes
    for expected in case.refused:
        assert any(is_expected(cause, expected) for cause in causes), causes


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: CASES[number].name)
def test_a_server_agrees_in_every_word(engine: Engine, server_judge: ServerJudge, number: int) -> None:
    case = CASES[number]
    ours = judge(engine, base(case.kind), case, f"case-{number}")

    theirs = judge(server_judge, base(case.kind), case, f"case-{number}")

    assert body(ours) == body(theirs)


def body(verdict: dict[str, Any] | Refused) -> Any:
    """What the judges can agree on: the server alone fills in metadata."""
    if isinstance(verdict, Refused):
        return verdict.causes
    return {key: verdict.get(key) for key in ("spec", "status")}


def test_a_server_finds_every_schema_structural_and_every_name_free(server_judge: ServerJudge) -> None:
    for crd in crds():
        conditions = server_judge.conditions(crd)
        assert conditions["Established"]["status"] == "True"
        assert conditions["NamesAccepted"]["status"] == "True"
        assert "NonStructuralSchema" not in conditions, conditions["NonStructuralSchema"]
