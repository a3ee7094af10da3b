"""Which family a kernel line belongs to: the one entry to all line parsers.

Cheap words first, because nearly every line is none of ours. The state it keeps is small and bounded (bus losses told
in three lines, the PCIe error whose details follow, the pages that are known); linear in the length of the text.

Only the NVIDIA driver tells one event in a record of several lines. The kernel quotes what users choose, file names
among them, and those may contain line breaks: the later lines of any other record are somebody's words.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from nvcre_agent.kernel import host, nvidia
from nvcre_agent.kernel.model import KernelEvent
from nvcre_agent.kernel.record import Record

MAX_LINE = 4096
DRIVER = "NVRM: "


class LineParser:
    """Feed it the text of one record after the other; it yields the events in order."""

    def __init__(self) -> None:
        self._bus_drop = nvidia.BusDropLines()
        self._aer = host.PcieErrors()
        self._driver_record = False
        self._families: tuple[tuple[str | tuple[str, ...], Callable[[str], KernelEvent | None]], ...] = (
            ("nvidia-nvswitch", nvidia.sxid),
            (("mlx5_", "ib", "infiniband ", "NETDEV WATCHDOG"), host.ib_link),
            (("Out of memory", "Memory cgroup", "Killed process"), host.oom_kill),
            (("mce: ", "EDAC ", "[Hardware Error]", "{"), host.machine_check),
            ("Memory failure", host.PoisonedPages().feed),
        )

    def feed(self, text: str, line: int = 0) -> Iterator[KernelEvent]:
        """The events of one record; `line` is what the caller calls its place, for `KernelEvent.line`."""
        first, *others = text.lstrip("\n").split("\n")
        self._driver_record = first.startswith(DRIVER)
        if (event := self._line(first[:MAX_LINE].rstrip("\r"), line)) is not None:
            yield event if event.line else replace(event, line=line)
        for other in others if self._driver_record else ():
            yield from self.feed_rest(other, line)

    @property
    def unfinished(self) -> int | None:
        """Where an event begins whose end is still to come."""
        return self._bus_drop.unfinished

    def skip(self) -> None:
        """A record that is none of ours."""
        self._driver_record = False

    def feed_rest(self, text: str, line: int = 0) -> Iterator[KernelEvent]:
        """A further line of the record that was fed last, where a log gives a record's lines one by one."""
        if not self._driver_record:
            return
        one = text[:MAX_LINE].rstrip("\r")
        if self.unfinished is not None and not one.startswith(DRIVER):
            one = f"{DRIVER}{one.strip()}"
        if (event := self._line(one, line)) is not None:
            yield event if event.line else replace(event, line=line)

    def _line(self, line: str, number: int) -> KernelEvent | None:
        if line.startswith(DRIVER):  # before AER: an Xid quotes the name of a process, which may be "AER: "
            return self._nvrm(line, number)
        if "AER: " in line or "PCIe Bus Error: " in line:
            return self._aer.feed(line)
        for starts, parse in self._families:
            if line.startswith(starts):
                return parse(line)
        return None

    def _nvrm(self, line: str, number: int) -> KernelEvent | None:
        return (
            nvidia.xid(line)
            or nvidia.bus_drop(line)
            or self._bus_drop.feed(line, number)
            or nvidia.rm_init_failed(line)
        )


class RecordParser:
    """Of a live log. What the kernel tells in several records is neither begun nor ended by a process."""

    def __init__(self) -> None:
        self._of_kernel, self._of_processes = LineParser(), LineParser()

    def feed(self, record: Record) -> Iterator[KernelEvent]:
        return (self._of_kernel if record.from_kernel else self._of_processes).feed(record.text)
