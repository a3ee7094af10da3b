"""Lines that are rows of a table: comma-separated exports of log stores, tab-separated syslog files.

Decides which cell is the kernel's text and whether another cell says that the kernel wrote it.
"""

import csv
from dataclasses import replace

from nvcre_agent.kernel.envelope import Line, Stamp, Writer, looks_like_kernel, unwrap

_WROTE = frozenset({"kernel", "kernel:", "kern", "vmkernel"})
_MAX_CELLS = 64


def row(line: str) -> Line | None:
    """The entry of a row; None where the line is none, or has no cell that speaks the kernel's language."""
    cells = None if looks_like_kernel(line) else _cells(line)  # the kernel's own text has commas and quotes too
    if cells is None:
        return None
    stamp: Stamp | None = None
    for cell in cells:
        stamp = stamp or unwrap(f"{cell.strip()} ").stamp
    wrote = any(cell.strip() in _WROTE for cell in cells)
    for cell in reversed(cells):
        said = unwrap(cell)
        if said.writer is Writer.KERNEL and said.text:
            return replace(said, stamp=said.stamp or stamp)
        if looks_like_kernel(said.text):
            return Line(Writer.KERNEL if wrote else Writer.PROCESS, said.text, stamp)
    return None


def _cells(line: str) -> list[str] | None:
    if line.count("\t") >= 2:
        return line.split("\t", _MAX_CELLS)
    if '"' not in line or "," not in line:
        return None
    try:
        [cells] = csv.reader([line], strict=True)
    except (csv.Error, ValueError):
        return None
    return cells[:_MAX_CELLS] if len(cells) >= 2 else None
