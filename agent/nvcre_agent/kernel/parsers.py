"""Which family a kernel line belongs to: the one entry to all line parsers.

Cheap words first, because nearly every line is none of ours. The state it keeps is one address (a bus loss told in
three lines); linear in the length of the text.
"""

from collections.abc import Callable, Iterator

from nvcre_agent.kernel import host, nvidia
from nvcre_agent.kernel.model import KernelEvent

MAX_LINE = 1024


class LineParser:
    """Feed it the text of one record after the other; it yields the events in order."""

    def __init__(self) -> None:
        self._bus_drop = nvidia.BusDropLines()
        self._families: tuple[tuple[str | tuple[str, ...], Callable[[str], KernelEvent | None]], ...] = (
            ("NVRM: ", self._nvrm),
            ("nvidia-nvswitch", nvidia.sxid),
            (("mlx5_", "ib", "NETDEV WATCHDOG"), host.ib_link),
            (("Out of memory", "Memory cgroup", "Killed process"), host.oom_kill),
            (("mce: ", "EDAC ", "Memory failure"), host.machine_check),
        )

    def feed(self, text: str) -> Iterator[KernelEvent]:
        for line in text.split("\n"):
            if (event := self._line(line[:MAX_LINE].rstrip("\r"))) is not None:
                yield event

    def _line(self, line: str) -> KernelEvent | None:
        if "AER: " in line:
            return host.pcie_aer(line)
        for starts, parse in self._families:
            if line.startswith(starts):
                return parse(line)
        return None

    def _nvrm(self, line: str) -> KernelEvent | None:
        return nvidia.xid(line) or nvidia.bus_drop(line) or self._bus_drop.feed(line) or nvidia.rm_init_failed(line)
