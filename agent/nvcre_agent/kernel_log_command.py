"""`nvcre-agent kernel-log FILE`: explains a saved kernel log to a person (table) or a program (JSON, schema kernel/1).

Flags, reading, printing and the exit code. What the lines mean is decided by kernel_log_reading.py.
"""

import argparse
import errno
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

from nvcre_protos.flags import Flags
from nvcre_protos.vocabulary import FaultClass

from nvcre_agent.command_line import add_xid_catalogue, printable, use_xid_catalogue
from nvcre_agent.kernel.envelope import Stamp
from nvcre_agent.kernel.model import KernelEvent, KernelEventKind
from nvcre_agent.kernel.saved import Counts, SavedLog
from nvcre_agent.kernel_log_reading import Listed, Reading, Row, Told
from nvcre_agent.xid import catalogue

NOTHING, SUSPECT, NO_ANSWER = 0, 1, 2
MAX_PRINTED = 200
_SPOOL_BYTES = 1 << 20

_FOREIGN = {  # what a file begins with -> what it is and what makes text of it
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -dc FILE"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -dc FILE"),
    b"PK\x03\x04": ("a zip archive", "unzip -p FILE"),
    b"LPKSHHRH": ("a binary journal", "journalctl -k --file FILE"),
}

_DESCRIPTION = """\
Explains what a saved kernel log says about the GPUs, links and NICs of a node: the output of dmesg (any option),
journalctl -k (any -o), /var/log/kern.log, messages or syslog, raw /dev/kmsg records, node logs of kubectl or oc,
nvidia-bug-report.log.gz, consoles, container logs, and what log shippers and stores export (JSON, logfmt, CSV); plain,
gzip, bzip2 or xz. Only the kernel's own lines count: what another program printed or quoted is counted apart.
"""
_EPILOG = """\
exit codes:
  0  kernel lines were read, and nothing in them speaks of hardware
  1  the node is suspect: hardware events, a recovery action the driver still asks for, or a GPU it could not start
  2  no answer: usage, an unreadable or damaged file, or not one line that is known as the kernel's

examples:
  dmesg | nvcre-agent kernel-log -
  journalctl -k -b -1 -o json | nvcre-agent kernel-log - -o json
  nvcre-agent kernel-log nvidia-bug-report.log.gz
"""
_CLASS_WORDS = {
    FaultClass.FATAL_HARDWARE: "fatal hardware",
    FaultClass.NEEDS_RESET: "needs reset",
    FaultClass.NEEDS_REBOOT: "needs reboot",
    FaultClass.APPLICATION: "application",
    FaultClass.INFORMATIONAL: "informational",
    FaultClass.UNKNOWN: "unknown",
}
_KIND_WORDS = {
    KernelEventKind.BUS_DROP: "bus loss",
    KernelEventKind.RM_INIT_FAILED: "driver cannot start GPU",
    KernelEventKind.PCIE_AER: "PCIe error",
    KernelEventKind.IB_LINK: "NIC",
    KernelEventKind.OOM_KILL: "OOM kill",
    KernelEventKind.MCE: "machine check",
    KernelEventKind.EDAC: "host memory",
    KernelEventKind.MEMORY_FAILURE: "host memory page lost",
}


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Read, print, and answer the exit code. A usage error ends the process with code 2."""
    parser = argparse.ArgumentParser(
        prog="nvcre-agent kernel-log",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="the saved log; - for standard input")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    add_xid_catalogue(Flags(parser, environment))
    given = parser.parse_args(arguments)
    use_xid_catalogue(parser, given.xid_catalogue)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show an arrow still gets its answer
    try:
        with _opened(given.file) as stream:
            return _explain(stream, sys.stdout, as_json=given.output == "json")
    except OSError as error:
        print(f"nvcre-agent kernel-log: {given.file}: {error.strerror or error}", file=sys.stderr)
        return NO_ANSWER
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _opened(name: str) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    path = Path(name)
    if path.is_char_device():  # /dev/kmsg never ends
        raise OSError(errno.EINVAL, "is a device, not a saved log: use dmesg | nvcre-agent kernel-log -")
    return path.open("rb")


def _refuse_foreign(stream: BinaryIO) -> None:
    head = stream.peek(8) if isinstance(stream, io.BufferedReader) else b""
    for magic, (what, command) in _FOREIGN.items():
        if head.startswith(magic):
            raise OSError(errno.EINVAL, f"is {what}: use {command} | nvcre-agent kernel-log -")


def _explain(stream: BinaryIO, out: TextIO, *, as_json: bool) -> int:
    _refuse_foreign(stream)
    log, reading = SavedLog(stream), Reading()
    told = reading.read(log)
    if as_json:
        _print_json(told, reading, out)
    else:
        for _ in told:
            pass
        print("\n".join(_table(reading, log.counts)), file=out)
    if as_json:
        print(_what_was_read(reading, log.counts), file=sys.stderr)
    if reading.node_suspect:
        return SUSPECT
    return NO_ANSWER if reading.recognised == 0 or log.counts.damage else NOTHING


# --- JSON


def _print_json(told: Iterator[Told], reading: Reading, out: TextIO) -> None:
    """Events as they are found; the indices of the hardware events wait in a file when they are many."""
    out.write('{"events": [')
    with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES, mode="w+") as indices:
        several = False
        for number, one in enumerate(told):
            out.write((",\n  " if number else "\n  ") + json.dumps(one.to_json()))
            if one.hardware is True:
                indices.write(f", {number}" if several else str(number))
                several = True
        out.write('\n],\n"hardware_events": [')
        indices.seek(0)
        shutil.copyfileobj(indices, out)
    out.write(f'],\n"node_suspect": {json.dumps(reading.node_suspect)}}}\n')


# --- the table


def _table(reading: Reading, counts: Counts) -> Iterable[str]:
    yield _verdict(reading, counts)
    yield ""
    rows = sorted(reading.rows.values(), key=lambda row: row.first.hardware is not True)
    if rows:
        yield from _columns(rows[:MAX_PRINTED], reading)
        left_out = len(rows) - MAX_PRINTED
        if left_out > 0 or reading.rows_left_out:
            yield f"and {max(left_out, 0)} more rows, {reading.rows_left_out} events in no row; -o json has them all"
        yield ""
    for address in dict.fromkeys(row.address for row in rows if row.first.hardware):
        if (who := reading.identities.get(address)) is not None and who.uuid is not None:
            yield f"{address} is {who.uuid}"
    for address, action in reading.recovery_asked.items():
        yield f"{address}: the driver still asks for recovery action 0x{action:x} (Xid 154)"
    for meaning, listed in reading.notes.items():
        yield f"also: {meaning} ({_lines(listed)})"
    unknown = sorted({row.first.event.code for row in rows if row.first.event.code and _is_unknown(row.first.event)})
    if unknown:
        yield f"warning: Xid {', '.join(map(str, unknown[:MAX_PRINTED]))}: in no catalogue known here; accuses nobody"
    if reading.unread.count:
        yield f"warning: Xid lines that could not be read, cut off or of a new form ({_lines(reading.unread)})"
    if reading.quoted.count:
        yield f"not counted: other programs' words, or quotes of kernel lines ({_lines(reading.quoted)})"
    yield _what_was_read(reading, counts)


def _verdict(reading: Reading, counts: Counts) -> str:
    worst = reading.worst()
    if not reading.node_suspect:
        if reading.recognised == 0:
            return (
                f"NO ANSWER: no kernel lines recognised in {_plural(counts.lines, 'line')}; this says nothing about "
                "the node. Is it the output of dmesg, journalctl -k or a kern.log? (`nvcre parse` reads those of "
                "nccl-tests and of training runs.)"
            )
        if counts.damage:
            damage = printable(counts.damage)
            return f"NO ANSWER: the file is damaged ({damage}); nothing of hardware in what could be read"
        return f"NOTHING OF HARDWARE: {_count(reading.events, 'other event' if reading.events else 'event')}"
    if worst is None or worst.first.hardware is not True:
        return "NODE SUSPECT: no hardware event, but the driver could not start a GPU or asks for a recovery"
    told = worst.first
    others = len({row.address for row in reading.rows.values() if row.first.hardware is True} - {worst.address})
    also = f" (and {others} other device{'' if others == 1 else 's'} below)" if others else ""
    what = f"{_what(told.event)} {told.verdict.mnemonic}".rstrip()
    return printable(f"HARDWARE SUSPECT: {_device(worst, reading)}: {what}: {told.verdict.remedy}{also}")


def _columns(rows: Sequence[Row], reading: Reading) -> Iterator[str]:
    head = ("TIME", "DEVICE", "WHAT", "CLASS", "HARDWARE", "COUNT", "MEANING AND WHAT TO DO")
    lines = [head, *(_cells(row, reading) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head) - 1)]
    before = sum(widths) + 2 * len(widths)
    last = max(40, shutil.get_terminal_size((160, 24)).columns - before)
    for line in lines:
        start = "".join(f"{cell:<{width}}  " for cell, width in zip(line[:-1], widths, strict=True))
        parts = textwrap.wrap(line[-1], last) or [""]
        yield (start + parts[0]).rstrip()
        yield from (" " * before + part for part in parts[1:])


def _cells(row: Row, reading: Reading) -> tuple[str, ...]:
    told = row.first
    verdict, event = told.verdict, told.event
    hardware = "yes" if told.hardware else "no" if told.hardware is False else "unknown"
    meaning = "; ".join(part for part in (verdict.mnemonic, verdict.remark) if part) or event.message[:120]
    who = f" [first: {event.process or 'process'} {event.pid}]" if event.pid else ""
    if event.injected:
        meaning = f"test injection, does not count; {meaning}"
    elif told.duplicate_of_line is not None:
        meaning = f"same loss as line {told.duplicate_of_line}; {meaning}"
    return tuple(
        printable(cell)
        for cell in (
            _span(row.first_at, row.last_at if row.count > 1 else None),
            _device(row, reading),
            _what(event),
            _CLASS_WORDS[verdict.fault_class],
            hardware,
            str(row.count),
            f"{meaning}{who} => {verdict.remedy}",
        )
    )


def _device(row: Row, reading: Reading) -> str:
    event = row.first.event
    address = event.pci or event.device or "node"
    who = reading.identities.get(row.address)
    if who is not None and who.index is not None:
        address += f" GPU{who.index}"
    elif who is not None and who.minor is not None:
        address += f" minor {who.minor}"
    if event.nvlink is not None:
        address += f" link {event.nvlink}"
    return address


def _what(event: KernelEvent) -> str:
    match event.kind:
        case KernelEventKind.XID:
            return f"Xid {event.code}"
        case KernelEventKind.SXID:
            return f"SXid {event.code}"
        case KernelEventKind.IB_LINK:
            return f"NIC {event.state}"
        case kind:
            return _KIND_WORDS[kind]


def _is_unknown(event: KernelEvent) -> bool:
    return event.kind is KernelEventKind.XID and event.code not in catalogue.catalogue().xid


def _span(first: Stamp | None, last: Stamp | None) -> str:
    if first is None:
        return "-"
    if last is None or last.printed == first.printed or last.clock is not first.clock:
        return first.printed
    return f"{first.printed} .. {last.printed}"


def _what_was_read(reading: Reading, counts: Counts) -> str:
    parts = [
        f"{_plural(counts.lines, 'line')} read",
        f"{reading.recognised} of the kernel" if reading.recognised else "no kernel lines recognised",
        _count(reading.events, "event"),
    ]
    skipped = (
        (counts.other_programs, "of other programs"),
        (counts.fields, "fields of entries"),
        (counts.blank, "blank"),
        (counts.cut, "over-long, only their heads read"),
        (reading.quoted.count, "not counted as quotes"),
        (reading.unread.count, "with an Xid unreadable"),
    )
    parts += [f"{count} {reason}" for count, reason in skipped if count]
    if counts.damage:
        parts.append(f"ended early: {printable(counts.damage)}")
    return "; ".join(parts)


def _count(count: int, word: str) -> str:
    return _plural(count, word) if count else f"no {word}s"


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _lines(listed: Listed) -> str:
    more = ", ..." if listed.count > len(listed.lines) else ""
    return f"{listed.count}x, line {', '.join(map(str, listed.lines))}{more}"
