"""When a loop counts as stuck: it was seen with work and without progress for longer than its patience."""

from nvcre_agent.liveness import Liveness, Progress


def seen(waiting: bool, done: int) -> list[Progress]:
    return [Progress("kernel-log", waiting, done, patience_s=60.0)]


def test_work_that_waits_without_progress_is_stuck_after_the_patience() -> None:
    liveness = Liveness()
    assert liveness.stuck(seen(True, 5), 100.0) == {}
    assert liveness.stuck(seen(True, 5), 160.0) == {}
    assert liveness.stuck(seen(True, 5), 161.0) == {"kernel-log": 61.0}
    assert liveness.stuck(seen(True, 6), 190.0) == {}, "it moves again"


def test_a_loop_that_moves_or_has_nothing_to_do_is_never_stuck() -> None:
    liveness = Liveness()
    for at_s in range(0, 1000, 30):
        assert liveness.stuck(seen(True, at_s), at_s) == {}
    for at_s in range(1000, 2000, 30):
        assert liveness.stuck(seen(False, 7), at_s) == {}
    assert liveness.stuck(seen(True, 7), 5000.0) == {}, "the work may just have come"


def test_hours_between_two_looks_are_not_hours_of_waiting() -> None:
    liveness = Liveness()
    liveness.stuck(seen(True, 5), 0.0)
    assert liveness.stuck(seen(True, 6), 7200.0) == {}
