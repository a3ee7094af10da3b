"""Which family a kernel line belongs to: the one entry to all line parsers.

Cheap words first, because nearly every line is none of ours. The state it keeps is one address (a bus loss told in
three lines); linear in the length of the text.

Only the NVIDIA driver tells one event in a record of several lines. The kernel quotes what users choose, file names
among them, and those may contain line breaks: the later lines of any other record are somebody's words.
"""

from collections.abc import Callable, Iterator

from nvcre_agent.kernel import host, nvidia
from nvcre_agent.kernel.model import KernelEvent

MAX_LINE = 1024
_DRIVER = "NVRM: "


class LineParser:
    """Feed it the text of one record after the other; it yields the events in order."""

    def __init__(self) -> None:
        self._bus_drop = nvidia.BusDropLines()
        self._families: tuple[tuple[str | tuple[str, ...], Callable[[str], KernelEvent | None]], ...] = (
            ("nvidia-nvswitch", nvidia.sxid),
            (("mlx5_", "ib", "NETDEV WATCHDOG"), host.ib_link),
            (("Out of memory", "Memory cgroup", "Killed process"), host.oom_kill),
            (("mce: ", "EDAC ", "Memory failure"), host.machine_check),
        )

    def feed(self, text: str) -> Iterator[KernelEvent]:
        lines = text.lstrip("\n").split("\n")
        for line in lines if lines[0].startswith(_DRIVER) else lines[:1]:
            if (event := self._line(line[:MAX_LINE].rstrip("\r"))) is not None:
                yield event

    def _line(self, line: str) -> KernelEvent | None:
        if line.startswith(_DRIVER):  # before AER: an Xid quotes the name of a process, which may be "AER: "
            return self._nvrm(line)
        if "AER: " in line:
            return host.pcie_aer(line)
        for starts, parse in self._families:
            if line.startswith(starts):
                return parse(line)
        return None

    def _nvrm(self, line: str) -> KernelEvent | None:
        return nvidia.xid(line) or nvidia.bus_drop(line) or self._bus_drop.feed(line) or nvidia.rm_init_failed(line)
