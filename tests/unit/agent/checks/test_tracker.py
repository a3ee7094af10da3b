"""When a finding opens, changes and recovers."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from nvcre_agent.checks.limits import Hysteresis, shipped
from nvcre_agent.checks.model import Component, Finding, Undecided
from nvcre_agent.checks.tracker import Opened, Recovered, Tracker, Updated
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass

LIMITS = replace(shipped(), hysteresis={"nvlink_down": Hysteresis(60, 90), "gpu_lost": Hysteresis(0, 60)})


def finding(check: str, gpu: int = 0) -> Finding:
    component = Component(ComponentKind.GPU, gpu, f"GPU-{gpu}")
    return Finding(f"{check}/GPU-{gpu}", check, component, FaultClass.NEEDS_RESET, Blame.YES, "message", "remedy")


LOST, LINK = finding("gpu_lost"), finding("nvlink_down")


def play(*steps: tuple[float, tuple[Finding | Undecided, ...]]) -> list[object]:
    tracker, told = Tracker(), []
    for now_s, said in steps:
        tracker, changes = tracker.step(said, now_s, LIMITS)
        told += [(now_s, type(change), change.finding) for change in changes]
    return told


def test_a_finding_without_grace_opens_at_once_and_only_once() -> None:
    assert play((0, (LOST,)), (30, (LOST,))) == [(0, Opened, LOST)]


def test_a_finding_with_grace_opens_when_it_lasted() -> None:
    assert play((0, (LINK,)), (30, (LINK,)), (60, (LINK,)), (90, (LINK,))) == [(60, Opened, LINK)]


def test_a_gap_starts_the_grace_anew() -> None:
    assert play((0, (LINK,)), (30, ()), (60, (LINK,)), (90, (LINK,))) == []


def test_what_could_not_be_read_in_between_was_not_seen_without_a_gap() -> None:
    unread = Undecided(LINK.key)
    assert play((0, (LINK,)), (30, (unread,)), (3600, (LINK,)), (3630, (LINK,)), (3660, (LINK,))) == [
        (3660, Opened, LINK)
    ]


def test_recovery_needs_a_quiet_period() -> None:
    assert play((0, (LOST,)), (30, ()), (60, (LOST,)), (90, ()), (120, ()), (150, ())) == [
        (0, Opened, LOST),
        (150, Recovered, LOST),
    ]


def test_what_cannot_be_read_does_not_recover() -> None:
    unread = Undecided(LOST.key)
    assert play((0, (LOST,)), (30, (unread,)), (900, (unread,)), (930, ())) == [(0, Opened, LOST)]


def test_a_changed_text_is_an_update_of_the_same_finding() -> None:
    worse = replace(LOST, message="worse")
    assert play((0, (LOST,)), (30, (worse,))) == [(0, Opened, LOST), (30, Updated, worse)]


def test_after_a_restart_open_findings_stay_open_until_they_are_gone_for_long_enough() -> None:
    tracker = Tracker.resume([LOST], now_s=0)
    tracker, changes = tracker.step((LOST,), 1, LIMITS)
    assert changes == ()
    tracker, changes = tracker.step((), 2, LIMITS)
    assert changes == ()
    assert tracker.open == (LOST,)
    tracker, changes = tracker.step((), 62, LIMITS)
    assert changes == (Recovered(LOST),)
    assert tracker.open == ()


def test_what_is_not_a_fault_yet_is_waiting() -> None:
    tracker, _ = Tracker().step((LINK, LOST), 0, LIMITS)
    assert tracker.waiting == (LINK,)
    tracker, _ = tracker.step((LINK, LOST), 60, LIMITS)
    assert tracker.waiting == ()


def test_what_was_wrong_with_a_replaced_gpu_ends_at_once_and_nothing_else_does() -> None:
    other = finding("gpu_lost", 1)
    tracker, _ = Tracker().step((LOST, LINK, other), 0, LIMITS)
    tracker, changes = tracker.step((Undecided(LOST.key), other), 30, LIMITS, replaced={"GPU-0"})
    assert changes == (Recovered(LOST),)
    assert (tracker.open, tracker.waiting) == ((other,), ())


ANSWERS = st.lists(
    st.sampled_from([LOST, LINK, finding("gpu_lost", 1), Undecided(LOST.key), Undecided(LINK.key)]), max_size=4
)


def test_what_was_forgotten_opens_anew_where_it_still_is() -> None:
    tracker = Tracker.resume((LOST, LINK), 0)
    tracker, changes = tracker.forget({LOST.key}).step((LOST, LINK), 1, LIMITS)
    assert changes == (Opened(LOST),)
    assert set(tracker.open) == {LOST, LINK}


@given(st.lists(st.tuples(st.integers(1, 100), ANSWERS), max_size=30))
def test_changes_alternate_and_agree_with_what_is_open(steps: list[tuple[int, list[Finding | Undecided]]]) -> None:
    tracker, now_s, open_keys = Tracker(), 0, set()
    for pause_s, said in steps:
        now_s += pause_s
        tracker, changes = tracker.step(said, now_s, LIMITS)
        for change in changes:
            key = change.finding.key
            match change:
                case Opened():
                    assert key not in open_keys
                    open_keys.add(key)
                case Updated():
                    assert key in open_keys
                case Recovered():
                    open_keys.remove(key)
        assert {found.key for found in tracker.open} == open_keys
