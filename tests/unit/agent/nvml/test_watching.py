"""What the one NVML thread does in which order; run in this process, over the simulated C functions."""

from collections.abc import Callable
from typing import Any

import pynvml
from nvcre_agent.nvml import simulated
from nvcre_agent.nvml.driver import Driver, open_driver
from nvcre_agent.nvml.watching import Watching

from tests.support.simulated_nvml import SimulationDirectory


class Heard(list[str]):
    """Stands for the pipe; `after` decides from what was said whether the thread stops."""

    def __init__(self, after: Callable[["Heard"], None]) -> None:
        self._after = after

    def say(self, kind: str, **_values: Any) -> None:
        self.append(kind)
        self._after(self)


def run(after: Callable[[Watching, Heard], None], *, interval_s: float = 600, asked: tuple[int, ...] = ()) -> Heard:
    heard = Heard(lambda heard: after(thread, heard))
    thread = Watching(
        open_driver,
        heard,  # type: ignore[arg-type]
        wait_s=0.001,
        snapshot_interval_s=interval_s,
        ended=lambda: None,
    )
    for request in asked:
        thread.drain(request)
    thread.run()
    assert not thread.failed
    return heard


def test_it_gives_everything_back_when_it_is_stopped(library: simulated.SimulatedNvml) -> None:
    before = pynvml._nvmlLib_refcount
    heard = run(lambda thread, heard: thread.stop() if "snapshot" in heard else None)
    assert heard == ["watching", "snapshot"]
    assert library._sets == {}
    assert pynvml._nvmlLib_refcount == before


def test_a_storm_of_events_does_not_keep_snapshots_from_their_turn(
    library: simulated.SimulatedNvml, simulation: SimulationDirectory
) -> None:
    def storm(thread: Watching, heard: Heard) -> None:
        if heard == ["watching"]:
            simulation.append(*[{"gpu": 0, "event": "xid", "code": 95}] * 50)
        if heard.count("event") == 50:
            thread.stop()

    heard = run(storm, interval_s=0)
    assert heard.count("snapshot") == 50


def test_a_drain_is_answered_after_the_events_before_it(
    library: simulated.SimulatedNvml, simulation: SimulationDirectory
) -> None:
    def then(thread: Watching, heard: Heard) -> None:
        if heard == ["watching"]:
            simulation.append(*[{"gpu": 0, "event": "xid", "code": 31}] * 3)
        if "drained" in heard:
            thread.stop()

    assert run(then, asked=(1,)) == ["watching", "snapshot", "event", "event", "event", "drained"]


def test_a_driver_exchanged_under_a_snapshot_is_no_snapshot(
    driver: Driver, library: simulated.SimulatedNvml, simulation: SimulationDirectory
) -> None:
    def exchange(_thread: Watching, heard: Heard) -> None:
        if heard[-1] == "watching":
            simulation.append({"set": {"driver": "unloaded"}}, {"set": {"driver": "loaded"}})

    assert run(exchange) == ["watching", "blind"]


def test_a_gpu_that_was_lost_only_between_two_snapshots_is_watched_again(
    library: simulated.SimulatedNvml, simulation: SimulationDirectory
) -> None:
    def lose_and_find(thread: Watching, heard: Heard) -> None:
        match heard.count("watching"), heard[-1]:
            case 1, "snapshot":
                simulation.set(5, lost=True)
            case 2, "watching":  # without it
                simulation.set(5, lost=False)
                thread.snapshot(1)
            case 3, "watching":
                simulation.xid(5, 31)
        if "event" in heard:
            thread.stop()

    assert run(lose_and_find) == ["watching", "snapshot", "watching", "snapshot", "watching", "event"]
