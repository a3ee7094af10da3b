"""status.failureLog (case 20)."""

from typing import Any

from nvcre_coordinator.core.failure_log import build as build_log
from nvcre_coordinator.core.limits import TAIL_BYTES, tail


def test_out_of_memory_before_any_other_exit(build: Any) -> None:
    crashed = build.pod("a", node="n1", code=1)
    killed = build.pod("b", node="n2", code=137, reason="OOMKilled")
    log = build_log(crashed, (crashed, killed), {killed.uid: "last words\n"})
    assert (log.pod_name, log.node_name, log.exit_code, log.reason) == ("b", "n2", 137, "OOMKilled")
    assert log.tail == "last words"


def test_memory_that_ran_out_before_the_jobset_restarted_is_another_story(build: Any) -> None:
    killed = build.pod("b", node="n2", code=137, reason="OOMKilled")
    crashed = build.pod("a", node="n1", code=1, attempt=1)
    assert build_log(crashed, (killed, crashed), {}).pod_name == "a"


def test_no_pods_at_all_and_only_running_ones() -> None:
    assert build_log(None, (), {}).reason == "PodNotFound"


def test_only_running_pods(build: Any) -> None:
    assert build_log(None, (build.pod("a"),), {}).reason == "NoTerminatedContainer"


def test_the_record_is_kept_when_the_log_could_not_be_read(build: Any) -> None:
    crashed = build.pod("a", node="n1", code=1)
    log = build_log(crashed, (crashed,), {})
    assert (log.pod_name, log.tail) == ("a", None)


def test_the_tail_is_at_most_800_lines_and_32_kib_and_loses_its_oldest_part() -> None:
    short = tail("\n".join(f"line {number}" for number in range(1000)))
    assert short.splitlines()[0] == "line 200"
    assert short.splitlines()[-1] == "line 999"
    long = tail("\n".join("ü" * 100 for _ in range(1000)))
    assert len(long.encode()) <= TAIL_BYTES
    assert set(long.splitlines()) == {"ü" * 100}
    assert len(tail("x" * 100_000).encode()) <= TAIL_BYTES
