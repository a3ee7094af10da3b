"""Which node is slow, from the figures of its probes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_coordinator.core.localisation import (
    Limits,
    ProbeKind,
    ProbeResult,
    ProbeState,
    ProbeVerdict,
    SizeBandwidth,
    judge,
)

PASS, SLOW, CANNOT = ProbeVerdict.PASS, ProbeVerdict.SLOW, ProbeVerdict.CANNOT_COMPARE
FIXED = Limits(fixed_gbps={ProbeKind.NVLINK_ALL_REDUCE: 400.0})


def measured(
    busbw: float, *, product: str = "H100", driver: str = "570", nccl: str = "2.26", arguments: str = "-g 8"
) -> ProbeResult:
    return ProbeResult(
        probe_id="p",
        kind=ProbeKind.NVLINK_ALL_REDUCE,
        state=ProbeState.MEASURED,
        bus_bandwidth_gbps=f"{busbw:.2f}",
        results=(SizeBandwidth(size_bytes=4 << 30, bus_bw=f"{busbw:.2f}"),),
        gpu_product=product,
        driver_version=driver,
        nccl_version=nccl,
        arguments=arguments,
    )


def not_tested(state: ProbeState = ProbeState.NOT_TESTED) -> ProbeResult:
    return ProbeResult(probe_id="p", kind=ProbeKind.NVLINK_ALL_REDUCE, state=state, reason="NotPlaced")


def verdicts(results: list[ProbeResult], limits: Limits | None = None) -> list[ProbeVerdict]:
    judged = judge({f"n{number}": result for number, result in enumerate(results)}, limits or Limits())
    return [judged[f"n{number}"].verdict for number in range(len(results))]


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ([480, 481, 479, 291], [PASS, PASS, PASS, SLOW]),
        ([480, 481, 479, 440], [PASS, PASS, PASS, PASS]),  # within 10 % of the median
        ([480, 480, 480, 431], [PASS, PASS, PASS, SLOW]),  # more than 10 % below, no spread
        ([480, 450, 510, 420, 390], [PASS, PASS, PASS, PASS, PASS]),  # peers differ themselves: the MAD decides
        ([480, 481, 291], [CANNOT, CANNOT, CANNOT]),  # two other nodes are too few
        ([480], [CANNOT]),
        ([480, 481, 479, 600], [PASS, PASS, PASS, PASS]),  # fast is not slow
        ([0, 0, 0, 0], [PASS, PASS, PASS, PASS]),
    ],
)
def test_a_node_is_slow_below_its_peers(figures: list[float], expected: list[ProbeVerdict]) -> None:
    assert verdicts([measured(figure) for figure in figures]) == expected


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ([399.99], [SLOW]),
        ([400], [PASS]),  # on the limit is not below it
        ([399, 401], [SLOW, PASS]),
        ([399, 399, 399, 399], [SLOW, SLOW, SLOW, SLOW]),  # equal among bad peers is still below the limit
        ([600, 601, 602, 410], [PASS, PASS, PASS, SLOW]),  # above the limit and still clearly below its peers
    ],
)
def test_a_fixed_limit_needs_no_peers(figures: list[float], expected: list[ProbeVerdict]) -> None:
    assert verdicts([measured(figure) for figure in figures], FIXED) == expected


@pytest.mark.parametrize("state", [ProbeState.NOT_TESTED, ProbeState.ERROR])
def test_30_not_tested_and_error_are_neither_slow_nor_a_peer(state: ProbeState) -> None:
    results = [measured(480), measured(481), not_tested(state), measured(291)]
    assert verdicts(results) == [CANNOT, CANNOT, ProbeVerdict.NONE, CANNOT]
    assert verdicts(results, FIXED)[2] is ProbeVerdict.NONE


@pytest.mark.parametrize("field", ["product", "driver", "nccl", "arguments"])
def test_only_equals_are_compared(field: str) -> None:
    others = [measured(480, **{field: "another"}) for _ in range(3)]
    assert verdicts([*others, measured(291)])[-1] is CANNOT


def test_the_sentence_has_the_numbers() -> None:
    judged = judge({f"n{index}": measured(value) for index, value in enumerate((480, 481, 479, 291))}, Limits())
    assert judged["n3"].comparison == (
        "bus bandwidth 291.00 GB/s at 4 GiB is 39 % below its peers"
        " (the median of 3 other nodes is 480.00 GB/s, the limit 432.00 GB/s)"
    )


@given(st.lists(st.floats(100, 1000), min_size=4, max_size=20))
def test_the_fastest_node_is_never_slow(figures: list[float]) -> None:
    best = max(range(len(figures)), key=lambda index: figures[index])
    assert verdicts([measured(figure) for figure in figures])[best] is PASS
