"""The NVML child process: the only place of the agent that calls NVML, because a call can hang for ever.

Started by monitor.py as `python -m nvcre_agent.nvml.worker`; one JSON object a line on stdin and stdout, logs on
stderr, and the call in flight in shared memory (call_note.py).  Two threads: the main one reads commands and never
calls NVML, the other does nothing else (watching.py).  It ends with its parent, whatever that dies of.  When NVML
cannot be used it says so and exits: a process that is not there holds no driver open.

    parent: {"do": "snapshot", "id": 1}   {"do": "drain", "id": 2}   {"do": "stop"}
    child:  {"say": "watching", "inventory": {...}, "refused": {"3": "NotSupported"}}
            {"say": "blind", "reason": "...", "message": "..."}
            {"say": "event", "event": {...}}   {"say": "drained", "id": 2}
            {"say": "snapshot", "snapshot": {...}, "ids": [1], "calls": {"count": 340, "sum_s": 0.02, "max_s": 0.004}}
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
from collections.abc import Callable
from pathlib import Path

from nvcre_agent.nvml.call_note import CallNote
from nvcre_agent.nvml.calls import ledger
from nvcre_agent.nvml.driver import Blind, Driver, open_driver
from nvcre_agent.nvml.pipe import Mouth
from nvcre_agent.nvml.watching import Watching

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_JOIN_S = 3.0  # less than the agent's grace period, more than any call takes that ends at all


def die_with_parent(parent: int) -> None:
    """SIGTERM when the parent ends; exit if it already has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)


class Bell:
    """Wakes the main thread: SIGTERM, or the end of the other one."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def ring(self, *_: object) -> None:
        os.write(self._write_fd, b"!")


def obey(watching: Watching, bell: Bell) -> None:
    """Carry out commands until the parent says stop or is gone, or the bell rings."""
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    poll.register(bell.fd, select.POLLIN)
    unread = b""
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if bell.fd in ready:
            return
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, unread = (unread + chunk).split(b"\n")
        for command in map(json.loads, lines):
            match command:
                case {"do": "stop"}:
                    return
                case {"do": "drain", "id": int(request)}:
                    watching.drain(request)
                case {"do": "snapshot", "id": int(request)}:
                    watching.snapshot(request)
                case _:
                    log.error("event=unknown_command command=%r", command)


def main() -> None:
    parser = argparse.ArgumentParser(prog="nvcre_agent.nvml.worker", description="NVML child process of nvcre-agent.")
    parser.add_argument("--parent", type=int, required=True, help="process id of the agent; the worker ends with it")
    parser.add_argument("--note", type=int, required=True, help="file descriptor of the call note's memory")
    parser.add_argument("--simulate", type=Path, help="simulated driver over this driver.json instead of libnvidia-ml")
    parser.add_argument("--snapshot-interval", type=float, default=30.0, help="seconds")
    parser.add_argument("--wait", type=float, default=1.0, help="seconds that one wait for events may take")
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    bell = Bell()
    signal.signal(signal.SIGTERM, bell.ring)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's to handle
    signal.signal(signal.SIGUSR1, lambda *_: None)  # only interrupts a wait
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
    )
    ledger.note = CallNote(arguments.note)
    watching = Watching(
        open_driver if arguments.simulate is None else open_simulated(arguments.simulate),
        Mouth(),
        wait_s=arguments.wait,
        snapshot_interval_s=arguments.snapshot_interval,
        ended=bell.ring,
    )
    watching.start()
    obey(watching, bell)
    watching.stop()
    watching.join(_JOIN_S)
    stuck = watching.is_alive()
    if stuck:
        log.warning("event=nvml_call_stuck call=%r action=exit_without_shutdown", str(ledger.note.read()))
    # Not sys.exit: a thread stuck in the driver must not keep the process.
    logging.shutdown()
    os._exit(1 if stuck or watching.failed else 0)


def open_simulated(description: Path) -> Callable[[], Driver | Blind]:
    """For the other thread.  Any signal ends a wait early, as with the driver; Python itself would resume it."""
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)  # which only the main thread may

    def open_it() -> Driver | Blind:
        # Imported only here: a node with a real driver never loads the simulated one.
        from nvcre_agent.nvml import simulated, simulated_state  # noqa: PLC0415

        try:
            simulated.install(description).interrupted_by(readable)
        except simulated_state.BadDescription as error:
            return Blind("BadSimulation", str(error))
        return open_driver()

    return open_it


if __name__ == "__main__":
    main()
