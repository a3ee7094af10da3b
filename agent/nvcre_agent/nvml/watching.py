"""The one thread that calls NVML: it waits for events and, on a slow cadence or when asked, takes a snapshot.

One, because the driver serialises all calls on its lock anyway and a second caller would only delay the workload.  It
decides when an event set is rebuilt and with which GPUs, when a persistent error needs a pause, and when nothing can
be seen any more; then it says so, gives NVML back and ends.  The process around it is in worker.py.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from nvcre_agent.nvml.calls import ledger
from nvcre_agent.nvml.driver import Blind, Driver
from nvcre_agent.nvml.event_set import EventSet, WaitFailure, lost_alone
from nvcre_agent.nvml.pipe import Mouth
from nvcre_agent.nvml.snapshot import NvmlEvent, Unread, to_json

log = logging.getLogger(__name__)

FAILED_WAITS_ARE_BLIND = 6  # failures in a row; the pauses between them add up to about six waits


@dataclass(frozen=True, slots=True)
class _Asked:
    drains: tuple[int, ...]
    snapshots: tuple[int, ...]


class Watching(threading.Thread):
    """Runs until stop() or until it is blind; `ended` is called then, whatever the reason."""

    def __init__(
        self,
        open_driver: Callable[[], Driver | Blind],
        mouth: Mouth,
        *,
        wait_s: float,
        snapshot_interval_s: float,
        ended: Callable[[], None],
    ) -> None:
        super().__init__(name="nvml", daemon=True)
        self._open = open_driver
        self._mouth = mouth
        self._wait_s = wait_s
        self._interval_s = snapshot_interval_s
        self._ended = ended
        self._asked_lock = threading.Lock()
        self._drains: list[int] = []
        self._snapshots: list[int] = []
        self._waiting = False
        self._stopping = threading.Event()
        self._set: EventSet | None = None
        # Not in the set, by index: those that say that they are lost, and those that make a wait fail as if they were.
        self._lost: frozenset[int] = frozenset()
        self._suspects: frozenset[int] = frozenset()
        self._answering: frozenset[int] | None = None  # in the last snapshot
        self._failures = 0
        self._next_snapshot = 0.0
        self.failed = False

    # --- asked from the main thread -------------------------------------------------------------------------------

    def drain(self, request: int) -> None:
        with self._asked_lock:
            self._drains.append(request)
        self._interrupt()

    def snapshot(self, request: int) -> None:
        with self._asked_lock:
            self._snapshots.append(request)
        self._interrupt()

    def stop(self) -> None:
        self._stopping.set()
        self._interrupt()

    def _interrupt(self) -> None:
        """End a wait in progress: NVML answers TIMEOUT early when a signal comes.  If it does not, `wait_s` passes."""
        if self._waiting and self.ident is not None:
            signal.pthread_kill(self.ident, signal.SIGUSR1)

    # --- the thread -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.failed = True  # unless it comes to a good end
        try:
            opened = self._open()
            blind = opened if isinstance(opened, Blind) else self._watch(opened)
            if blind is not None:
                self._mouth.say("blind", reason=blind.reason, message=blind.message)
            self.failed = False
        finally:
            self._ended()

    def _watch(self, driver: Driver) -> Blind | None:
        blind: Blind | None = None
        while blind is None and not self._stopping.is_set():
            if self._set is None:
                blind = self._build(driver)
                continue
            asked = self._asked()
            if asked.snapshots or time.monotonic() >= self._next_snapshot:
                blind = self._take_snapshot(driver, asked.snapshots)
                if blind is not None or self._set is None:
                    continue
            outcome = self._wait(self._set, drained=bool(asked.drains))
            blind = self._handle(driver, outcome, asked.drains)
        self._free()
        driver.close()
        return blind

    def _asked(self) -> _Asked:
        with self._asked_lock:
            snapshots, self._snapshots = tuple(self._snapshots), []
            return _Asked(tuple(self._drains), snapshots)

    def _wait(self, events: EventSet, *, drained: bool) -> NvmlEvent | WaitFailure | None:
        left_s = max(0.0, self._next_snapshot - time.monotonic())
        with self._asked_lock:
            new = len(self._snapshots) > 0 or (self._drains and not drained)
            self._waiting = not (drained or new)
        try:
            return events.wait(int(min(self._wait_s, left_s) * 1000) + 1 if self._waiting else 1)
        finally:
            self._waiting = False

    def _handle(self, driver: Driver, outcome: NvmlEvent | WaitFailure | None, drains: tuple[int, ...]) -> Blind | None:
        match outcome:
            case NvmlEvent():
                self._failures = 0
                self._mouth.say("event", event=to_json(outcome))
            case None:
                # Nothing was left at a moment after the requests came in.
                self._failures = 0
                for request in drains:
                    self._mouth.say("drained", id=request)
                with self._asked_lock:
                    self._drains = self._drains[len(drains) :]
            case WaitFailure.GPU_LOST if self._leave_out(driver):
                self._free()
            case WaitFailure():
                return driver.trouble() or self._back_off(outcome.value)
        return None

    def _leave_out(self, driver: Driver) -> bool:
        """NVML answers GPU_IS_LOST at once and for ever while a lost GPU is in the set: find out which."""
        lost, suspects = driver.lost() - self._lost, frozenset[int]()
        if not lost and self._set is not None:
            members = self._set.members
            self._free()
            suspects = lost_alone(driver, sorted(members))
        self._lost |= lost
        self._suspects |= suspects
        if found := lost | suspects:
            log.warning("event=gpu_lost_in_event_set gpus=%s", ",".join(map(str, sorted(found))))
        return bool(found)

    def _build(self, driver: Driver) -> Blind | None:
        self._lost = driver.lost()
        created = EventSet.create(driver, sorted(set(driver.handles()) - self._lost - self._suspects))
        if isinstance(created, Unread):
            return driver.trouble() or self._back_off(created.value)
        self._set = created
        refused = (
            created.refused | dict.fromkeys(self._suspects, Unread.FAILED) | dict.fromkeys(self._lost, Unread.LOST)
        )
        self._mouth.say(
            "watching",
            inventory=to_json(driver.inventory()),
            refused={str(index): why.value for index, why in sorted(refused.items())},
        )
        return None

    def _take_snapshot(self, driver: Driver, ids: tuple[int, ...]) -> Blind | None:
        self._next_snapshot = time.monotonic() + self._interval_s
        snapshot = driver.snapshot()
        answering = frozenset(gpu.identity.index for gpu in snapshot.gpus if gpu.access is None)
        if not answering and (blind := driver.trouble()) is not None:
            return blind  # a snapshot in which nobody answers must not look like broken GPUs
        self._mouth.say("snapshot", snapshot=to_json(snapshot), ids=ids, calls=ledger.take())
        came_back = answering - (answering if self._answering is None else self._answering)
        self._answering = answering
        if (answering & self._lost) | came_back:  # after a reset: watch it again
            self._suspects -= came_back
            self._free()
        return None

    def _back_off(self, why: str) -> Blind | None:
        """Without a pause a persistent error would eat a core.  Try a new set each time, then give up seeing."""
        self._free()
        self._failures += 1
        if self._failures >= FAILED_WAITS_ARE_BLIND:
            return Blind(
                "EventWaitFailed",
                f"waiting for NVML events failed {self._failures} times in a row ({why}) although the GPUs answer; see"
                " dmesg for what the driver says, and reload it when the node is drained",
            )
        self._stopping.wait(self._wait_s / 5 * 2 ** (self._failures - 1))
        return None

    def _free(self) -> None:
        if self._set is not None:
            self._set.free()
            self._set = None
