"""What is remembered of a run's pods, whatever happens to them."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_coordinator.api.meta import from_json
from nvcre_coordinator.api.workload import Pod
from nvcre_coordinator.core.failure_lines import LogFinding, Origin
from nvcre_coordinator.core.nccl_watchdog import CollectiveMark
from nvcre_coordinator.core.pods import (
    MAX_RECORDED_BYTES,
    Exit,
    PodRecord,
    RunRecord,
    decode,
    encode,
    last_attempt,
    lasting,
    observe,
    remember,
    seen_at,
    with_log,
    without_gpus,
)


def pod(*statuses: dict[str, Any], phase: str = "Running", **labels: str) -> Pod:
    return from_json(
        {
            "metadata": {
                "name": "run-node-0-3-x", "uid": "u", "creationTimestamp": "2026-12-01T12:00:00Z",
                "labels": {
                    "jobset.sigs.k8s.io/replicatedjob-name": "node", "jobset.sigs.k8s.io/restart-attempt": "1",
                    "batch.kubernetes.io/job-completion-index": "3",
                    **labels,
                },
            },
            "spec": {"nodeName": "n3"},
            "status": {"phase": phase, "containerStatuses": list(statuses)},
        },
        Pod,
    )  # fmt: skip


def ended(name: str, code: int, reason: str = "Error", at: str = "2026-12-01T12:01:00Z") -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}}


def test_rank_node_role_and_attempt_are_read_from_the_jobset_labels() -> None:
    seen = observe(pod())
    assert (seen.rank, seen.node, seen.replicated_job, seen.restart_attempt) == (3, "n3", "node", 1)
    assert not seen.failed


def test_a_stamp_proves_what_its_node_s_clock_is_ahead_and_the_newest_one_stands_alone() -> None:
    def seen(at: str, *statuses: dict[str, Any]) -> RunRecord:
        record = seen_at(observe(pod(*statuses)), datetime.fromisoformat(f"2026-12-01T{at}Z"))
        return remember(RunRecord(), [record], {})

    running = {"name": "a", "state": {"running": {"startedAt": "2026-12-01T12:00:30Z"}}}
    begun = seen("12:00:31.5", running)
    assert begun.pods["u"].clock_ahead_s == -2
    again = remember(begun, seen("12:05:00", running).pods.values(), {})  # a new leader's list
    assert again.pods["u"].clock_ahead_s == -2
    over = remember(again, seen("12:02:30", ended("a", 1)).pods.values(), {})  # the clock was set back meanwhile
    assert over.pods["u"].clock_ahead_s == -90
    assert lasting(over).pods["u"].clock_ahead_s == -90
    assert lasting(begun).pods["u"].clock_ahead_s is None


def test_out_of_memory_tells_more_than_another_exit() -> None:
    seen = observe(pod(ended("a", 1), ended("b", 137, "OOMKilled"), ended("c", 0, "Completed")))
    assert seen.exit is not None
    assert (seen.exit.container, seen.exit.reason) == ("b", "OOMKilled")


def test_a_restarted_container_is_known_by_its_last_end() -> None:
    status = {"name": "a", "state": {"running": {}}, "lastState": ended("a", 3)["state"]}
    seen = observe(pod(status))
    assert seen.exit is not None
    assert seen.exit.code == 3


def test_an_evicted_pod_has_failed_without_an_exit_code() -> None:
    assert observe(pod(phase="Failed")).failed
    assert not observe(pod(phase="Failed")).log_wanted


def test_a_failed_exit_and_its_log_survive_later_observations() -> None:
    failed = observe(pod(ended("a", 1), phase="Failed"))
    run = remember(RunRecord(), [failed], {"n3": "boot-1", "elsewhere": "boot-9"})
    run = with_log(run, "u", LogFinding(Origin.OWN, "boom"))
    run = remember(run, [observe(pod())], {"n3": "boot-2"})
    record = run.pods["u"]
    assert record.failed
    assert record.phase == "Failed"
    assert record.log == LogFinding(Origin.OWN, "boom")
    assert run.boot_ids == {"n3": "boot-1"}


def told_to_end(seen: Pod) -> Pod:
    asked = {"deletion_timestamp": datetime(2026, 12, 1, 12, 1, 30, tzinfo=UTC), "deletion_grace_period_seconds": 30}
    return msgspec.structs.replace(seen, metadata=msgspec.structs.replace(seen.metadata, **asked))


def test_a_pod_that_is_deleted_while_it_runs_was_told_to_end_when_that_was_asked_for() -> None:
    run = remember(RunRecord(), [observe(told_to_end(pod({"name": "a", "state": {"running": {}}})))], {})
    run = remember(run, [observe(told_to_end(pod(ended("a", 7), phase="Failed")))], {})
    assert run.pods["u"].told_to_end == datetime(2026, 12, 1, 12, 1, tzinfo=UTC)


def test_a_pod_that_is_deleted_after_it_ended_was_not_told_to() -> None:
    failed = ended("a", 1)
    run = remember(RunRecord(), [observe(pod(failed, phase="Failed"))], {})
    run = remember(run, [observe(told_to_end(pod(failed, phase="Failed")))], {})
    assert run.pods["u"].told_to_end is None


def test_what_is_written_is_read_back() -> None:
    run = remember(RunRecord(), [observe(pod(ended("a", 1), phase="Failed"))], {"n3": "boot"})
    run = with_log(run, "u", LogFinding(Origin.FOLLOW_UP, "remote process exited"))
    assert decode(encode(run)) == run


def test_a_pod_is_written_down_when_it_is_placed_and_again_only_when_it_failed() -> None:
    """Four changes of a pod that ends well are one write of its Job's ConfigMap."""
    waiting = PodRecord("p", "u")
    placed = PodRecord("p", "u", node="n3")
    running = PodRecord("p", "u", node="n3", phase="Running")
    done = PodRecord("p", "u", node="n3", phase="Succeeded", exit=Exit(0))
    failed = PodRecord("p", "u", node="n3", phase="Failed", exit=Exit(1))
    assert lasting(RunRecord({"u": waiting})).pods == {}
    assert lasting(RunRecord({"u": placed})).nodes == ("n3",)
    assert lasting(RunRecord({"u": placed})) == lasting(RunRecord({"u": running})) == lasting(RunRecord({"u": done}))
    assert lasting(RunRecord({"u": failed})).pods == {"u": failed}


def test_a_pod_that_failed_before_it_was_placed_is_not_forgotten() -> None:
    rejected = PodRecord("p", "u", phase="Failed")
    assert lasting(RunRecord({"u": rejected})).pods == {"u": rejected}


def test_thousands_of_pods_fit_into_a_config_map_and_failures_come_first() -> None:
    pods = {f"uid-{i}": PodRecord(f"pod-{i}" * 20, f"uid-{i}", node=f"node-{i}" * 20) for i in range(5000)}
    failed = observe(pod(ended("a", 1), phase="Failed"))
    text = encode(RunRecord({**pods, "u": failed}))
    assert len(text) <= MAX_RECORDED_BYTES
    assert "u" in decode(text).pods


@given(st.permutations(["pending", "running", "failed"]))
def test_the_order_of_observations_makes_no_difference_to_the_failure(order: list[str]) -> None:
    seen = {
        "pending": observe(pod(phase="Pending")),
        "running": observe(pod({"name": "a", "state": {"running": {}}})),
        "failed": observe(pod(ended("a", 1), phase="Failed")),
    }
    run = RunRecord()
    for name in order:
        run = remember(run, [seen[name]], {})
    assert run.pods["u"].failed
    assert run.pods["u"].phase == "Failed"


def test_a_pod_that_jobset_makes_anew_is_another_run_of_the_same_rank() -> None:
    def of_attempt(attempt: int) -> PodRecord:
        pod_of = pod(ended("a", 1), phase="Failed", **{"jobset.sigs.k8s.io/restart-attempt": str(attempt)})
        return msgspec.structs.replace(observe(pod_of), uid=f"u{attempt}", node=f"n{attempt}")

    run = remember(RunRecord(), [of_attempt(1), of_attempt(0), of_attempt(2)], {})
    assert [record.uid for record in last_attempt(run.pods.values())] == ["u2"]
    assert run.nodes == ("n0", "n1", "n2")  # hardware of all of them may have ended it
    assert last_attempt(()) == ()


def test_what_the_logs_said_about_collectives_survives_a_new_coordinator() -> None:
    run = remember(RunRecord(), [observe(pod(ended("a", 134), phase="Failed"))], {})
    run = with_log(run, "u", LogFinding(Origin.FOLLOW_UP, "watchdog", collectives=(CollectiveMark("0", 3, 41),)))
    assert decode(encode(run)) == run


@pytest.mark.parametrize("index", ["9" * 60, "\u0663", "-1", "", "x"])
def test_a_label_that_is_no_index_is_none_and_can_be_remembered(index: str) -> None:
    labels = {"batch.kubernetes.io/job-completion-index": index, "jobset.sigs.k8s.io/restart-attempt": index}
    seen = observe(from_json({"metadata": {"name": "p", "uid": "u", "labels": labels}}, Pod))
    assert (seen.rank, seen.restart_attempt) == (None, 0)
    assert decode(encode(remember(RunRecord(), [seen], {}))).pods == {"u": seen}


@pytest.mark.parametrize(
    "edited",
    [
        "", "null", "[]", "\ud800", "{" * 100_000, '{"pods": {"u": {}}}',
        '{"pods": {"u": {"name": "p", "uid": "u", "created_at": "2026-12-01T12:00:00"}}}',
        '{"pods": {"u": {"name": "p", "uid": "u", "exit": {"code": 1, "finished_at": "2026-12-01T12:00:00"}}}}',
        '{"pods": {"u": {"name": "p", "uid": "u", "log": {"time": "2026-12-01T12:00:00"}}}}',
        '{"pods": {"u": {"name": "p", "uid": "u", "exit": {"code": 99999999999999999999999}}}}',
    ],
)  # fmt: skip
def test_a_config_map_that_somebody_edited_is_refused_as_a_whole(edited: str) -> None:
    """A time without a zone would stop every later look at the Job."""
    with pytest.raises(msgspec.MsgspecError):
        decode(edited)


@pytest.mark.parametrize(
    ("containers", "gpus"),
    [
        ([], False),
        ([{"name": "node"}], False),
        ([{"name": "node", "resources": None}], False),
        ([{"name": "node", "resources": {"limits": {"nvidia.com/gpu": "0"}}}], False),
        ([{"name": "a", "resources": {}}, {"name": "b", "resources": {"limits": {"nvidia.com/gpu": "8"}}}], True),
        ([{"name": "node", "resources": {"limits": {"nvidia.com/gpu": 1}}}], True),
    ],
)
def test_a_pod_has_the_gpus_that_its_containers_are_limited_to(containers: list[Any], gpus: bool) -> None:
    found = observe(from_json({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": containers}}, Pod))
    assert found.gpus is gpus


def test_only_launchers_are_taken_to_run_without_gpus() -> None:
    def at(node: str, role: str, gpus: bool) -> PodRecord:
        return PodRecord(f"{node}-{role}", f"{node}-{role}", node=node, replicated_job=role, gpus=gpus)

    alone, beside = at("n1", "launcher", False), at("n2", "launcher", False)
    as_node, by_other_means, worker = at("n3", "launcher", True), at("n4", "node", False), at("n2", "node", True)
    assert without_gpus([alone, beside, as_node, by_other_means, worker]) == {"n1"}
    assert without_gpus([]) == frozenset()


@pytest.mark.parametrize("grace", [2**62, 10**11])
def test_a_grace_without_end_is_no_time_that_can_be_counted_back(grace: int) -> None:
    seen = pod()
    told = datetime(2026, 12, 1, 12, 5, tzinfo=UTC)
    meta = msgspec.structs.replace(seen.metadata, deletion_timestamp=told, deletion_grace_period_seconds=grace)
    assert observe(msgspec.structs.replace(seen, metadata=meta)).told_to_end == told
