"""The text of nccl-tests 2.19.6: banner, device lines, heading, rows, footer.

Values in, text out. Widths and precision are those of a captured run (tests/corpus/ns03): cells of 7 and 6 characters
with as many of two decimals as fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvcre_local.simulated_nccl.arguments import TYPE_BYTES, PerfArguments

VERSION = "2.19.6"
NCCL_VERSION = 23007
LONGEST_DEVICE_LIST = 2047  # bytes per process, then "..."

HEADING = """#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong 
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         
"""  # noqa: W291  (the tool prints these trailing blanks)


@dataclass(frozen=True, slots=True)
class Device:
    """One rank's GPU. `pci` as nccl-tests prints it: `0000:1b:00`."""

    rank: int
    pid: int
    host: str
    index: int
    pci: str
    product: str


@dataclass(frozen=True, slots=True)
class Measured:
    """One side (out-of-place or in-place) of a row."""

    time_us: float
    algbw_gbps: float
    busbw_gbps: float

    @classmethod
    def of(cls, size: int, time_us: float, busbw_factor: float) -> Measured:
        algbw = size / time_us / 1e3
        return cls(time_us, algbw, algbw * busbw_factor)


def banner(program: str, arguments: PerfArguments) -> str:
    a = arguments
    return (
        f"# nccl-tests version {VERSION} nccl-headers={NCCL_VERSION} nccl-library={NCCL_VERSION}\n"
        f"# Collective test starting: {program}\n"
        f"# nThread {a.threads} nGpus {a.gpus} minBytes {a.min_bytes} maxBytes {a.max_bytes} step: {a.step} "
        f"warmup iters: {a.warmup_iterations} iters: {a.iterations} agg iters: {a.aggregated_iterations} "
        f"validation: {a.check} graph: {a.graph} unalign: 0\n"
        "#\n# Using devices\n"
    )


def device_lines(devices: list[Device]) -> str:
    """The list of each process is cut at 2047 bytes."""
    processes: dict[tuple[str, int], str] = {}
    for d in devices:
        line = (
            f"#  Rank {d.rank:2d} Group  0 Pid {d.pid:6d} on {d.host.partition('.')[0]:>10} "
            f"device {d.index:2d} [{d.pci}] {d.product}\n"
        )
        processes[d.host, d.pid] = processes.get((d.host, d.pid), "") + line
    return "".join(
        text if len(text) <= LONGEST_DEVICE_LIST else text[: LONGEST_DEVICE_LIST - 4] + "...\n"
        for text in processes.values()
    )


def cell(value: float, width: int) -> str:
    """As many of two decimals as the width holds."""
    digits = len(str(int(value))) if value >= 1 else 0
    decimals = 2 if digits < width - 2 else 1 if digits < width - 1 else 0
    return f"{value:{width}.{decimals}f}"


def row_start(size: int, arguments: PerfArguments) -> str:
    """Printed before the operation runs; the figures follow on the same line."""
    count = size // TYPE_BYTES[arguments.datatype]
    return f"{size:12d}  {count:12d}  {arguments.datatype:>8}  {arguments.operation:>6}  {-1:6d}"


def row_side(measured: Measured, *, checked: bool) -> str:
    figures = f"  {cell(measured.time_us, 7)}  {cell(measured.algbw_gbps, 6)}  {cell(measured.busbw_gbps, 6)}"
    return figures + f"  {0 if checked else 'N/A':>6}"


def footer(program: str, average_busbw_gbps: float) -> str:
    return (
        "# Out of bounds values : 0 OK\n"
        f"# Avg bus bandwidth    : {average_busbw_gbps:g} \n"
        f"#\n# Collective test concluded: {program}\n#\n\n"
    )
