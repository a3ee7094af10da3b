"""What the end of a failed process's log tells: its own fault, somebody else's, or only that something went wrong."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvcre_coordinator.core.failure_lines import LogFinding, Origin, read
from nvcre_coordinator.core.limits import clip
from nvcre_coordinator.core.nccl_watchdog import CollectiveMark, behind

LOGS = yaml.safe_load((Path(__file__).parent / "failure_logs.yaml").read_text())


@pytest.mark.parametrize("told", LOGS, ids=[told["case"] for told in LOGS])
def test_what_the_end_of_a_log_tells(told: dict[str, str]) -> None:
    found = read(told["log"].splitlines())
    assert found.origin.value == told["origin"]
    if "line" in told:
        assert found.line == clip(told["line"], 200)


@pytest.mark.parametrize(
    ("case", "host", "log"),
    [
        (
            "PRRTE, after echoes of the survivors",
            "run-node-0-2",
            [
                "run-node-0-0:1:9 [0] NCCL WARN socketProgress: Connection closed by remote peer",
                "run-node-0-0: Test NCCL failure common.cu:303 'remote process exited or there was a network error / '",
                " .. run-node-0-0 pid 31: Test failure common.cu:401",
                "prterun noticed that process rank 17 with PID 44 on node run-node-0-2 exited on signal 11 (SIGSEGV).",
            ],
        ),
        (
            "Open MPI 4, tagged output",
            "run-node-0-1.run",
            ["mpirun noticed that process rank 3 with PID 0 on node run-node-0-1.run exited on signal 9 (Killed)."],
        ),
        (
            "daemon lost",
            "run-node-0-3",
            [
                "PRTE has lost communication with a remote daemon.",
                "  HNP daemon   : prterun-run-launcher-1@0 on node run-launcher-0-0",
                "  Remote daemon: prterun-run-launcher-1@3 on node run-node-0-3",
            ],
        ),
        ("srun", "node-7", ["srun: error: node-7: task 56: Segmentation fault (core dumped)", "srun: error: node-1: "
                            "tasks 0-7: Terminated"]),
        ("srun that ended them itself", "", ["srun: error: node-1: tasks 0-7: Terminated"]),
        ("nccl-tests", "f-2", ["f-2: Test NCCL failure common.cu:1119 'unhandled system error / '"]),
        ("its echo", "", ["f-1: Test NCCL failure x.cu:3 'remote process exited or there was a network error'"]),
    ],
)  # fmt: skip
def test_whom_a_launcher_names(case: str, host: str, log: list[str]) -> None:
    assert read(log).named_host == host


def test_what_was_survived_for_minutes_is_not_what_ended_the_process() -> None:
    start = ["2026-12-01T12:00:00Z Traceback (most recent call last):", "2026-12-01T12:00:00Z KeyError: 'optional'"]
    end = ["2026-12-01T12:09:00Z NCCL WARN Connection closed by remote peer"]
    assert read([*start, *end]).origin is Origin.FOLLOW_UP
    assert read(start).origin is Origin.GENERIC
    fault = ["2026-12-01T12:00:00Z CUDA error: unspecified launch failure"]
    assert read([*fault, *end]).origin is Origin.OWN


def test_a_log_line_keeps_its_time() -> None:
    found = read(["2026-12-01T12:00:05.5Z step", "2026-12-01T14:00:06.25+02:00 Segmentation fault (core dumped)"])
    at = datetime(2026, 12, 1, 12, 0, 6, 250_000, UTC)
    assert found == LogFinding(Origin.OWN, "Segmentation fault (core dumped)", at)


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ("[rank5]:[E709 17:05:38.1 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank 5]  failure detected "
         "by watchdog at work sequence id: 85 PG status: last enqueued work: 89, last completed work: 84",
         CollectiveMark("0", 5, 89)),
        ("[rank6]:[E703 21:51:54.1 ProcessGroupNCCL.cpp:1987] [PG ID 2 PG GUID 13(mesh_tp) Rank 6] Received a dump "
         "signal due to a collective timeout from  rank 7 and we will try our best to dump the debug info. Last "
         "enqueued NCCL work: 56116, last completed NCCL work: 56116.", CollectiveMark("13", 6, 56116)),
        ("[rank1]:[E1003 18:37:01.8 ProcessGroupNCCL.cpp:1709] [PG 0 (default_pg) Rank 1] Timeout at NCCL work: 63, "
         "last enqueued NCCL work: 64, last completed NCCL work: 62.", CollectiveMark("0", 1, 64)),
        ("[rank7]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 7] Timeout at NCCL work: 1, last enqueued NCCL work: 1, "
         "last completed NCCL work: 3452013982.", CollectiveMark("0", 7, 1)),
        ("[rank1]:[E ProcessGroupNCCL.cpp:1540] [PG 1 Rank 1] Timeout at NCCL work: 7, last enqueued NCCL work: 8, "
         "last completed NCCL work: 6.", None),
        ("the last enqueued work: 7, is done", None),
    ],
)  # fmt: skip
def test_how_far_a_rank_had_come_with_its_collectives(line: str, mark: CollectiveMark | None) -> None:
    assert read([line]).collectives == (() if mark is None else (mark,))


def marks(**enqueued: int) -> dict[str, tuple[CollectiveMark, ...]]:
    return {pod: (CollectiveMark("0", int(pod[1:]), count),) if count else () for pod, count in enqueued.items()}


@pytest.mark.parametrize(
    ("case", "said", "late"),
    [
        ("one never came", marks(r0=9, r1=9, r2=8, r3=9), ["r2"]),
        ("two never came", marks(r0=9, r1=7, r2=8, r3=9), ["r1", "r2"]),
        ("all came", marks(r0=9, r1=9), []),
        ("one is ahead of all, which says nothing", marks(r0=9, r1=8, r2=8), []),
        ("too few spoke", marks(r0=9, r1=8, r2=0, r3=0, r4=0), []),
        ("half of them spoke", marks(r0=9, r1=8, r2=0, r3=0), ["r1"]),
        ("other groups count by themselves",
         {"a": (CollectiveMark("3", 0, 5),), "b": (CollectiveMark("4", 1, 9),), "c": (CollectiveMark("4", 0, 9),)}, []),
        ("two groups that have one name",
         {"a": (CollectiveMark("3", 0, 5),), "b": (CollectiveMark("3", 0, 6),)}, []),
        ("higher ranks of the group are silent",
         {"a": (CollectiveMark("3", 0, 5),), "b": (CollectiveMark("3", 7, 6),), "c": ()}, []),
    ],
)  # fmt: skip
def test_who_never_came_to_a_collective(case: str, said: Any, late: list[str]) -> None:
    assert sorted(behind(said)) == late
