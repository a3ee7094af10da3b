"""Who is named when a run fails: a table of exits and logs, and the nodes that come out (DESIGN 6.5)."""

from datetime import timedelta
from itertools import permutations
from typing import Any

import msgspec
import pytest
from nvcre_coordinator.core.attribution import AgentState, FailedRun, LeaseWatch, NodeFacts, attribute_failure
from nvcre_coordinator.core.clock_offset import ClockOffset
from nvcre_coordinator.core.failure_lines import Origin, read
from nvcre_coordinator.core.last_steps import LogEnd
from nvcre_coordinator.core.pods import Exit


def attribute(build: Any, *pods: Any, group: tuple[str, ...] | None = None, **facts: Any) -> Any:
    nodes = group if group is not None else tuple(sorted({pod.node for pod in pods}))
    return attribute_failure(FailedRun(pods, build.at(60), nodes, **facts), ())


def named(attribution: Any) -> list[str]:
    return [entry.name for entry in attribution.entries]


def test_the_first_crash_names_its_node_and_nothing_of_its_hardware(build: Any) -> None:
    found = attribute(
        build,
        build.pod("r0", node="n0", rank=0, code=143, ended=63),
        build.pod("r1", node="n1", rank=1, code=1, ended=60, line="RuntimeError: boom"),
        build.pod("l", node="n0", role="launcher", code=1, ended=60),
    )
    (entry,) = found.entries
    assert (entry.name, entry.component, found.attributed) == ("n1", None, True)
    assert entry.message == (
        "application error; no hardware evidence: rank 1 (pod r1) exited with code 1: RuntimeError: boom. "
        "The node is not accused: look into the program's log (status.failureLog)"
    )
    assert (entry.evidence[0].source, entry.evidence[0].code) == ("workload", 1)
    assert found.culprit.name == "r1"


def test_candidates_within_two_seconds_are_all_named_and_none_is_picked(build: Any) -> None:
    found = attribute(
        build,
        build.pod("r0", node="n0", rank=0, code=1, ended=60),
        build.pod("r1", node="n1", rank=1, code=1, ended=62),
        build.pod("r2", node="n2", rank=2, code=1, ended=63),
    )
    assert named(found) == ["n0", "n1"]
    assert all("none is picked" in entry.message for entry in found.entries)


@pytest.mark.parametrize(
    ("other", "case"),
    [
        ({"code": 1, "log": Origin.FOLLOW_UP}, "NCCL remote error"),
        ({"code": 143}, "SIGTERM of the teardown"),
        ({"code": 137, "ended": 61}, "SIGKILL after somebody else ended"),
        ({"code": 1, "role": "launcher"}, "launcher noise"),
        ({"code": 7, "told": 60}, "told to end, and exits in its own way"),
        ({"code": 7, "told": 60, "log": Origin.OWN, "logged": 60.2}, "told to end, and says so in its own way"),
        ({"code": 1, "attempt": -1}, "an earlier attempt of the JobSet"),
    ],
)
def test_follow_ups_are_no_candidates(build: Any, other: dict[str, Any], case: str) -> None:
    crash = build.pod("r1", node="n1", rank=1, code=1, ended=60)
    echo = build.pod("r0", node="n0", rank=0, **({"ended": 60} | other))
    assert named(attribute(build, echo, crash)) == ["n1"], case


@pytest.mark.parametrize(
    "own",
    [{"log": Origin.OWN, "logged": 59.5}, {"code": 137, "reason": "OOMKilled"}],
    ids=["failed before it was told", "killed for memory"],
)
def test_a_rank_that_was_told_to_end_may_have_failed_before(build: Any, own: dict[str, Any]) -> None:
    crash = build.pod("r1", node="n1", rank=1, code=1, ended=60)
    other = build.pod("r0", node="n0", rank=0, told=60, **({"code": 7, "ended": 61} | own))
    assert named(attribute(build, other, crash)) == ["n0", "n1"]


def test_out_of_memory_is_a_cause_of_its_own(build: Any) -> None:
    found = attribute(
        build,
        build.pod("r0", node="n0", code=137, reason="OOMKilled", ended=60),
        build.pod("r1", node="n1", rank=1, code=1, ended=60, log=Origin.FOLLOW_UP),
    )
    assert named(found) == ["n0"]
    assert "OOMKilled" in found.entries[0].message


def test_the_very_first_to_be_killed_was_not_killed_by_a_teardown(build: Any) -> None:
    found = attribute(
        build,
        build.pod("r0", node="n0", code=137, ended=60),
        build.pod("r1", node="n1", rank=1, code=1, ended=70, log=Origin.FOLLOW_UP),
    )
    assert named(found) == ["n0"]


def test_log_times_order_candidates_when_they_differ_by_more_than_clocks_may(build: Any) -> None:
    early = build.pod("r0", node="n0", rank=0, code=1, ended=61, log=Origin.OWN, logged=50)
    for logged, expected in ((54.5, ["n0"]), (53.5, ["n0", "n1"])):
        late = build.pod("r1", node="n1", rank=1, code=1, ended=60, log=Origin.OWN, logged=logged)
        assert named(attribute(build, early, late)) == expected


def test_only_echoes_name_the_whole_group_and_say_so(build: Any) -> None:
    found = attribute(build, build.pod("r0", node="n0", code=143), build.pod("r1", node="n1", code=143))
    assert named(found) == ["n0", "n1"]
    assert (found.attributed, found.reason.value) == (False, "NotNarrowed")
    assert all("could not be narrowed" in entry.message for entry in found.entries)
    assert all("Drain none of them" in entry.message for entry in found.entries)


def test_a_group_of_one_is_narrow_enough(build: Any) -> None:
    found = attribute(build, build.pod("r0", node="n0", code=143))
    assert (named(found), found.attributed) == (["n0"], True)


def test_no_pod_anywhere_names_nobody(build: Any) -> None:
    found = attribute(build)
    assert (found.entries, found.attributed, found.reason.value) == ((), False, "NotNarrowed")


def test_a_launcher_s_log_may_name_the_host(build: Any) -> None:
    launcher = build.pod("run-launcher-0-0-xyz", node="n0", role="launcher", code=3)
    line = "run-node-0-1: Test NCCL failure common.cu:1119 'unhandled cuda error'"
    launcher = msgspec.structs.replace(launcher, log=read([line]))
    workers = [build.pod(f"run-node-0-{i}-abcde", node=f"n{i}", rank=i, code=143) for i in range(3)]
    assert named(attribute(build, launcher, *workers)) == ["n1"]


def test_a_launcher_s_log_names_the_host_after_all_echoes(build: Any) -> None:
    lines = [
        "run-node-0-0:1:9 [0] NCCL WARN socketProgress: Connection closed by remote peer",
        "prterun noticed that process rank 9 with PID 44 on node run-node-0-1 exited on signal 9 (Killed).",
    ]
    launcher = msgspec.structs.replace(
        build.pod("run-launcher-0-0-x", node="n0", role="launcher", code=1), log=read(lines)
    )
    workers = [build.pod(f"run-node-0-{i}-abcde", node=f"n{i}", rank=i) for i in range(3)]
    (entry,) = attribute(build, launcher, *workers).entries
    assert entry.name == "n1"
    assert entry.evidence[0].message == f"the launcher's log names run-node-0-1 first: {lines[1]}"


def test_a_launcher_that_ends_alone_names_nobody(build: Any) -> None:
    """It is the first to fail on a real JobSet; its node is as good as any other."""
    launcher = build.pod("l", node="n0", role="launcher", code=1, log=Origin.GENERIC)
    found = attribute(build, launcher, build.pod("r0", node="n1", rank=0), build.pod("r1", node="n2", rank=1))
    assert (named(found), found.reason.value) == (["n0", "n1", "n2"], "NotNarrowed")
    assert found.culprit.name == "l"


def test_a_rank_that_hung_after_its_own_fault_and_was_killed_is_a_cause(build: Any) -> None:
    found = attribute(
        build,
        build.pod("r0", node="n0", rank=0, code=134, ended=60, log=Origin.FOLLOW_UP),
        build.pod("r1", node="n1", rank=1, code=143, ended=61, log=Origin.OWN, line="CUDA error: unknown error"),
    )
    assert named(found) == ["n1"]


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        ({"code": 139}, ["n1"]),
        ({"code": 143, "log": Origin.OWN}, ["n1"]),
        ({"code": 137, "reason": "OOMKilled"}, ["n1"]),
        ({"code": 1}, ["n0", "n1"]),
        ({"code": 1, "log": Origin.GENERIC}, ["n0", "n1"]),
    ],
)
def test_a_fault_beyond_doubt_counts_though_it_took_longer_to_end(
    build: Any, late: dict[str, Any], expected: list[str]
) -> None:
    """A core that is written takes longer than NCCL needs to notice; where the others are echoes, it is the cause."""
    echo = build.pod("r0", node="n0", rank=0, code=1, ended=60, log=Origin.FOLLOW_UP)
    found = attribute(build, echo, build.pod("r1", node="n1", rank=1, ended=75, **late))
    assert named(found) == expected


def test_a_launcher_killed_for_its_memory_is_a_cause_of_its_own(build: Any) -> None:
    launcher = build.pod("l", node="n0", role="launcher", rank=0, code=137, reason="OOMKilled", ended=60)
    assert named(attribute(build, launcher, build.pod("r0", node="n1", code=143, ended=61))) == ["n0"]


def test_the_order_in_which_jobs_and_pods_are_seen_makes_no_difference(build: Any) -> None:
    pods = [
        build.pod("l", node="n0", role="launcher", code=1, ended=59),
        build.pod("r0", node="n0", rank=0, code=143, ended=61),
        build.pod("r1", node="n1", rank=1, code=139, ended=60),
        build.pod("r2", node="n2", rank=2, code=1, ended=60, log=Origin.FOLLOW_UP),
    ]
    assert {tuple(named(attribute(build, *order))) for order in permutations(pods)} == {("n1",)}


def test_the_last_attempt_of_a_jobset_decides(build: Any) -> None:
    """Its restart makes every pod anew; the rank that failed before is not the one that fails now."""
    before = [
        build.pod("a0", node="n0", rank=0, code=1, ended=10),
        build.pod("a1", node="n1", rank=1, code=143, ended=11),
    ]
    launcher = build.pod("run-launcher-0-0-x", node="n0", role="launcher", code=1)
    line = (
        "prterun noticed that process rank 0 with PID 1 on node run-node-0-0 exited on signal 11 (Segmentation fault)."
    )
    before.append(msgspec.structs.replace(launcher, log=read([line])))
    last = [
        build.pod("run-node-0-0-b", node="n0", rank=0, code=143, ended=61, attempt=1),
        build.pod("run-node-0-1-b", node="n1", rank=1, code=134, ended=60, attempt=1),
    ]
    found = attribute(build, *before, *last)
    assert (named(found), found.culprit.name) == (["n1"], "run-node-0-1-b")
    echoes = [msgspec.structs.replace(pod, exit=Exit(143, finished_at=build.at(60))) for pod in last]
    assert named(attribute(build, *before, *echoes)) == ["n0", "n1"]


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (139, "Error", "exited with code 139 (SIGSEGV)"),
        (135, "Error", "exited with code 135 (SIGBUS)"),
        (134, "Error", "exited with code 134 (SIGABRT)"),
        (1, "Error", "exited with code 1"),
        (137, "OOMKilled", "was killed for memory (OOMKilled)"),
    ],
)
def test_exit_classes_that_are_causes(build: Any, code: int, reason: str, words: str) -> None:
    echo = build.pod("r0", node="n0", rank=0, code=1, ended=60, log=Origin.FOLLOW_UP)
    found = attribute(build, echo, build.pod("r1", node="n1", rank=1, code=code, reason=reason, ended=60))
    assert named(found) == ["n1"]
    assert found.entries[0].evidence[0].message == f"rank 1 (pod r1) {words}"


class TestClocks:
    def crashed(
        self, build: Any, clock: ClockOffset, *, ended: float, logged: float | None = None, ahead_s: int | None = None
    ) -> list[str]:
        """n0 ends at 60 on a clock that is known well, n1 at `ended` by its own."""
        right = ClockOffset(timedelta(0), timedelta(milliseconds=5))
        facts = {"n0": NodeFacts(clock=right), "n1": NodeFacts(clock=clock)}
        first = build.pod("r0", node="n0", rank=0, code=1, ended=60, logged=None if logged is None else 60)
        other = build.pod("r1", node="n1", rank=1, code=1, ended=ended, logged=logged)
        other = msgspec.structs.replace(other, clock_ahead_s=ahead_s)
        return named(attribute(build, first, other, nodes=facts))

    def test_an_exit_on_a_clock_that_is_behind_is_not_the_first(self, build: Any) -> None:
        behind = ClockOffset(timedelta(seconds=-3600), timedelta(milliseconds=5))
        assert self.crashed(build, behind, ended=70 - 3600) == ["n0"]
        assert self.crashed(build, behind, ended=60 - 3600) == ["n0", "n1"]
        assert self.crashed(build, behind, ended=50 - 3600) == ["n1"]

    def test_an_agent_that_puts_its_clock_back_does_not_put_the_blame_on_another(self, build: Any) -> None:
        """Its kubelet's stamps were seen within a second: the node's clock is right, the agent lies, or errs."""
        lies = ClockOffset(timedelta(seconds=-3600), timedelta(milliseconds=5))
        assert self.crashed(build, lies, ended=50) == ["n0"]  # without a witness
        assert self.crashed(build, lies, ended=50, ahead_s=-1) == ["n1"]
        assert self.crashed(build, lies, ended=50, logged=49, ahead_s=-1) == ["n1"]

    def test_a_kubelet_that_agrees_with_its_agent_changes_nothing(self, build: Any) -> None:
        behind = ClockOffset(timedelta(seconds=-3600), timedelta(milliseconds=5))
        assert self.crashed(build, behind, ended=70 - 3600, ahead_s=-3601) == ["n0"]
        assert self.crashed(build, behind, ended=50 - 3600, ahead_s=-3700) == ["n1"]  # seen late

    def test_a_clock_that_is_hardly_known_leaves_more_candidates(self, build: Any) -> None:
        assert self.crashed(build, ClockOffset(timedelta(0), timedelta(seconds=30)), ended=80) == ["n0", "n1"]

    def test_log_times_order_by_two_seconds_where_both_clocks_are_known_well(self, build: Any) -> None:
        well = ClockOffset(timedelta(0), timedelta(milliseconds=5))
        assert self.crashed(build, well, ended=61, logged=62.5) == ["n0"]
        assert self.crashed(build, ClockOffset(timedelta(seconds=1), timedelta(0)), ended=61, logged=62.5) == [
            "n0",
            "n1",
        ]


class TestAStall:
    def run(self, build: Any, *steps: int | None, **facts: Any) -> Any:
        pods = [build.pod(f"r{rank}", node=f"n{rank}", rank=rank) for rank in range(len(steps))]
        ends = {
            pod.uid: LogEnd(step, build.at(50), build.at(50)) for pod, step in zip(pods, steps, strict=True) if step
        }
        return attribute(build, *pods, log_ends=ends, **facts)

    def test_the_rank_that_stopped_first_is_an_application_error(self, build: Any) -> None:
        found = self.run(build, 9, 8, 9)
        (entry,) = found.entries
        assert (entry.name, entry.component, found.attributed) == ("n1", None, True)
        assert entry.message == (
            "application error; no hardware evidence: rank 1 (pod r1) stopped first: its last step is 8, others logged "
            "9. The node is not accused: look into the program's log (status.failureLog)"
        )
        assert [(item.source, item.time) for item in entry.evidence] == [("workload", build.at(50))]
        assert found.message == "n1 ran the rank(s) that stopped first"

    def test_several_are_all_named(self, build: Any) -> None:
        found = self.run(build, 9, 8, 7, 9)
        assert named(found) == ["n1", "n2"]
        assert all("one of 2 ranks that are behind, none is picked" in entry.message for entry in found.entries)

    def test_one_logging_rank_never_narrows_and_it_is_said_why(self, build: Any) -> None:
        found = self.run(build, None, None, 9)
        assert (named(found), found.reason.value) == (["n0", "n1", "n2"], "NotNarrowed")
        assert found.message == "Could not be narrowed to fewer than 3 nodes (1 of 3 ranks log steps)"

    def test_hardware_a_dead_node_and_a_crash_come_before_it(self, build: Any) -> None:
        gone = NodeFacts(AgentState.CONNECTED, boot_id_at_start="b1", boot_id="b2")
        assert named(self.run(build, 9, 8, 9, nodes={"n0": gone})) == ["n0"]
        pods = (build.pod("r0", node="n0", rank=0, code=139), build.pod("r1", node="n1", rank=1))
        ends = {f"uid-r{rank}": LogEnd(step, build.at(50)) for rank, step in enumerate((9, 8))}
        assert named(attribute(build, *pods, log_ends=ends)) == ["n0"]

    def test_nccl_s_watchdog_that_ended_everybody_tells_who_never_came(self, build: Any) -> None:
        """Then the run has failed, not stalled: every exit is an echo, but each log says how far its rank had come."""
        pods = [build.pod(f"r{rank}", node=f"n{rank}", rank=rank, code=134) for rank in range(3)]
        logs = [
            f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}] failure detected by watchdog at work sequence id: 7 PG "
            f"status: last enqueued work: {enqueued}, last completed work: 6"
            for rank, enqueued in enumerate((8, 8, 6))
        ]
        ended = [msgspec.structs.replace(pod, log=read([line])) for pod, line in zip(pods, logs, strict=True)]
        assert named(attribute(build, *ended)) == ["n2"]


class TestANodeThatDied:
    def crashed(self, build: Any, facts: NodeFacts) -> list[str]:
        survivor = build.pod("r0", node="n0", code=1, ended=60, log=Origin.FOLLOW_UP)
        return named(attribute(build, survivor, group=("n0", "n1"), nodes={"n1": facts}))

    def test_46_a_node_whose_agent_and_lease_are_silent_is_the_cause_and_no_survivor_is(self, build: Any) -> None:
        watched = LeaseWatch(build.at(40), build.at(62), build.at(62)).seen(build.at(40), build.at(82))
        assert self.crashed(build, NodeFacts(AgentState.SILENT, lease=watched)) == ["n1"]

    def test_a_node_whose_clock_is_an_hour_behind_renews_its_lease_like_any_other(self, build: Any) -> None:
        watched = LeaseWatch(build.at(-3600), build.at(62), build.at(62)).seen(build.at(-3590), build.at(72))
        watched = watched.seen(build.at(-3590), build.at(92))
        assert (watched.silent(), self.crashed(build, NodeFacts(AgentState.SILENT, lease=watched))) == (
            False,
            ["n0", "n1"],
        )

    def test_a_node_whose_clock_was_ahead_is_dead_all_the_same(self, build: Any) -> None:
        watched = LeaseWatch(build.at(3600), build.at(62), build.at(62))
        assert watched.silent() is None
        assert watched.seen(build.at(3600), build.at(82)).silent() is True

    def test_46_a_node_that_came_back_with_another_boot_id_is_the_first_cause(self, build: Any) -> None:
        facts = NodeFacts(AgentState.CONNECTED, boot_id_at_start="b1", boot_id="b2")
        assert self.crashed(build, facts) == ["n1"]

    def test_46_a_silent_agent_alone_is_named_in_the_message_and_not_blamed(self, build: Any) -> None:
        survivor = build.pod("r0", node="n0", code=143)
        facts = NodeFacts(AgentState.SILENT, lease=LeaseWatch(build.at(80), build.at(62), build.at(82), renewed=True))
        found = attribute(build, survivor, group=("n0", "n1"), nodes={"n1": facts})
        assert named(found) == ["n0", "n1"]
        assert "agent silent on n1" in found.message
