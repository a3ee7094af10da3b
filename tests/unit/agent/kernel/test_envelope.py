"""What stands before the kernel's own text, tool by tool, and who wrote the line."""

import io

import pytest
from nvcre_agent.kernel.envelope import Clock, Stamp
from nvcre_agent.kernel.saved import SavedLog
from nvcre_agent.kernel_log_reading import Reading, Told

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."
BUS = "GPU has fallen off the bus."
PREFIXES = {
    "dmesg": "[  200.011791] ",
    "dmesg with callers": "[  200.011791] [   T4242] ",
    "dmesg with callers, as printk prints": "[  200.011791][   C12] ",
    "dmesg -r": "<3>[  200.011791] ",
    "dmesg -T": "[Tue May  5 05:05:05 2026] ",
    "dmesg -H": "[May 5 05:05] ",
    "dmesg -H, later lines": "[  +0.000012] ",
    "dmesg -H, a line that overtook another": "[  -0.000012] ",
    "dmesg -d": "[  200.011791 <    0.000012>] ",
    "dmesg -dT": "[Tue May  5 05:05:05 2026 <    0.000012>] ",
    "dmesg -x": "kern  :err   : [  200.011791] ",
    "dmesg --time-format iso": "2026-05-05T05:05:05,123456+00:00 ",
    "dmesg -x --time-format iso": "kern  :err   : 2026-05-05T05:05:05,123456+02:00 ",
    "dmesg -T with a zone": "[Tue May  5 05:05:05 UTC 2026] ",
    "dmesg -T with a host and a tag": "[Tue May  5 05:05:05 2026] n101 kernel: ",
    "dmesg copied from a web page": "[  200.011791]\xa0",
    "files put together": "\ufeff[  200.011791] ",
    "dmesg in colours": "\x1b[32m[  200.011791] \x1b[0m\x1b[33m",
    "kmsg": "3,339,200011791,-;",
    "kmsg with a caller": "3,339,200011791,-,caller=T4242;",
    "rsyslog": "Feb  1 00:00:00 n101 kernel: [  200.011791] ",
    "rsyslog, ISO": "2026-05-05T05:05:05.123456+00:00 n101 kernel: [  200.011791] ",
    "journalctl": "Feb 01 00:00:00 n101 kernel: ",
    "journalctl -o short-precise": "Feb 01 00:00:00.123456 n101 kernel: ",
    "journalctl -o short-iso": "2026-05-05T05:05:05+0000 n101 kernel: ",
    "journalctl -o short-full": "Tue 2026-05-05 05:05:05 CEST n101 kernel: ",
    "journalctl -o short-monotonic": "[  200.011791] n101 kernel: ",
    "journalctl -o short-unix": "1777957505.123456 n101 kernel: ",
    "syslog over the wire": "<3>Feb  1 00:00:00 n101 kernel: ",
    "RFC 5424": "<3>1 2026-05-05T05:05:05.123Z n101 kernel - - - ",
    "RFC 5424 with data": '<3>1 2026-05-05T05:05:05.123Z n101 kernel - - [x@1 y="z"] ',
    "busybox": "Feb  1 00:00:00 n101 kern.err kernel: [  200.011791] ",
    "another language": "dic  1 10:00:00 n101 kernel: ",
    "Finnish": "maalis 04 00:00:00 n101 kernel: ",
    "Chinese": "2月 01 00:00:00 n101 kernel: ",
    "dmesg -T, Chinese": "[三 2月  1 00:00:00 2026] ",
    "syslog through a relay": "Feb  1 00:00:00 10.0.0.1 Feb  1 00:00:00 n101 kernel: ",
    "syslog through a relay, ISO": "Feb  1 00:00:00 10.0.0.1 2026-02-01T00:00:00+00:00 n101 kernel: ",
    "kubectl logs --timestamps": "2026-05-05T05:05:05.123456789Z [  200.011791] ",
    "a container runtime's file": "2026-05-05T05:05:05.123456789Z stdout F [  200.011791] ",
    "a container that prints syslog": "2026-05-05T05:05:05.123456789Z stderr F Feb  1 00:00:00 n101 kernel: ",
    "kubectl logs --prefix": "[pod/dmesg-x7k2/dmesg] [  200.011791] ",
    "oc adm node-logs": "ip-10-0-1-2.ec2.internal Feb 01 00:00:00.123456 ip-10-0-1-2 kernel: ",
    "pdsh": "n101: [  200.011791] ",
    "grep -n": "/var/log/kern.log:12:Feb  1 00:00:00 n101 kernel: [  200.011791] ",
    "ESXi": "2026-05-05T05:05:05.123Z cpu12:2101234)",
    "ESXi 8, information": "2026-05-05T05:05:05.123Z In(182) vmkernel: cpu12:2101234 opID=a1)",
    "ESXi through syslog": "2026-05-05T05:05:05.123Z esx-3 vmkernel: cpu12:2101234)",
    "ESXi 8": "2026-05-05T05:05:05.123Z Wa(180) vmkwarning: cpu12:2101234)WARNING: ",
    "a serial console": "n101 login: [  200.011791] ",
    "journalctl --no-hostname": "Feb 01 00:00:00 kernel: ",
    "a host called NVRM": "Feb  1 00:00:00 NVRM kernel: ",
    "a host called nvidia-3": "2026-05-05 05:05:05 nvidia-3 kernel: ",
    "cut at its head": "11791] ",
    "cut in its head's tag": "0:00 n101 kernel: [  200.011791] ",
    "kubectl logs --timestamps of dmesg -t": "2026-05-05T05:05:05.123456789Z ",
    "nothing (journalctl -o cat, dmesg -t)": "",
}


def read(log: str) -> tuple[list[Told], Reading]:
    reading = Reading()
    return list(reading.read(SavedLog(io.BytesIO(log.encode())))), reading


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES.keys())
def test_what_stands_before_the_kernel_s_text(prefix: str) -> None:
    told, reading = read(f"{prefix}{XID}\n")
    [one] = told
    assert (one.event.code, one.event.pci, one.event.message) == (79, "0000:3b:00", "GPU has fallen off the bus.")
    assert reading.node_suspect


@pytest.mark.parametrize(
    "prefix",
    [
        "[SOL] [  200.011791] ",
        "[1,0]<stdout>: [  200.011791] ",
        "n101: 0: [  200.011791] ",
        "12) [  200.011791] ",
        "n101 kernel: ",
        "2026/05/05 05:05:05 n101 kernel: [  200.011791] ",
        "05:05:05 n101 kernel: ",
        "1777957505 n101 kernel: ",
    ],
)
def test_a_prefix_of_no_known_tool_is_learned_from_the_first_lines(prefix: str) -> None:
    told, reading = read(f"{prefix}usb 1-1: new device\n{prefix}{XID}\n{prefix.replace('0', '7')}{XID}\n")
    assert [(one.event.line, one.event.message) for one in told] == [(2, BUS), (3, BUS)]
    assert reading.node_suspect


@pytest.mark.parametrize(
    "text",
    [
        "Faking a node at [mem 0x0000-0xffff]",
        "pps_core: Software ver. 5.3.6 - Copyright 2005",
        "ACPI: PCI Root Bridge [PC00] (x)",
    ],
)
@pytest.mark.parametrize("prefix", ["2026-05-05T05:05:05,123456+00:00 ", "2026-05-05T05:05:05.123456789Z "])
def test_a_kernel_s_line_of_five_words_is_no_structured_syslog(prefix: str, text: str) -> None:
    told, _ = read(f"{prefix}{text}\n{prefix}{XID}\n")
    assert [one.event.line for one in told] == [2]


@pytest.mark.parametrize("prefix", ['INFO saw "[  200.011791] ', "INFO it said: "])
def test_a_program_s_words_before_a_quote_are_no_prefix(prefix: str) -> None:
    told, _ = read(f"{prefix}{XID}\n" * 3)
    assert told == []


FORGED_PREFIXES = {
    "kmsg, facility user": "12,339,200011791,-;",
    "dmesg -r, facility user": "<12>[  200.011791] ",
    "dmesg -x, facility user": "user  :notice: [  200.011791] ",
    "RFC 5424, facility user": "<13>1 2026-05-05T05:05:05.123Z n101 kernel - - - ",
    "logger -t NVRM": "Feb  1 00:00:00 n101 ",
    "logger -t kernel -i": "Feb  1 00:00:00 n101 kernel[4242]: ",
    "busybox logger -t kernel": "Feb  1 00:00:00 n101 user.notice kernel: ",
    "a program": "Feb  1 00:00:00 n101 python3[812]: ",
    "a program, RFC 5424": "<14>1 2026-05-05T05:05:05.123Z n101 trainer 812 - - ",
    "an audit record": "[  200.0] audit: type=1123 audit(1777.1:9): pid=1 msg='cmd=",
    "sudo": "Feb  1 00:00:00 n101 sudo:     root : COMMAND=/bin/grep ",
    "a container's output": "2026-05-05T05:05:05.123456789Z stdout F ",
    "a container's output with a time of its own": "2026-05-05T05:05:05.123456789Z stdout F 12:00:01 ",
    "kubectl logs --timestamps": "2026-05-05T05:05:05.123456789Z ",
    "containerd": "Feb  1 00:00:00 n101 containerd[1]: time=x msg=",
    "a quote": '[  200.0] systemd[1]: Started "',
}


@pytest.mark.parametrize("prefix", FORGED_PREFIXES.values(), ids=FORGED_PREFIXES.keys())
def test_what_a_process_wrote_or_quoted_is_shown_and_does_not_count(prefix: str) -> None:
    told, reading = read(f"[  1.0] NVRM: loading NVIDIA UNIX Kernel Module  570.1\n{prefix}{XID}\n")
    assert told == []
    assert not reading.node_suspect
    assert reading.quoted.lines == [2]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (Stamp("100.25", Clock.UPTIME), Stamp("160.25", Clock.UPTIME)),
        (Stamp("Tue May  5 05:05:05 2026", Clock.CALENDAR), Stamp("2026-05-05T07:06:05+0200", Clock.CALENDAR)),
        (
            Stamp("2026-05-05T05:05:05,123456+00:00", Clock.CALENDAR),
            Stamp("Tue 2026-05-05 05:06:05 UTC", Clock.CALENDAR),
        ),
        (Stamp("2月 29 23:59:30", Clock.YEARLESS), Stamp("Mar  1 00:00:30", Clock.YEARLESS)),
        (Stamp("Feb 29 23:59:30.5", Clock.YEARLESS), Stamp("Mar  1 00:00:30", Clock.YEARLESS)),
    ],
)
def test_times_of_one_clock_are_compared_however_they_are_printed(earlier: Stamp, later: Stamp) -> None:
    assert earlier.seconds is not None
    assert later.seconds == earlier.seconds + 60


@pytest.mark.parametrize("printed", ["dic  1 10:00:00", "2026-13-45T99:99:99", "+0.000012", ""])
def test_a_time_that_cannot_be_read_is_no_time(printed: str) -> None:
    assert Stamp(printed, Clock.CALENDAR).seconds is None
