"""What processes cost, as the kernel counts it: CPU time in nanosecond resolution, PSS and RSS of a process tree."""

import ctypes
import os
import time
from collections.abc import Iterable
from pathlib import Path


def tree(pid: int) -> list[int]:
    """The process and all below it that live now."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in children.read_text().split()]
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time so far, threads that have ended included; /proc/PID/stat counts in ticks of 10 ms."""
    return sum(time.clock_gettime(_cpu_clock(pid)) for pid in pids)


def _cpu_clock(pid: int) -> int:
    """clock_getcpuclockid(3) of Linux: CPUCLOCK_SCHED of a whole process."""
    return (~pid << 3) | 2


def pss_mib(pids: Iterable[int]) -> float:
    """Pages shared between processes count in parts."""
    return sum(_kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") for pid in pids) / 1024


def anonymous_mib(pids: Iterable[int]) -> float:
    """What the processes have allocated: unlike PSS it does not change when somebody else maps the same files."""
    return sum(_kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss_Anon:") for pid in pids) / 1024


def rss_mib(pid: int) -> float:
    return _kib(Path(f"/proc/{pid}/status"), "VmRSS:") / 1024


def inotify_instances(pids: Iterable[int]) -> int:
    return sum(
        link.readlink() == Path("anon_inode:inotify") for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir()
    )


def inotify_is_to_be_had() -> bool:
    """Whoever runs as our user shares fs.inotify.max_user_instances, 128 by default."""
    fd = int(ctypes.CDLL(None).inotify_init())
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def _kib(file: Path, field: str) -> int:
    for line in file.read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    return 0
