"""Every line shape that drivers and kernels print, and lines that only look like them."""

import time

import pytest
from nvcre_agent.kernel.model import KernelEvent, KernelEventKind
from nvcre_agent.kernel.parsers import LineParser


def events(text: str) -> list[KernelEvent]:
    return list(LineParser().feed(text))


def only(text: str) -> KernelEvent:
    [event] = events(text)
    return event


@pytest.mark.parametrize(
    ("line", "code", "pci", "pid", "process", "message"),
    [
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, "0000:03:00", None, None, "Channel 00000001"),
        (
            "NVRM: Xid (PCI:0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000",
            31,
            "0000:01:00",
            None,
            None,
            "Ch 0000000b, engmask 00000120, intr 10000000",
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 13, 0005 00000000 0000502d",
            13,
            "0000:01:00",
            None,
            None,
            "0005 00000000 0000502d",
        ),
        (
            "NVRM: Xid (PCI:0000:05:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
            79,
            "0000:05:00",
            1234,
            "python3",
            "GPU has fallen off the bus.",
        ),
        (
            "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            79,
            "0000:05:00",
            None,
            None,
            "GPU has fallen off the bus.",
        ),
        (
            "NVRM: Xid (PCI:0008:06:00.0): 79, GPU has fallen off the bus.",
            79,
            "0008:06:00.0",
            None,
            None,
            "GPU has fallen off the bus.",
        ),
        ("NVRM: Xid (PCI:0000:05:00): 43, pid=7, name=nvc:[driver], Ch 1", 43, "0000:05:00", 7, "nvc:[driver]", "Ch 1"),
        (
            "NVRM: Xid (PCI:0000:05:00 GPU-I:03): 94, pid=7, name=ray::W, Contained",
            94,
            "0000:05:00",
            7,
            "ray::W",
            "Contained",
        ),
        ("NVRM: Xid (PCI:0000:05:00): 185", 185, "0000:05:00", None, None, ""),
        ("NVRM: Xid (PCI:0000:05:00): 63, pid=2207, Row Remapper: x", 63, "0000:05:00", 2207, None, "Row Remapper: x"),
    ],
)
def test_xid_shapes(line: str, code: int, pci: str, pid: int | None, process: str | None, message: str) -> None:
    event = only(line)
    assert (event.kind, event.code, event.pci) == (KernelEventKind.XID, code, pci)
    assert (event.pid, event.process, event.message) == (pid, process, message)


def test_xid_45_names_its_cause() -> None:
    event = only("NVRM: Xid (PCI:0000:05:00): 45, pid=1, name=p, Ch 00000001 caused by previous Xid 149")
    assert event.caused_by == 149


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("0x0 (None) to 0x2 (Node Reboot Required)", 2),
        ("0x0 (None) to 0x2 (OS Reboot)", 2),
        ("0x4 (Drain and Reset) to 0x1 (GPU Reset Required)", 1),
        ("0x1 (GPU Reset Required) to 0x0 (None)", 0),
        ("0x0 (None) to 0x9 (Something New)", 9),
    ],
)
def test_recovery_action_is_read_from_the_hexadecimal_value(words: str, value: int) -> None:
    event = only(
        f"NVRM: Xid (PCI:0000:05:00): 154, pid='<unknown>', name=<unknown>, GPU recovery action changed from {words}"
    )
    assert event.recovery_action == value


@pytest.mark.parametrize(
    ("line", "nvlink", "severity", "injected"),
    [
        ("146, TLW_RX_PIPE0  Fatal  XC0 i0 Link 03 (0x0000000a 0x00000004 0x0 0x0 0x0 0x0)", 3, "Fatal", False),
        (
            "144, pid='<unknown>', name=<unknown>, SAW_MVB Nonfatal XC0 i1 Link -1 (0x00000001 0x00000008",
            None,
            "Nonfatal",
            True,
        ),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x0250", 7, "Fatal", False),
    ],
)
def test_nvlink5_lines_with_digits_spaces_and_cut_tails(
    line: str, nvlink: int | None, severity: str, injected: bool
) -> None:
    event = only(f"NVRM: Xid (PCI:0000:01:00): {line}")
    assert (event.nvlink, event.severity, event.injected) == (nvlink, severity, injected)


def test_sxid_details_are_no_events_of_their_own() -> None:
    text = "\n".join(
        f"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, {tail}"
        for tail in (
            "Fatal, Link 30 LTSSM Fault Up",
            "Severity 1 Engine instance 60 Sub-engine instance 00",
            "Data {0x1, 0x2}",
        )
    )
    event = only(text)
    assert (event.code, event.switch, event.nvlink, event.severity) == (20034, 3, 30, "Fatal")


def test_a_bus_loss_in_three_lines_is_one_event_in_one_record_or_in_three() -> None:
    lines = [
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:20b0) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    parser = LineParser()
    one_by_one = [event for line in lines for event in parser.feed(line)]
    for found in (events("\n".join(lines)), one_by_one):
        [event] = found
        assert (event.kind, event.pci) == (KernelEventKind.BUS_DROP, "0000:b3:00.0")


def test_an_unsupported_gpu_is_configuration_not_a_bus_loss() -> None:
    assert not events(
        "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:20b0)\n"
        "NVRM: installed in this system is not supported by the\nNVRM: NVIDIA 570.1 driver release."
    )


@pytest.mark.parametrize(
    ("line", "kind", "attributes"),
    [
        ("NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)", "rm_init_failed", {"pci": "0000:0a:00.0"}),
        ("NVRM: RmInitAdapter: Cannot initialize GSP firmware RM", "rm_init_failed", {"pci": None}),
        ("NVRM: GPU0 RmInitAdapter: Cannot initialize GSP firmware RM", "rm_init_failed", {"pci": None}),
        ("NVRM: The NVIDIA probe routine failed for 1 device(s).", "rm_init_failed", {"pci": None}),
        (
            "pcieport 0000:00:01.0: AER: Corrected error received: id=ae00",
            "pcie_aer",
            {"pci": "0000:00:01.0", "severity": "Corrected"},
        ),
        (
            "pcieport 0000:00:01.0: AER: Multiple Corrected error received: 0000:38:00.0",
            "pcie_aer",
            {"pci": "0000:38:00.0", "severity": "Corrected"},
        ),
        (
            "pcieport 0000:00:01.0: AER: Uncorrectable (Fatal) error received: 0000:38:00.0",
            "pcie_aer",
            {"pci": "0000:38:00.0", "severity": "Uncorrectable (Fatal)"},
        ),
        (
            "pcieport 0000:00:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:38:00.0",
            "pcie_aer",
            {"severity": "Uncorrected (Non-Fatal)"},
        ),
        (
            "nvidia 0000:38:00.0: AER: can't recover (no error_detected callback)",
            "pcie_aer",
            {"pci": "0000:38:00.0", "severity": "Cannot recover"},
        ),
        (
            "Out of memory (oom_kill_allocating_task): Killed process 125 (python3.11) total-vm:1kB, anon-rss:1kB",
            "oom_kill",
            {"pid": 125, "process": "python3.11"},
        ),
        (
            "mlx5_core 0000:29:00.1 ib1: NETDEV WATCHDOG: CPU: 3: transmit queue 5 timed out 5120 ms",
            "ib_link",
            {"pci": "0000:29:00.1", "device": "ib1", "state": "Error"},
        ),
        (
            "mlx5_core 0000:29:00.1: Port module event[error]: module 1, Cable error, High Temperature",
            "ib_link",
            {"state": "Module"},
        ),
        (
            "mlx5_core 0000:29:00.0: poll_health:800: device's health compromised - reached miss count",
            "ib_link",
            {"state": "Fatal"},
        ),
        ("mlx5_core 0000:29:00.0 eth2: Link down", "ib_link", {"state": "DOWN", "device": "eth2"}),
        ("mlx5_core 0000:29:00.0 eth2: Link up", "ib_link", {"state": "ACTIVE"}),
        (
            "NETDEV WATCHDOG: eth2 (mlx5_core): transmit queue 3 timed out",
            "ib_link",
            {"device": "eth2", "state": "Error"},
        ),
        ("ib0: lost carrier", "ib_link", {"device": "ib0", "state": "DOWN"}),
        (
            "Memory cgroup out of memory: Killed process 12 (python) total-vm:1kB",
            "oom_kill",
            {"pid": 12, "process": "python"},
        ),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: cc00008000010090", "mce", {"severity": "Corrected"}),
        ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7: be00", "mce", {"severity": "Uncorrected"}),
        ("EDAC MC1: UE page 0x0, offset 0x0, grain 0, row 7", "edac", {"severity": "Uncorrected", "device": "MC1"}),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "edac", {"severity": "Corrected", "device": "MC0"}),
        ("Memory failure: 0x1f2a3b: recovery action for dirty LRU page: Recovered", "memory_failure", {}),
    ],
)
def test_other_families(line: str, kind: str, attributes: dict[str, object]) -> None:
    event = only(line)
    assert event.kind.value == kind
    assert {name: getattr(event, name) for name in attributes} == attributes


@pytest.mark.parametrize(
    "line",
    [
        "audit: COMMAND=grep 'NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.'",
        'python3[812]: "NVRM: Xid (PCI:0000:3b:00): 79"',
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release Build",
        "NVRM: GPU 0000:b1:00.0: rm_init_adapter failed, device minor number 6",
        "nvidia 0000:38:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
        "mce: [Hardware Error]: TSC 0 ADDR 1 MISC 2",
        "mlx5_core 0000:29:00.0: firmware version: 28.39.1002",
        "NVRM: Xid (PCI:0000:3b:00): seventy-nine",
        "",
    ],
)
def test_lines_that_are_no_events(line: str) -> None:
    assert not events(line)


@pytest.mark.parametrize(
    "hostile",
    [
        "NVRM: Xid (PCI:0000:3b:00" + " " * 100_000,
        "NVRM: Xid (PCI:0000:3b:00): 149, " + "A" * 100_000,
        "x " * 50_000 + "AER: " + "0000:00:" * 50_000,
        "NVRM: Xid (PCI:0000:3b:00): 154, recovery action changed from 0x0" + " to" * 50_000,
        "mlx5_core 0000:29:00.0: " + "Link " * 50_000,
        "Killed process " + "(" * 100_000,
        "NVRM: The NVIDIA GPU 0000:b3:00.0\n" * 5_000,
    ],
)
def test_hostile_lines_cost_linear_time(hostile: str) -> None:
    """Ten times the text must not cost anything like a hundred times the work; the guard is pytest's own timeout."""
    started = time.process_time()
    for _ in range(3):
        events(hostile)
    assert time.process_time() - started < 30


XID_79 = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "record",
    [
        # A program file whose name has a line break, as the kernel's warning about an executable stack quotes it.
        f"process '/tmp/x\n{XID_79}' started with executable stack",
        f"EXT4-fs (loop0): mounted filesystem x\n{XID_79}",
        f"Killed process 7 (a)\n{XID_79}",
        f"mlx5_core 0000:29:00.0 mlx5_0: Port: 1 Link DOWN\n{XID_79}",
    ],
)
def test_what_a_user_put_behind_a_line_break_is_not_the_kernel_s_word(record: str) -> None:
    assert [event.code for event in events(record) if event.kind is KernelEventKind.XID] == []


def test_the_driver_s_own_record_may_have_several_lines() -> None:
    assert [event.code for event in events(f"NVRM: some words first\n{XID_79}")] == [79]
    assert [event.code for event in events(f"\n{XID_79}")] == [79]


def test_a_process_called_aer_hides_no_xid() -> None:
    line = "NVRM: Xid (PCI:0000:1b:00): 94, pid=7, name=AER: , Contained: SM (0x1). RST: No, D-RST: No"
    (event,) = events(line)
    assert (event.kind, event.code, event.process) == (KernelEventKind.XID, 94, "AER: ")
