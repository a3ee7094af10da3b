"""Who is named when a run fails: a table of exits and logs, and the nodes that come out (DESIGN 6.5)."""

from typing import Any

import msgspec
import pytest
from nvcre_coordinator.core.attribution import AgentState, FailedRun, LeaseWatch, NodeFacts, attribute_failure
from nvcre_coordinator.core.failure_lines import LogFinding, Origin, read


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
        ({"code": 1, "attempt": -1}, "an earlier attempt of the JobSet"),
    ],
)
def test_follow_ups_are_no_candidates(build: Any, other: dict[str, Any], case: str) -> None:
    crash = build.pod("r1", node="n1", rank=1, code=1, ended=60)
    echo = build.pod("r0", node="n0", rank=0, **({"ended": 60} | other))
    assert named(attribute(build, echo, crash)) == ["n1"], case


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


class TestANodeThatDied:
    def crashed(self, build: Any, facts: NodeFacts) -> list[str]:
        survivor = build.pod("r0", node="n0", code=1, ended=60, log=Origin.FOLLOW_UP)
        return named(attribute(build, survivor, group=("n0", "n1"), nodes={"n1": facts}))

    def test_agent_and_lease_silent(self, build: Any) -> None:
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

    def test_another_boot_id(self, build: Any) -> None:
        facts = NodeFacts(AgentState.CONNECTED, boot_id_at_start="b1", boot_id="b2")
        assert self.crashed(build, facts) == ["n1"]

    def test_a_silent_agent_alone_is_named_in_the_message_and_not_blamed(self, build: Any) -> None:
        survivor = build.pod("r0", node="n0", code=143)
        facts = NodeFacts(AgentState.SILENT, lease=LeaseWatch(build.at(80), build.at(62), build.at(82), renewed=True))
        found = attribute(build, survivor, group=("n0", "n1"), nodes={"n1": facts})
        assert named(found) == ["n0", "n1"]
        assert "agent silent on n1" in found.message


@pytest.mark.parametrize(
    ("lines", "origin"),
    [
        (["NCCL WARN remote process exited or there was a network error"], Origin.FOLLOW_UP),
        (["Traceback (most recent call last):", "DistBackendError: ncclRemoteError: A call failed"], Origin.FOLLOW_UP),
        (["[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)"], Origin.FOLLOW_UP),
        (["exiting program after receiving SIGTERM."], Origin.FOLLOW_UP),
        (["RuntimeError: CUDA error: an illegal memory access was encountered"], Origin.OWN),
        (["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "Connection reset by peer"], Origin.OWN),
        (["Traceback (most recent call last):", "ValueError: bad shape"], Origin.GENERIC),
        (["step 10 loss 2.3", "all fine"], Origin.NONE),
        ([], Origin.NONE),
    ],
)
def test_what_the_end_of_a_log_tells(lines: list[str], origin: Origin) -> None:
    assert read(lines).origin is origin


def test_a_log_line_keeps_its_time(build: Any) -> None:
    found = read(["2026-12-01T12:00:05.5Z step", "2026-12-01T14:00:06.25+02:00 Segmentation fault (core dumped)"])
    assert found == LogFinding(Origin.OWN, "Segmentation fault (core dumped)", build.at(6.25))
