"""Whose process is it? The pod and container of a pid, from its cgroup, while the process lives.

The kernel prints the pid of the host; the agent sees it because its pod shares the host's pid namespace. What cannot
be read (the process is gone already, no Kubernetes) is an empty owner, never an error.
"""

import re
import time
from dataclasses import dataclass
from pathlib import Path

REMEMBER_S = 10.0  # a storm of lines names one process again and again
_MAX_REMEMBERED = 64
_MAX_BYTES = 8192
_POD = re.compile(r"\bpod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})\b")
_CONTAINER = re.compile(r"(?:^|[/-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")


@dataclass(frozen=True, slots=True)
class Owner:
    pod_uid: str = ""
    container_id: str = ""


NOBODY = Owner()


def owner_in(cgroup: str) -> Owner:
    """Read the text of /proc/PID/cgroup, of either cgroup version and either cgroup driver."""
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        if (pod := _POD.search(path)) is not None:
            container = _CONTAINER.search(path, pod.end())
            return Owner(pod[1].replace("_", "-"), container[1] if container else "")
    return NOBODY


class ProcessOwners:
    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[int, tuple[float, Owner]] = {}

    def owner(self, pid: int) -> Owner:
        now_s = time.monotonic()
        known = self._known.get(pid)
        if known is not None and now_s - known[0] < REMEMBER_S:
            return known[1]
        try:
            with (self._proc / str(pid) / "cgroup").open(encoding="ascii", errors="replace") as file:
                owner = owner_in(file.read(_MAX_BYTES))
        except OSError:
            owner = NOBODY
        if len(self._known) >= _MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[pid] = (now_s, owner)
        return owner
