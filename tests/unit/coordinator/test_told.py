"""A Job hears of a thing once, and of one node not without end."""

from __future__ import annotations

from nvcre_coordinator.controllers.told import MOST, MOST_OF_NODE, Told


def test_a_thing_is_told_once_to_each_job_and_of_each_node() -> None:
    told = Told()
    assert told.is_new("job-1", "n1", "incident-1")
    assert not told.is_new("job-1", "n1", "incident-1")
    assert told.is_new("job-2", "n1", "incident-1")
    assert told.is_new("job-1", "n2", "incident-1")  # an id is its node's own: nobody can use up another's


def test_a_node_that_tells_of_something_new_each_second_does_not_bury_the_others() -> None:
    told = Told()
    assert sum(told.is_new("job-1", "n1", f"incident-{number}") for number in range(1000)) == MOST_OF_NODE
    assert told.is_new("job-1", "n2", "incident-1")


def test_what_was_told_is_forgotten_before_it_grows_without_bound() -> None:
    told = Told()
    for number in range(MOST + 1):
        told.is_new(f"job-{number}", "n1", "incident-1")
    told.bound()
    assert told.is_new("job-0", "n1", "incident-1")
