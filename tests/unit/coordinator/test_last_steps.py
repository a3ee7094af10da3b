"""Which rank stopped first in a run that hangs: what counts as behind, and when nothing can be told."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from nvcre_coordinator.core.clock_offset import ClockOffset
from nvcre_coordinator.core.last_steps import LogEnd, Standing, read_end, stopped_first
from nvcre_coordinator.core.nccl_watchdog import CollectiveMark
from nvcre_logs.patterns import LogProfileError
from nvcre_logs.profile import LogProfileSpec
from nvcre_logs.training import TrainingProfile, compile_training

PROFILES = Path(__file__).parents[3] / "daemonset" / "log-profiles"
STEP = (
    " [2026-02-05 16:03:52] iteration {step:8}/  158945 | consumed samples: 7680 | elapsed time per iteration (ms): "
    "13256.1 | throughput per GPU (TFLOP/s/GPU): 138.5 | learning rate: 1.5E-05 | lm loss: 1.2E+01 | loss scale: 1.0 |"
)


def built_in(name: str) -> TrainingProfile:
    manifest = yaml.safe_load((PROFILES / f"{name}.yaml").read_text())
    return compile_training(name, msgspec.convert(manifest["spec"], LogProfileSpec))


def profile(regex: str) -> TrainingProfile:
    spec = {"timestamp": {"layout": "2006"}, "patterns": {"trainingStep": {"regex": regex}}}
    return compile_training("own", msgspec.convert(spec, LogProfileSpec))


def test_the_last_step_and_its_time_are_found_behind_whatever_came_after(build: Any) -> None:
    lines = [f"2026-12-01T12:00:{second:02}Z {STEP.format(step=second)}" for second in (10, 11)]
    watchdog = "Timeout at NCCL work: 7, last enqueued NCCL work: 8, last completed NCCL work: 6."
    lines += [f"2026-12-01T12:00:12Z [rank3]:[E ProcessGroupNCCL.cpp:1] [PG 0 Rank 3] {watchdog}"]
    lines += ["2026-12-01T12:00:13Z   frame #3: clone"]
    end = read_end(lines, built_in("megatron-training"))
    assert end == LogEnd(11, build.at(11), build.at(13), (CollectiveMark("0", 3, 8),))


def test_without_a_profile_only_the_time_of_the_last_line_is_known(build: Any) -> None:
    assert read_end(["2026-12-01T12:00:10Z step 3", "no time"], None) == LogEnd(last_line=build.at(10))
    assert read_end([], None) == LogEnd()


@pytest.mark.parametrize(
    ("regex", "line", "step"),
    [
        (r"step (?P<iteration>\d+)", "step 12", 12),
        (r"it (?P<iteration>\d+) global (?P<globalStep>\d+)", "it 2 global 102", 102),
        (r"it (?P<iteration>\d+)(?: global (?P<globalStep>\d+))?", "it 2", 2),
        (r"step (?P<iteration>\S+)", "step twelve", None),
        (r"step (?P<iteration>\d+)", "step " + "9" * 40, None),
    ],
)
def test_the_step_is_the_global_one_before_that_of_the_epoch(regex: str, line: str, step: int | None) -> None:
    assert read_end([line], profile(regex)).step == step


def test_a_profile_that_knows_no_steps_is_refused_with_the_field() -> None:
    with pytest.raises(LogProfileError, match=r"it has no spec\.patterns\.trainingStep"):
        built_in("nccl-bandwidth")
    with pytest.raises(LogProfileError, match=r"spec\.patterns\.trainingStep\.regex lacks"):
        profile(r"loss (?P<loss>\d+)")


def test_a_step_is_found_behind_a_launcher_s_tag_and_where_a_bar_counts_it(build: Any) -> None:
    lines = [f"2026-12-01T12:00:{second:02}Z [1,0]<stdout>:{STEP.format(step=second)}" for second in (10, 11)]
    assert read_end(lines, built_in("megatron-training")).step == 11
    bar = "2026-12-01T12:00:20Z  40%|####      | 4/10 [00:20<00:30,  5.0s/it]"
    loss = "2026-12-01T12:00:21Z {'loss': 2.5, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.4}"
    end = read_end([bar, loss], built_in("hf-trainer"))
    assert (end.step, end.step_time) == (4, build.at(21))


class Run:
    """Workers r0.. on nodes n0.., each with the end of its log."""

    def __init__(self, build: Any, count: int, **clocks: ClockOffset) -> None:
        self.build = build
        self.clocks = clocks
        self.pods = tuple(build.pod(f"r{rank}", node=f"n{rank}", rank=rank) for rank in range(count))

    def stopped(self, *ends: LogEnd | tuple[int, float] | None) -> Standing:
        """(last step, when), for each rank that has a log."""
        known = {
            pod.uid: LogEnd(end[0], self.build.at(end[1]), self.build.at(end[1])) if isinstance(end, tuple) else end
            for pod, end in zip(self.pods, ends, strict=False)
            if end is not None
        }
        return stopped_first(self.pods, known, self.clocks)

    def behind(self, *ends: Any) -> list[str]:
        return [late.pod.name for late in self.stopped(*ends).behind]


@pytest.mark.parametrize(
    ("case", "ranks", "ends", "behind"),
    [
        ("one is a step behind", 4, [(9, 50), (9, 50), (8, 50), (9, 50)], ["r2"]),
        ("several are behind, none is picked", 5, [(9, 50), (7, 50), (8, 50), (9, 50), (9, 50)], ["r1", "r2"]),
        ("of two the one behind", 2, [(9, 50), (8, 50)], ["r1"]),
        ("one is ahead, which says nothing", 4, [(9, 50), (8, 50), (8, 50), (8, 50)], []),
        ("same step, stopped clearly earlier", 3, [(9, 50), (9, 45.5), (9, 50)], ["r1"]),
        ("same step, within what clocks may differ by", 3, [(9, 50), (9, 46), (9, 50)], []),
        ("a number counts before a time", 4, [(9, 40), (9, 50), (8, 50), (9, 50)], ["r2"]),
        ("only one rank logs", 4, [None, None, None, (9, 50)], []),
        ("fewer than half log", 5, [(9, 50), (8, 50)], []),
        ("half of them log", 4, [(9, 50), (8, 50)], ["r1"]),
        ("no logs at all", 2, [], []),
        ("nobody ran", 0, [], []),
    ],
)
def test_who_is_behind(build: Any, case: str, ranks: int, ends: list[Any], behind: list[str]) -> None:
    assert Run(build, ranks).behind(*ends) == behind


def test_times_are_compared_on_one_clock(build: Any) -> None:
    hour, sure = timedelta(hours=1), timedelta(milliseconds=5)
    right = ClockOffset(timedelta(0), sure)
    run = Run(build, 2, n0=right, n1=ClockOffset(-hour, sure))
    assert run.behind((9, 50), (9, 50 - 3600)) == []
    assert run.behind((9, 50), (9, 47 - 3600)) == ["r1"]  # both clocks are known well: 2 s are enough
    run.pods = tuple(msgspec.structs.replace(pod, clock_ahead_s=-1) for pod in run.pods)
    assert run.behind((9, 50), (9, 50)) == []  # r1's kubelet is no hour behind: r0 is not the earlier one
    vague = Run(build, 2, n0=right, n1=ClockOffset(timedelta(0), timedelta(seconds=10)))
    assert vague.behind((9, 50), (9, 40)) == []


def test_the_watchdog_s_word_is_stronger_than_steps(build: Any) -> None:
    def said(rank: int, enqueued: int, step: int) -> LogEnd:
        return LogEnd(step, build.at(50), build.at(50), (CollectiveMark("0", rank, enqueued),))

    found = Run(build, 3).stopped(said(0, 70, 9), said(1, 69, 9), said(2, 70, 8))
    assert [late.pod.name for late in found.behind] == ["r1"]
    assert found.behind[0].sentence == (
        "rank 1 (pod r1) stopped first: rank 1 of process group 0 had enqueued 69 collectives, others 70"
    )


def test_launchers_and_earlier_attempts_are_no_ranks(build: Any) -> None:
    launcher = build.pod("l", role="launcher")
    old = build.pod("old", node="n9", rank=0, attempt=0)
    pods = (launcher, old, *(build.pod(f"r{rank}", node=f"n{rank}", rank=rank, attempt=1) for rank in range(2)))
    steps = {"l": 1, "old": 2, "r0": 9, "r1": 9}
    ends = {f"uid-{name}": LogEnd(step, build.at(50), build.at(50)) for name, step in steps.items()}
    assert stopped_first(pods, ends, {}).behind == ()


@pytest.mark.parametrize(
    ("ends", "note"),
    [
        ([(9, 50)], "1 of 3 ranks log steps"),
        ([(9, 50), (9, 50), (9, 50)], "3 of 3 ranks log steps and none of them are behind"),
        ([(9, 50), (8, 50), (8, 50)], "3 of 3 ranks log steps and 2 of them are behind"),
    ],
)
def test_why_it_could_not_be_told_is_said(build: Any, ends: list[Any], note: str) -> None:
    assert Run(build, 3).stopped(*ends) == Standing(note=note)


def test_the_log_that_fell_silent_first_is_a_hint_and_names_nobody(build: Any) -> None:
    def silent(at: float) -> LogEnd:
        return LogEnd(last_line=build.at(at))

    found = Run(build, 3).stopped(silent(50), silent(30), silent(50))
    assert found.behind == ()
    assert found.note == (
        "0 of 3 ranks log steps; a hint only: the log of rank 1 (pod r1) on n1 fell silent first, at 12:00:30Z"
    )
    assert "hint" not in Run(build, 3).stopped(silent(50), silent(47), silent(50)).note
