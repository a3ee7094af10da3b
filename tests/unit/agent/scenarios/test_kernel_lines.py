"""The fault scenarios of the reference note (section 8) that kernel lines alone decide, each under its number.

What the coordinator makes of them, and what needs NVML or a restart, is tested elsewhere.
"""

import itertools
from collections.abc import Iterable

import pytest
from nvcre_agent.checks.model import Component
from nvcre_agent.incidents.folding import Folding
from nvcre_agent.incidents.model import Incident
from nvcre_agent.incidents.signals import Moment, from_kernel
from nvcre_agent.kernel.parsers import LineParser
from nvcre_agent.kernel.record import parse_record
from nvcre_agent.nvml.snapshot import GpuIdentity, Inventory, PciAddress
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind
from support.folded import Folded

WALL = 1_800_000_000.0
WORDS = "0x00000000 0x00000000 0x00000000 0x00000000)"
BUS_LOST = "GPU has fallen off the bus."


class Node(Folded):
    """Eight GPUs at buses 3b to 42 of one PCI domain; records of /dev/kmsg go in, open incidents come out."""

    def __init__(self, domain: int = 0) -> None:
        numbers = itertools.count(1)
        self.folding = Folding(boot_id="boot-1", simulated=False, new_id=lambda: f"incident-{next(numbers)}")
        self.inventory = Inventory(
            tuple(
                GpuIdentity(n, f"GPU-{n}", PciAddress(domain, 0x3B + n, 0), "GB200", f"serial-{n}") for n in range(8)
            ),
            "580.65.06",
            "13.0",
        )
        self.now_s = 1000.0
        self._parser = LineParser()
        self._sequence = itertools.count(1)

    def record(self, text: str, *, facility: int = 0) -> None:
        raw = f"{facility << 3 | 3},{next(self._sequence)},{int(self.now_s * 1e6)},-;".encode()
        record = parse_record(raw + text.encode().replace(b"\n", b"\\x0a"))
        at = Moment(WALL + self.now_s, self.now_s)
        for event in self._parser.feed(record.text):
            self.folding.fold(from_kernel(event, self.inventory, at, injected=not record.from_kernel))

    def xid(self, code: int, text: str, *, gpu: int = 0, process: str = "", facility: int = 0) -> None:
        self.record(f"NVRM: Xid (PCI:0000:{0x3B + gpu:02x}:00): {code}, {process}{text}", facility=facility)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.folding.tick(WALL + self.now_s, self.now_s)


def verdicts(incidents: Iterable[Incident]) -> list[tuple[int, FaultClass, Blame]]:
    return [(one.code, one.fault_class, one.blame) for one in incidents]


def test_02_a_bus_loss_without_xid_is_the_incident_of_a_later_xid_79() -> None:
    node = Node()
    for text in (
        "NVRM: The NVIDIA GPU 0000:3b:00.0\nNVRM: (PCI ID: 10de:2941) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands.",
        f"NVRM: GPU 0000:3b:00.0: {BUS_LOST}",
    ):
        node.record(text)
    assert (node.only().fault_class, node.only().blame) == (FaultClass.NEEDS_REBOOT, Blame.YES)
    node.wait(20)
    node.xid(79, BUS_LOST)
    assert node.only().component == Component(ComponentKind.GPU, 0, "GPU-0", "00000000:3B:00.0")
    assert (node.only().fault_class, node.only().blame) == (FaultClass.NEEDS_REBOOT, Blame.YES)


def test_04_an_application_s_bad_access_is_one_application_incident() -> None:
    node = Node()
    who = "pid=77, name=train, "
    node.xid(13, "Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address", process=who)
    node.xid(13, "Graphics SM Global Exception on (GPC 1, TPC 3, SM 0): Multiple Warp Errors", process=who)
    node.xid(13, "Graphics Exception: ESR 0x50df30=0xc0e 0x50df34=0x24", process=who)
    node.xid(43, "Ch 00000008", process=who)
    node.xid(45, "Ch 00000008", process=who)
    one = node.only()
    assert (one.code, one.fault_class, one.pid, one.process) == (13, FaultClass.APPLICATION, 77, "train")
    assert one.blame is not Blame.YES
    assert one.effects == {43: 1, 45: 1}


@pytest.mark.parametrize("qualifier", [171, 172])
def test_06_an_uncorrectable_error_and_what_follows_it_are_one_incident(qualifier: int) -> None:
    node = Node()
    node.xid(48, "DBE (double bit error) ECC Error detected in FB")
    node.xid(qualifier, "Uncorrectable error")
    node.xid(63, "Row Remapper: New row marked for remapping, reset gpu to activate.")
    node.xid(154, "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)")
    for channel in range(40):
        node.xid(45, f"Ch {channel:08x} caused by previous Xid 48", process="pid=5, name=train, ")
    one = node.only()
    assert (one.code, one.fault_class, one.blame) == (48, FaultClass.NEEDS_RESET, Blame.YES)
    assert one.effects == {qualifier: 1, 63: 1, 154: 1, 45: 40}


def test_07_a_contained_error_leaves_the_node_in_use_and_an_uncontained_one_does_not() -> None:
    node = Node()
    node.xid(94, "Contained: SM (0x1). RST: No, D-RST: No", process="pid=5, name=train, ")
    assert (node.only().fault_class, node.only().blame, node.only().pid) == (
        FaultClass.APPLICATION,
        Blame.CONDITIONAL,
        5,
    )
    node.xid(95, "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No")
    assert (95, FaultClass.NEEDS_RESET, Blame.YES) in verdicts(node.open)


def test_13_a_storm_is_one_incident_with_a_count() -> None:
    node = Node()
    for _ in range(2_000):
        node.xid(95, "Uncontained: LTC TAG (0x2,0x0)")
        node.now_s += 0.045
    one = node.only()
    assert one.count == 2_000
    assert one.last_seen_s - one.first_seen_s == pytest.approx(90, abs=1)


@pytest.mark.parametrize("reason", [21, 32, 33, 34, 35, 36, 37])
def test_15_a_victim_of_a_dead_link_is_only_a_witness(reason: int) -> None:
    node = Node()
    node.xid(149, f"NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x{reason << 20 | 0x1C6:08x} 0x00000000 {WORDS}")
    node.xid(145, f"RLW_REMAP Nonfatal XC0 i0 Link 07 (0x00000004 0x00000001 {WORDS}")
    assert all(one.blame is not Blame.YES for one in node.open)
    assert node.open[0].blame is Blame.CONDITIONAL
    assert "far end" in node.open[0].blame_condition


@pytest.mark.parametrize("reason", [4, 10, 42, 43])
def test_16_a_link_that_died_at_this_end_asks_for_reset_then_cable(reason: int) -> None:
    node = Node()
    node.xid(149, f"NETIR_LINK_DOWN Fatal XC0 i0 Link 11 (0x{reason << 20 | 0x11:08x} 0x00000000 {WORDS}", gpu=2)
    one = node.only()
    assert (one.fault_class, one.blame) == (FaultClass.NEEDS_RESET, Blame.YES)
    assert one.component == Component(ComponentKind.NVLINK, 11, "GPU-2", "00000000:3D:00.0")
    assert "cable" in one.remedy


def test_17_link_events_without_consequence_accuse_nobody() -> None:
    node = Node()
    node.xid(145, f"RLW_CTRL Nonfatal XC0 i0 Link 03 (0x00000003 0x80000000 {WORDS}")
    node.xid(149, f"NETIR_BER_EVENT Nonfatal XC0 i0 Link 05 (0x00000013 0x00000002 {WORDS}", gpu=1)
    assert [(one.fault_class, one.blame) for one in node.open] == [(FaultClass.INFORMATIONAL, Blame.NO)] * 2


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x0250"),
        (149, "NETIR_LINK_EVT Fatal"),
        (146, f"TLW_RX_PIPE0  Fatal  XC0  i0  Link  02 (0x0000000a 0x00000004 {WORDS}"),
        (146, f"TLW_RX Fatal XC0 i0 Link 02 (0x00000140 0x00000004 {WORDS}"),
        (147, f"NEW_UNIT2 Fatal XC0 i0 Link 02 (0x00000001 0x00000100 {WORDS}"),
    ],
)
def test_18_a_fatal_link_event_is_never_lost_and_never_nothing(code: int, text: str) -> None:
    node = Node()
    node.xid(code, text)
    assert node.only().fault_class is FaultClass.NEEDS_RESET
    assert node.only().blame is not Blame.NO


@pytest.mark.parametrize(
    ("value", "words", "fault_class"),
    [
        (2, "Node Reboot Required", FaultClass.NEEDS_REBOOT),
        (2, "OS Reboot", FaultClass.NEEDS_REBOOT),
        (5, "Recover IMEX Domain", FaultClass.NEEDS_RESET),
        (6, "PCIe Bus Reset", FaultClass.NEEDS_RESET),
        (7, "System Reboot", FaultClass.NEEDS_REBOOT),
        (0x1F, "Something Later", FaultClass.UNKNOWN),
    ],
)
def test_19_the_value_of_a_recovery_action_decides(value: int, words: str, fault_class: FaultClass) -> None:
    node = Node()
    node.xid(154, f"GPU recovery action changed from 0x0 (None) to {value:#x} ({words})")
    assert node.only().fault_class is fault_class


def test_20_an_injected_link_event_is_shown_as_injected() -> None:
    node = Node()
    node.xid(144, f"SAW_MVB Fatal XC0 i1 Link 02 (0x00000001 0x00000002 {WORDS}")
    assert node.only().injected


def test_21_a_fatal_sxid_with_its_details_is_one_incident_of_a_link() -> None:
    node = Node()
    for tail in (
        "Fatal, Link 30 LTSSM Fault Up",
        "Severity 1 Engine instance 30 Sub-engine instance 00",
        "Data {0x50610002, 0x10100030}",
    ):
        node.record(f"nvidia-nvswitch2: SXid (PCI:0000:86:00.0): 20034, {tail}")
    one = node.only()
    assert (one.kind, one.code, one.count, one.blame) == (IncidentKind.SXID, 20034, 1, Blame.YES)
    assert (one.component.kind, one.component.index) == (ComponentKind.NVLINK, 30)


def test_36_an_xid_of_a_mig_instance_belongs_to_the_gpu_it_is_on() -> None:
    node = Node()
    node.record("NVRM: Xid (PCI:0000:3c:00 GPU-I:03): 94, pid=5, name=train, Contained: SM (0x1)")
    assert node.only().component == Component(ComponentKind.GPU, 1, "GPU-1", "00000000:3C:00.0", gpu_instance=3)


def test_43_an_unknown_xid_is_shown_and_accuses_nobody() -> None:
    node = Node()
    node.xid(185, "Memory sparing")
    one = node.only()
    assert (one.code, one.fault_class, one.blame) == (185, FaultClass.UNKNOWN, Blame.NO)
    assert "185, Memory sparing" in one.raw


def test_45_a_short_domain_is_the_gpu_that_nvml_prints_long() -> None:
    node = Node(domain=8)
    node.record(f"NVRM: Xid (PCI:0008:3b:00): 79, {BUS_LOST}")
    assert node.only().component == Component(ComponentKind.GPU, 0, "GPU-0", "00000008:3B:00.0")


@pytest.mark.parametrize("facility", [1, 3, 16])
def test_47_a_line_that_a_process_wrote_is_shown_as_injected(facility: int) -> None:
    node = Node()
    node.xid(79, BUS_LOST, facility=facility)
    assert (node.only().code, node.only().injected) == (79, True)
