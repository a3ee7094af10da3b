"""The NVML child process: the only place of the agent that calls NVML, because a call can hang for ever.

Started by monitor.py as `python -m nvcre_agent.nvml.worker`; one JSON object a line on stdin and stdout, logs on
stderr.  Three threads: the main one reads commands and says every few seconds how long the other two have been busy, so
that the parent sees a hang; one waits on the event set; one takes snapshots.  It ends with its parent, whatever that
dies of.  When NVML cannot be used it says so and exits: a process that is not there holds no driver open.

    parent: {"do": "snapshot", "id": 1}   {"do": "drain", "id": 2}   {"do": "stop"}
    child:  {"say": "watching", "inventory": {...}, "refused": {"3": "NotSupported"}}
            {"say": "blind", "reason": "...", "message": "..."}
            {"say": "event", "event": {...}}   {"say": "snapshot", "snapshot": {...}, "ids": [1]}
            {"say": "drained", "id": 2}   {"say": "beat", "event_age_s": 1.2, "snapshot_age_s": 0}
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from nvcre_agent.nvml.driver import Blind, Driver, open_driver
from nvcre_agent.nvml.event_set import EventSet, WaitFailure
from nvcre_agent.nvml.snapshot import NvmlEvent, Unread, to_json

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_JOIN_S = 3.0
FAILED_WAITS_ARE_BLIND = 6  # failures in a row; the pauses between them add up to three waits


class Mouth:
    """Writes lines to the parent, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Whatever else in this process prints to stdout, a C library included, must not end up between our lines.
        self._fd = os.dup(1)
        os.dup2(2, 1)

    def say(self, kind: str, **values: Any) -> None:
        line = json.dumps({"say": kind, **values}, separators=(",", ":")).encode() + b"\n"
        view = memoryview(line)
        try:
            with self._lock:
                while view:
                    view = view[os.write(self._fd, view) :]
        except BrokenPipeError:
            os._exit(0)  # the parent is gone, and so is the reason for this process


class Busy:
    """Since when a thread has been inside NVML; 0 while it is not."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def enter(self) -> None:
        self._since = time.monotonic()

    def leave(self) -> None:
        self._since = 0.0

    def age_s(self) -> float:
        since = self._since
        return round(time.monotonic() - since, 1) if since else 0.0


class EventLoop(threading.Thread):
    """Waits for events for as long as the process lives; rebuilds the set when its membership has to change."""

    def __init__(self, driver: Driver, mouth: Mouth, *, wait_ms: int) -> None:
        super().__init__(name="nvml-events", daemon=True)
        self._driver = driver
        self._mouth = mouth
        self._wait_ms = wait_ms
        self._lock = threading.Lock()
        self._drains: list[int] = []
        self._failures = 0
        self._waiting = False
        self._lost: frozenset[int] = frozenset()
        self._set: EventSet | None = None
        self.busy = Busy()
        self.rebuild = threading.Event()
        self.stopping = threading.Event()
        self.blind: Blind | None = None

    def drain(self, request: int) -> None:
        with self._lock:
            self._drains.append(request)
        self.interrupt()

    def interrupt(self) -> None:
        """End a wait in progress: NVML answers TIMEOUT early when a signal comes.  If it does not, `wait_ms` passes."""
        if self._waiting and self.ident is not None:
            signal.pthread_kill(self.ident, signal.SIGUSR1)

    def run(self) -> None:
        while not self.stopping.is_set() and self.blind is None:
            if self._set is None or self.rebuild.is_set():
                self._build()
                continue
            with self._lock:
                drains = tuple(self._drains)
                self._waiting = not drains
            self.busy.enter()
            outcome = self._set.wait(1 if drains else self._wait_ms)
            self._waiting = False
            self.busy.leave()
            self._handle(outcome, drains)
        if self._set is not None:
            self._set.free()

    def _handle(self, outcome: NvmlEvent | WaitFailure | None, drains: tuple[int, ...]) -> None:
        match outcome:
            case NvmlEvent():
                self._failures = 0
                self._mouth.say("event", event=to_json(outcome))
            case None:
                # Nothing was left at a moment after the requests came in.
                self._failures = 0
                for request in drains:
                    self._mouth.say("drained", id=request)
                with self._lock:
                    self._drains = self._drains[len(drains) :]
            case WaitFailure.GPU_LOST if lost := self._driver.lost() - self._lost:
                # NVML answers GPU_IS_LOST at once and for ever while a lost GPU is in the set.
                log.warning("event=gpu_lost_in_event_set gpus=%s", ",".join(map(str, sorted(lost))))
                self._lost |= lost
                self.rebuild.set()
            case WaitFailure():
                self._back_off(outcome)

    def _build(self) -> None:
        self.rebuild.clear()
        self.busy.enter()
        if self._set is not None:
            self._set.free()
            self._set = None
        self._lost = self._driver.lost()
        why = self._driver.failing()
        created = why or EventSet.create(self._driver, sorted(set(self._driver.handles()) - self._lost))
        self.busy.leave()
        if isinstance(created, Unread):
            self._back_off(created)
            return
        self._set = created
        refused = {str(index): why.value for index, why in created.refused.items()}
        self._mouth.say("watching", inventory=to_json(self._driver.inventory()), refused=refused)

    def _back_off(self, why: WaitFailure | Unread) -> None:
        """Without a pause a persistent error would eat a core.  Try a new set each time, then give up seeing."""
        self._failures += 1
        if self._failures >= FAILED_WAITS_ARE_BLIND:
            self.blind = Blind(
                "EventWaitFailed",
                f"waiting for NVML events failed {self._failures} times in a row ({why.value}); check that the agent's"
                " container still has its NVIDIA devices (a systemd reload takes them away) and restart it",
            )
            self._mouth.say("blind", reason=self.blind.reason, message=self.blind.message)
            return
        self.stopping.wait(self._wait_ms / 10_000 * 2 ** (self._failures - 1))
        self.rebuild.set()

    @property
    def watched(self) -> frozenset[int]:
        return self._set.members if self._set is not None else frozenset()


class Snapshots(threading.Thread):
    """A snapshot every interval, and at once on request."""

    def __init__(self, driver: Driver, mouth: Mouth, events: EventLoop, *, interval_s: float) -> None:
        super().__init__(name="nvml-snapshots", daemon=True)
        self._driver = driver
        self._mouth = mouth
        self._events = events
        self._interval_s = interval_s
        self._wanted = threading.Condition()
        self._requests: list[int] = []
        self._answering: frozenset[int] = frozenset()
        self._stopping = False
        self.busy = Busy()

    def request(self, request: int) -> None:
        with self._wanted:
            self._requests.append(request)
            self._wanted.notify()

    def stop(self) -> None:
        with self._wanted:
            self._stopping = True
            self._wanted.notify()

    def run(self) -> None:
        while True:
            with self._wanted:
                ids, self._requests = self._requests, []
            self.busy.enter()
            snapshot = self._driver.snapshot()
            self.busy.leave()
            self._mouth.say("snapshot", snapshot=to_json(snapshot), ids=ids)
            answering = frozenset(gpu.identity.index for gpu in snapshot.gpus if gpu.access is None)
            if answering - self._answering - self._events.watched and self._answering:
                self._events.rebuild.set()  # a GPU came back after a reset: watch it again
            self._answering = answering
            with self._wanted:
                self._wanted.wait_for(lambda: bool(self._requests) or self._stopping, self._interval_s)
                if self._stopping:
                    return


def die_with_parent(parent: int) -> None:
    """SIGTERM when the parent ends; exit if it already has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)


def read_commands(events: EventLoop, snapshots: Snapshots, mouth: Mouth, beat_s: float) -> None:
    """Returns when the parent says stop or is gone, or when the event loop has gone blind."""
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    unread = b""
    next_beat = time.monotonic() + beat_s
    while events.is_alive():
        if poll.poll(max(0.0, next_beat - time.monotonic()) * 1000):
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, unread = (unread + chunk).split(b"\n")
            for command in map(json.loads, lines):
                match command:
                    case {"do": "stop"}:
                        return
                    case {"do": "drain", "id": int(request)}:
                        events.drain(request)
                    case {"do": "snapshot", "id": int(request)}:
                        snapshots.request(request)
                    case _:
                        log.error("event=unknown_command command=%r", command)
        if time.monotonic() >= next_beat:
            next_beat = time.monotonic() + beat_s
            mouth.say("beat", event_age_s=events.busy.age_s(), snapshot_age_s=snapshots.busy.age_s())


def watch(driver: Driver, mouth: Mouth, arguments: argparse.Namespace) -> int:
    events = EventLoop(driver, mouth, wait_ms=int(arguments.wait * 1000))
    snapshots = Snapshots(driver, mouth, events, interval_s=arguments.snapshot_interval)
    events.start()
    snapshots.start()
    read_commands(events, snapshots, mouth, arguments.beat_interval)
    events.stopping.set()
    events.interrupt()
    snapshots.stop()
    deadline = time.monotonic() + _JOIN_S
    for thread in (events, snapshots):
        thread.join(max(0.0, deadline - time.monotonic()))
    if events.is_alive() or snapshots.is_alive():
        log.warning("event=nvml_call_stuck action=exit_without_shutdown")
        return 1
    driver.close()
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="nvcre_agent.nvml.worker", description="NVML child process of nvcre-agent.")
    parser.add_argument("--parent", type=int, required=True, help="process id of the agent; the worker ends with it")
    parser.add_argument("--simulate", type=Path, help="simulated driver over this driver.json instead of libnvidia-ml")
    parser.add_argument("--snapshot-interval", type=float, default=30.0, help="seconds")
    parser.add_argument("--beat-interval", type=float, default=10.0, help="seconds")
    parser.add_argument("--wait", type=float, default=5.0, help="seconds that one wait for events may take")
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's to handle
    signal.signal(signal.SIGUSR1, lambda *_: None)  # only interrupts a wait
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
    )
    mouth = Mouth()
    opened = open_driver() if arguments.simulate is None else open_simulated(arguments.simulate)
    if isinstance(opened, Blind):
        mouth.say("blind", reason=opened.reason, message=opened.message)
        code = 0
    else:
        code = watch(opened, mouth, arguments)
    # Not sys.exit: a thread stuck in the driver must not keep the process.
    logging.shutdown()
    os._exit(code)


def open_simulated(description: Path) -> Driver | Blind:
    # Imported only here: a node with a real driver never loads the simulated one.
    from nvcre_agent.nvml import simulated, simulated_state  # noqa: PLC0415

    try:
        simulated.install(description).interrupted_by_signals()
    except simulated_state.BadDescription as error:
        return Blind("BadSimulation", str(error))
    return open_driver()


if __name__ == "__main__":
    main()
