"""Event sets over the simulated C functions: who reports, when, and what a lost GPU does to the others."""

import pytest
from nvcre_agent.nvml.driver import Driver
from nvcre_agent.nvml.event_set import EventSet, WaitFailure
from nvcre_agent.nvml.snapshot import EventType, NvmlEvent, Unread, event_from_json, to_json

from tests.support.simulated_nvml import SimulationDirectory


def event_set(driver: Driver, *indices: int) -> EventSet:
    created = EventSet.create(driver, indices or range(8))
    assert isinstance(created, EventSet)
    return created


def next_event(events: EventSet) -> NvmlEvent:
    event = events.wait(0)
    assert isinstance(event, NvmlEvent)
    return event


def test_an_xid_arrives_with_the_identity_of_its_gpu(driver: Driver, simulation: SimulationDirectory) -> None:
    events = event_set(driver)
    simulation.xid(5, 79)
    event = next_event(events)
    assert event.gpu is not None
    assert (event.gpu.uuid, event.event_type, event.data) == ("GPU-5", EventType.XID, 79)
    assert (event.gpu_instance, event.compute_instance) == (None, None)
    assert event_from_json(to_json(event)) == event
    assert events.wait(0) is None


def test_what_happened_before_registration_is_not_delivered(driver: Driver, simulation: SimulationDirectory) -> None:
    simulation.xid(5, 79)
    driver.snapshot()
    assert event_set(driver).wait(0) is None


def test_a_set_delivers_only_its_own_gpus_and_each_set_has_its_own_queue(
    driver: Driver, simulation: SimulationDirectory
) -> None:
    first, second = event_set(driver, 0, 1), event_set(driver, 1, 2)
    simulation.xid(0, 13)
    simulation.xid(1, 31)
    assert [next_event(first).data, next_event(first).data] == [13, 31]
    assert next_event(second).data == 31
    assert (first.wait(0), second.wait(0)) == (None, None)


def test_a_lost_gpu_fails_every_wait_until_the_set_is_rebuilt_without_it(
    driver: Driver, simulation: SimulationDirectory
) -> None:
    events = event_set(driver)
    simulation.xid(5, 79)
    simulation.set(5, lost=True)
    assert next_event(events).data == 79
    assert [events.wait(0), events.wait(0)] == [WaitFailure.GPU_LOST] * 2
    events.free()
    rebuilt = event_set(driver, *sorted(set(range(8)) - driver.lost()))
    simulation.xid(4, 31)
    assert next_event(rebuilt).data == 31


def test_a_gpu_that_cannot_register_is_refused_and_the_others_report(
    driver: Driver, simulation: SimulationDirectory
) -> None:
    simulation.set(3, return_="UNKNOWN")
    events = event_set(driver)
    assert events.refused == {3: Unread.FAILED}
    assert events.members == set(range(8)) - {3}
    assert events.wait(0) is None


def test_a_failing_wait_is_neither_an_event_nor_a_timeout(driver: Driver, simulation: SimulationDirectory) -> None:
    events = event_set(driver)
    simulation.set(3, return_="UNKNOWN")
    assert events.wait(0) is WaitFailure.FAILED


def test_a_freed_set_cannot_be_waited_for(driver: Driver) -> None:
    events = event_set(driver)
    events.free()
    assert events.wait(0) is WaitFailure.FAILED


@pytest.mark.parametrize("code", [0, 4294967295])
def test_odd_xids_are_delivered_as_they_are(driver: Driver, simulation: SimulationDirectory, code: int) -> None:
    events = event_set(driver)
    simulation.xid(0, code)
    assert next_event(events).data == code


def test_a_set_in_which_no_gpu_can_report_is_quiet_and_not_an_error(
    driver: Driver, simulation: SimulationDirectory
) -> None:
    simulation.set(None, calls={"nvmlDeviceRegisterEvents": "NOT_SUPPORTED"})
    events = event_set(driver)
    assert not events.members
    assert set(events.refused.values()) == {Unread.NOT_SUPPORTED}
    simulation.set(None, calls={"nvmlEventSetWait_v2": "INVALID_ARGUMENT"})
    assert events.wait(0) is None
