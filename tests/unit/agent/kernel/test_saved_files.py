"""Saved logs as files: formats of named fields, encodings, damage, and files made to deceive."""

import gzip
import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvcre_agent import kernel_log_command
from nvcre_agent.kernel.saved import MAX_LINE, Counts, SavedLog
from nvcre_agent.kernel_log_reading import Reading, Told

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."
BUS = "GPU has fallen off the bus."


@dataclass
class Case:
    name: str
    log: str | bytes
    events: list[tuple[int, str, str | None, bool | None]]
    suspect: bool
    message: str | None = None  # of the last event
    quoted: int = 0


def read(log: str | bytes) -> tuple[list[Told], Reading, Counts]:
    saved = SavedLog(io.BytesIO(log if isinstance(log, bytes) else log.encode()))
    reading = Reading()
    return list(reading.read(saved)), reading, saved.counts


def short(told: Told) -> tuple[int, str, str | None, bool | None]:
    event = told.event
    kind = event.kind.value if event.code is None else f"{event.kind.value} {event.code}"
    return event.line, kind, event.pci, told.hardware


def journal(**fields: object) -> str:
    return json.dumps({"__REALTIME_TIMESTAMP": "1777957505123456", "_HOSTNAME": "n101", **fields}) + "\n"


def export(message: str, transport: str = "kernel") -> bytes:
    data = message.encode()
    text = b"MESSAGE=" + data if b"\n" not in data else b"MESSAGE\n" + len(data).to_bytes(8, "little") + data
    return (
        b"__CURSOR=s=1;i=2\n__REALTIME_TIMESTAMP=1777957505123456\n"
        + text
        + b"\n_TRANSPORT=%b\n\n" % transport.encode()
    )


LOST = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:20b0) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)
DROP = "bus_drop", "0000:b3:00.0", True

SHAPES = [
    Case(
        "kmsg records with tags, escapes and one of a process",
        "6,1,10,-;NVRM: loading NVIDIA UNIX Kernel Module\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
        + f"3,2,20,-;{LOST}".replace("\n", "\\x0a")
        + f"\n12,3,30,-;{XID}\n3,4,40,c;{XID}\n",
        [(4, *DROP), (6, "xid 79", "0000:3b:00", True)],
        True,
        quoted=1,
    ),
    Case(
        "a record of three lines as journalctl prints it",
        "Feb 01 00:00:00 n101 kernel: " + LOST.replace("\n", "\n                             ") + "\n",
        [(1, *DROP)],
        True,
    ),
    Case(
        "a record of three lines in syslog",
        f"Feb  1 00:00:00 n kernel: {LOST}\n".replace("\nNV", "#012NV"),
        [(1, *DROP)],
        True,
    ),
    Case(
        "journalctl -o json: the kernel, a program, one through /dev/kmsg, and bytes",
        journal(_TRANSPORT="syslog", SYSLOG_IDENTIFIER="kernel", MESSAGE=XID)
        + journal(_TRANSPORT="kernel", SYSLOG_FACILITY="1", MESSAGE=XID)
        + journal(_TRANSPORT="kernel", SYSLOG_FACILITY="0", SYSLOG_IDENTIFIER="kernel", MESSAGE=XID)
        + journal(_TRANSPORT="kernel", MESSAGE=list(LOST.encode()))
        + journal(_TRANSPORT="kernel", MESSAGE=None),
        [(3, "xid 79", "0000:3b:00", True), (4, *DROP)],
        True,
        quoted=2,
    ),
    Case(
        "journalctl -o export: plain and binary fields, one with a newline (0x0a) in its length",
        export(XID, "stdout") + export(LOST) + export(XID) + export(f"NVRM: {'x' * (259 - len(XID))}\n{XID}"),
        [(9, *DROP), (16, "xid 79", "0000:3b:00", True), (23, "xid 79", "0000:3b:00", True)],
        True,
        quoted=1,
    ),
    Case(
        "journalctl -o json-pretty",
        f'{{\n\t"__CURSOR" : "s=1",\n\t"MESSAGE" : {json.dumps(XID)},\n\t"_TRANSPORT" : "kernel"\n}}\n',
        [(3, "xid 79", "0000:3b:00", True)],
        True,
    ),
    Case(
        "journalctl -o verbose",
        f"Tue 2026-05-05 05:05:05.123456 UTC [s=1;i=2;b=3]\n    _TRANSPORT=kernel\n    MESSAGE={XID}\n"
        f"Tue 2026-05-05 05:05:06.123456 UTC [s=1;i=3;b=3]\n    MESSAGE={XID}\n    _TRANSPORT=stdout\n",
        [(3, "xid 79", "0000:3b:00", True)],
        True,
        quoted=1,
    ),
    Case(
        "dmesg --json, with and without --decode",
        '{\n   "dmesg": [\n      {\n         "pri": 3,\n         "time":    200.011791,\n         "msg": '
        + json.dumps(XID)
        + '\n      },{\n         "fac": "user",\n         "pri": "err",\n         "msg": '
        + json.dumps(XID)
        + "\n      }\n   ]\n}\n",
        [(6, "xid 79", "0000:3b:00", True)],
        True,
        quoted=1,
    ),
    Case(
        "docker: a container that reads the kernel log, one that prints such words",
        json.dumps({"log": f"[  12.5] {XID}\n", "stream": "stdout", "time": "2026-05-05T05:05:05.1Z"})
        + "\n"
        + json.dumps({"log": f"{XID}\n", "stream": "stdout", "time": "2026-05-05T05:05:05.1Z"})
        + "\n",
        [(1, "xid 79", "0000:3b:00", True)],
        True,
        quoted=1,
    ),
    Case(
        "Windows: CRLF and a byte order mark",
        f"\ufeff[1.0] x\r\n[2.0] {XID}\r\n",
        [(2, "xid 79", "0000:3b:00", True)],
        True,
    ),
    Case(
        "PowerShell: UTF-16", f"[1.0] x\r\n[2.0] {XID}\r\n".encode("utf-16"), [(2, "xid 79", "0000:3b:00", True)], True
    ),
    Case(
        "UTF-16 without a mark",
        f"[1.0] x\r\n[2.0] {XID}\r\n".encode("utf-16-le"),
        [(2, "xid 79", "0000:3b:00", True)],
        True,
    ),
    Case(
        "a message ends where its line does",
        "[2.0] NVRM: Xid (PCI:0000:3b:00): 43, pid=1, name=x, Ch 10 \r\n",
        [(1, "xid 43", "0000:3b:00", False)],
        False,
        message="Ch 10 ",
    ),
    Case("gzip", gzip.compress(f"[2.0] {XID}\n".encode()), [(1, "xid 79", "0000:3b:00", True)], True),
    Case(
        "a crash left zeros, and a name that is not UTF-8",
        b"\0" * 512 + b"[2.0] NVRM: Xid (PCI:0000:3b:00): 43, pid=1, name=caf\xe9, Ch 1\n"
        b"[3.0] \0\0NVRM: Xid (PCI:0000:3b:00): 43\n",
        [(1, "xid 43", "0000:3b:00", False), (2, "xid 43", "0000:3b:00", False)],
        False,
    ),
    Case(
        "a line of a megabyte",
        f"[1.0] {XID} {'A' * 2**20}\n[2.0] {XID}\n",
        [(n, "xid 79", "0000:3b:00", True) for n in (1, 2)],
        True,
    ),
    Case("cut at its tail", f"[1.0] {XID}\n[2.0] NVRM: Xid (PCI:0000:3b:0", [(1, "xid 79", "0000:3b:00", True)], True),
    Case(
        "repeats that syslog folded",
        f"Feb  1 00:00:00 n kernel: [  9.1] {XID}\n"
        f"Feb  1 00:00:09 n kernel: message repeated 7 times: [ [  9.2] {XID}]\n",
        [(1, "xid 79", "0000:3b:00", True), (2, "xid 79", "0000:3b:00", True)],
        True,
        BUS,
    ),
    Case(
        "a console that lost a line end",
        f"[200.100000] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fa[  200.200000] {XID}\n"
        f"[1.0] a: [  2.000000] {XID}\nFeb  1 00:00:00 n app: NVRM: I say [  2.000000] {XID}\n",
        [(1, "xid 79", "0000:3b:00", True), (1, "xid 79", "0000:3b:00", True)],
        True,
        quoted=2,
    ),
    Case(
        "a user's line break does not make a line of the kernel's",
        f"[1.0] process '/tmp/x\n{XID}' started with executable stack\n[2.0] NVRM: some words\n{XID}\n",
        [(4, "xid 79", "0000:3b:00", True)],
        True,
        quoted=1,
    ),
    Case(
        "the rest of a program's entry is the program's",
        f"Feb  1 00:00:00 n kernel: NVRM: loading\nFeb  1 00:00:00 n app[1]: I saw\n{XID}\n",
        [],
        False,
        quoted=1,
    ),
    Case(
        "nvidia-bug-report: sections of several tools in one file",
        "____________________________________________\n\n*** /var/log/messages\n*** ls: -rw-r----- 1 root adm 1\n"
        f"Feb  1 00:00:00 n101 kernel: [  200.0] {XID}\n\n/bin/dmesg\n\n[  200.011791] {XID}\n"
        "Timestamp                     : Tue May  5 05:05:05 2026\nGPU 00000000:3B:00.0\n    Product Name : x\n",
        [(5, "xid 79", "0000:3b:00", True), (9, "xid 79", "0000:3b:00", True)],
        True,
    ),
    Case(
        "the newest stamp is smaller than the one before, the sequence starts again",
        f"3,4294967295,18446744073709551615,-;{XID}\n3,0,1,-;NVRM: GPU 0000:3b:00.0: {BUS}\n",
        [(1, "xid 79", "0000:3b:00", True), (2, "bus_drop", "0000:3b:00.0", True)],
        True,
    ),
]


@pytest.mark.parametrize("case", SHAPES, ids=lambda case: case.name)
def test_a_file(case: Case) -> None:
    told, reading, _ = read(case.log)
    assert [short(one) for one in told] == case.events
    assert reading.node_suspect is case.suspect
    assert reading.quoted.count == case.quoted
    assert case.message is None or told[-1].event.message == case.message


def test_a_name_that_is_not_utf_8_is_readable() -> None:
    [told], _, _ = read(b"[2.0] NVRM: Xid (PCI:0000:3b:00): 43, pid=1, name=caf\xe9, Ch 1\n")
    assert told.event.process == "caf\ufffd"


def test_a_folded_repeat_counts_as_often_as_it_came() -> None:
    [folded] = [case for case in SHAPES if case.name.startswith("repeats")]
    _, reading, _ = read(folded.log)
    assert [row.count for row in reading.rows.values()] == [8]


def test_an_xid_that_cannot_be_read_is_said() -> None:
    _, reading, _ = read("[1.0] NVRM: loading\n[2.0] NVRM: Xid (PCI:0000:3b:0")
    assert reading.unread.lines == [2]
    assert not reading.node_suspect


def test_a_code_that_the_end_of_the_file_cut_is_no_other_code() -> None:
    told, reading, _ = read("[1.0] NVRM: Xid (PCI:0000:3b:00): 43\n[2.0] NVRM: Xid (PCI:0000:3b:00): 7")
    assert [one.event.code for one in told] == [43]
    assert reading.unread.lines == [2]


def test_an_event_of_several_lines_has_the_time_of_its_first() -> None:
    _, reading, _ = read("[2.0] " + LOST.replace("\n", "\n      ") + "\n")
    [row] = reading.rows.values()
    assert row.first_at is not None
    assert row.first_at.printed == "2.0"


def test_what_was_skipped_is_counted() -> None:
    _, reading, counts = read(f"Feb  1 00:00:00 n app[1]: x\n\n[1.0] a\n{'x' * (MAX_LINE + 5)}\n")
    assert (counts.lines, counts.other_programs, counts.blank, counts.kernel, counts.cut) == (4, 1, 1, 1, 1)
    assert reading.recognised == 1


@pytest.mark.parametrize("log", ["", "\n\n", "step 1 loss 2.3\nstep 2 loss 2.2\n", "\x7fELF\x02\x01\x01\0\0"])
def test_a_file_without_kernel_lines_is_recognised_as_such(log: str) -> None:
    _, reading, _ = read(log)
    assert reading.recognised == 0


@pytest.mark.parametrize(
    ("head", "command"),
    [(b"\x28\xb5\x2f\xfd", "zstd -dc"), (b"PK\x03\x04", "unzip -p"), (b"LPKSHHRH", "journalctl -k --file")],
)
def test_a_file_that_something_else_can_read_is_refused_with_the_command(
    head: bytes, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "saved"
    file.write_bytes(head + bytes(64))
    assert kernel_log_command.main([str(file)], {}) == kernel_log_command.NO_ANSWER
    out, err = capsys.readouterr()
    assert out == ""
    assert f"use {command} FILE | nvcre-agent kernel-log -" in err


def test_a_damaged_gzip_gives_what_could_be_read() -> None:
    whole = gzip.compress(f"[2.0] {XID}\n".encode() * 20_000)
    _, reading, counts = read(whole[: len(whole) // 2])
    assert counts.damage
    assert reading.node_suspect


def test_rows_fold_repeats_and_name_the_gpu_the_log_names() -> None:
    log = "".join(
        f"[{n}.0] NVRM: Xid (PCI:0000:1d:00): 119, pid=1, name=x, Timeout after 6s of waiting for RPC response "
        "from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL)\n"
        for n in range(50)
    )
    log += "[60.0] NVRM: GPU at PCI:0000:1d:00: GPU-12345678-1234-1234-1234-123456789abc\n"
    _, reading, _ = read(log)
    [row] = reading.rows.values()
    assert (row.count, row.first_at and row.first_at.printed, row.last_at and row.last_at.printed) == (
        50,
        "0.0",
        "49.0",
    )
    who = reading.identities["0000:1d:00"]
    assert (who.index, who.uuid) == (4, "GPU-12345678-1234-1234-1234-123456789abc")


def test_two_links_of_a_gpu_are_two_rows() -> None:
    words = "(0x00400011 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
    line = "[1.0] NVRM: Xid (PCI:0000:18:00): 149, NETIR_LINK_DOWN Fatal XC0 i0 Link {:02} " + words + "\n"
    _, reading, _ = read(line.format(3) + line.format(4) + line.format(3))
    assert [(row.first.event.nvlink, row.count) for row in reading.rows.values()] == [(3, 2), (4, 1)]


def test_memory_does_not_grow_with_hostile_variety() -> None:
    log = "".join(
        f"[{n}.0] NVRM: Xid (PCI:{n:08x}:00:00): {n}, x\n[1.0] NVRM: GPU {n:08x}:00:00.0: {BUS}\n" for n in range(9000)
    )
    _, reading, _ = read(log)
    assert reading.events == 18_000
    assert len(reading.rows) + reading.rows_left_out <= 18_000
    assert len(reading.rows) <= 4096
    assert len(reading._losses) <= 256


@pytest.mark.parametrize(
    "hostile",
    [
        "a" * 60_000,
        "a." * 30_000,
        "a b:" * 15_000,
        "[" + " " * 60_000 + "1.0] x",
        "\x1b[" * 30_000,
        "\x1b[" + "0" * 60_000,
        "Feb  1 00:00:00 " + "n" * 30_000 + " " + "k" * 30_000,
        "2026-05-05T05:05:05Z h a p m " + "[x]" * 20_000,
        "[1.0] NVRM: " + "[1.0000000] NVRM:" * 3_000,
        "[1.000000] NVRM: x" * 3_000,
        "{" * 60_000 + "}",
        "3,1,1," + "a" * 60_000,
    ],
)
def test_hostile_lines_cost_linear_time(hostile: str) -> None:
    """Ten times the text must not cost a hundred times the work; the guard is pytest's own timeout."""
    for end in ("\n", "\n\n", "}\n"):
        read((hostile + end) * 20)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=3000))
def test_any_bytes_are_read_to_their_end(log: bytes) -> None:
    for before in (
        b"",
        b"\x1f\x8b",
        b"__CURSOR=x\nMESSAGE\n",
        b"{\n",
        b"[  1.0] NVRM: Xid (",
        b"Feb  1 00:00:00 n kernel: ",
    ):
        read(before + log)
