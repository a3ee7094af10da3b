"""Loops of CEL expressions: those that might build values without end are found, however they are written."""

import pytest
from nvcre_coordinator.core import thresholds
from nvcre_coordinator.core.loops import depth_of_loops
from nvcre_coordinator.detectors import DetectorSpecError
from nvcre_coordinator.detectors.cel import compile_expression

GROWS = "['aaaaaaaa']" + ".map(a, a+a+a+a+a+a+a+a+a+a)" * 12
DOUBLES = "[[1]]" + ".map(a, [a, a])" * 25 + ".all(a, a == a)"


@pytest.mark.parametrize(
    ("expression", "depth"),
    [
        ("value > 1", 0),
        ("'[1].map(a, a).map(b, b)' == ''", 0),
        ("[1].all(x, x > value)", 1),
        ("a.exists(x, x) || b.exists(x, x) && c.all(y, y)", 1),
        ("[1].map(a, [a].map(b, b))", 2),
        ("[1].map(a, a+a).map(b, b)", 2),
        ("([1].map(a, a)).map(b, b)", 2),
        ("[[1].map(a, a)].map(b, b)", 2),
        ("[1].map(a, a)[0].map(b, b)", 2),
        ("[1].map(a, a).size().map(b, b)", 2),
        ("(true ? [1].map(a, a) : []).map(b, b)", 2),
        ("// \"\n[1] . map (a, a)\n// it's\n. map(b, b)", 2),
        (r"""r"\" == "" || [1].map(a, a).map(b, b) == [] || "" == "" """, 2),
        (")))[1].map(a, a)", 1),
        (GROWS, 12),
    ],
)
def test_how_deep_loops_are(expression: str, depth: int) -> None:
    assert depth_of_loops(expression) == depth


@pytest.mark.parametrize("bomb", [GROWS + ".size() > 0", DOUBLES])
def test_an_expression_that_grows_without_end_is_refused_before_it_is_evaluated(bomb: str) -> None:
    with pytest.raises(thresholds.ThresholdError, match="a loop within a loop"):
        thresholds.holds(bomb, 1.0)
    with pytest.raises(DetectorSpecError, match="more than 2 loops"):
        compile_expression(bomb)


def test_a_loop_over_a_node_does_not_add_up() -> None:
    with pytest.raises(DetectorSpecError, match="a loop and a"):
        compile_expression("node.metadata.annotations.exists(key, size(key + key) > 1)")
    compile_expression("node.spec.taints.exists(t, node.status.conditions.exists(c, c.type == t.key)) || true")
