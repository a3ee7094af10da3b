"""How signals become incidents: one per fault, nothing lost, nothing blamed twice."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_agent.checks.baseline import CONFIRMED_AFTER
from nvcre_agent.checks.model import Component, Finding
from nvcre_agent.incidents import folding as rules
from nvcre_agent.incidents.folding import Folding
from nvcre_agent.incidents.model import Change, ChangeKind, Signal
from nvcre_agent.incidents.signals import Moment, from_kernel, from_nvml
from nvcre_agent.kernel.parsers import LineParser
from nvcre_agent.nvml.snapshot import EventType, GpuIdentity, Inventory, NvmlEvent, PciAddress
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind, RecoveredBy, Source
from support.folded import Told

WALL = 1_800_000_000.0
GPUS = Inventory(
    tuple(
        GpuIdentity(index, f"GPU-{index}", PciAddress(0, 0x3B + index, 0), "NVIDIA H100 80GB HBM3", f"s{index}")
        for index in range(8)
    ),
    "570.133.20",
    "12.8",
)


class Node(Told):
    """A folding with a clock: what the tests speak to."""

    def __init__(self, *, boot_id: str = "boot-1", inventory: Inventory = GPUS) -> None:
        numbers = itertools.count(1)
        self.folding = Folding(boot_id=boot_id, simulated=False, new_id=lambda: f"i{next(numbers)}")
        self.inventory = inventory
        self.clock_s = 1000.0
        self.changes: list[Change] = []
        self._parser = LineParser()

    def kernel(self, line: str, *, injected: bool = False) -> list[Change]:
        [event] = self._parser.feed(line)
        at = Moment(WALL + self.clock_s, self.clock_s)
        return self._told(self.folding.fold(from_kernel(event, self.inventory, at, injected=injected)))

    def xid(self, code: int, text: str = "", *, gpu: int = 0, pid: int = 0) -> list[Change]:
        process = f", pid={pid}, name=python" if pid else ""
        return self.kernel(f"NVRM: Xid (PCI:0000:{0x3B + gpu:02x}:00): {code}{process}, {text}")

    def nvml(self, code: int, *, gpu: int = 0) -> list[Change]:
        event = NvmlEvent(GPUS.gpus[gpu], EventType.XID, code, None, None, WALL + self.clock_s, int(self.clock_s * 1e9))
        signal = from_nvml(event)
        assert signal is not None
        return self._told(self.folding.fold(signal))

    def wait(self, seconds: float) -> list[Change]:
        self.clock_s += seconds
        return self._told(self.folding.tick(WALL + self.clock_s, self.clock_s))

    def look(self, *gpus: GpuIdentity) -> list[Change]:
        """A snapshot in which these GPUs answer; all of them by default."""
        now = {"now_s": WALL + self.clock_s, "monotonic_s": self.clock_s}
        return self._told(self.folding.answering(gpus or GPUS.gpus, **now))


def kinds(changes: Iterable[Change]) -> list[ChangeKind]:
    return [change.kind for change in changes]


# --- both sources


def test_both_sources_of_one_xid_are_one_incident() -> None:
    node = Node()
    [first] = node.nvml(79)
    node.clock_s += 0.5
    [second] = node.xid(79, "GPU has fallen off the bus.")
    assert kinds([first, second]) == [ChangeKind.OPENED, ChangeKind.UPDATED]
    assert first.incident.id == second.incident.id
    incident = node.only()
    assert incident.sources == (Source.NVML, Source.KERNEL_LOG)
    assert incident.count == 1
    assert incident.message == "GPU has fallen off the bus."
    assert incident.component == Component(ComponentKind.GPU, 0, "GPU-0", "00000000:3B:00.0")
    assert (incident.fault_class, incident.blame) == (FaultClass.NEEDS_REBOOT, Blame.YES)


def test_only_the_first_source_counts() -> None:
    node = Node()
    for _ in range(3):
        node.xid(95)
    node.nvml(95)
    node.nvml(95)
    assert node.only().count == 3


def test_the_second_source_counts_when_the_first_has_gone_silent() -> None:
    node = Node()
    node.xid(95)
    node.nvml(95)
    node.clock_s += 100
    node.nvml(95)
    assert node.only().count == 2


def test_the_kernel_text_decides_what_the_nvml_event_could_not() -> None:
    node = Node()
    [opened] = node.nvml(144)
    assert (opened.incident.fault_class, opened.incident.blame) == (FaultClass.UNKNOWN, Blame.CONDITIONAL)
    node.xid(144, "SAW_MVB Fatal XC0 i0 Link 2 (0x00000001 0x00000002 0x0 0x0 0x0 0x0)")
    assert (node.only().fault_class, node.only().blame) == (FaultClass.NEEDS_RESET, Blame.YES)
    assert node.only().component == Component(ComponentKind.NVLINK, 2, "GPU-0", "00000000:3B:00.0")


def test_a_four_digit_domain_and_an_eight_digit_domain_are_one_gpu() -> None:
    grace = Inventory((GpuIdentity(0, "GPU-g", PciAddress(8, 6, 0), "GH200", "s"),), "570", "12")
    node = Node(inventory=grace)
    node.kernel("NVRM: Xid (PCI:0008:06:00): 79, GPU has fallen off the bus.")
    assert node.only().component == Component(ComponentKind.GPU, 0, "GPU-g", "00000008:06:00.0")


def test_a_line_read_before_nvml_is_named_once_the_gpus_are_known() -> None:
    node = Node(inventory=Inventory((), "", ""))
    node.xid(79)
    assert node.only().component.uuid == ""
    [update] = node.folding.identify(GPUS, now_s=WALL, monotonic_s=node.clock_s)
    assert (update.kind, node.only().component.uuid, node.only().component.index) == (ChangeKind.UPDATED, "GPU-0", 0)


# --- effects and roots


def test_out_of_bounds_kernel_is_one_application_incident() -> None:
    node = Node()
    for _ in range(3):
        node.xid(13, "Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0): Out Of Range Address", pid=7)
    node.xid(43, "Ch 00000008", pid=7)
    node.xid(45, "Ch 00000008", pid=7)
    incident = node.only()
    assert (incident.code, incident.count, dict(incident.effects)) == (13, 3, {43: 1, 45: 1})
    assert (incident.fault_class, incident.pid, incident.process) == (FaultClass.APPLICATION, 7, "python")


def test_two_processes_are_two_application_incidents() -> None:
    node = Node()
    node.xid(13, "x", pid=7)
    node.xid(13, "x", pid=8)
    node.xid(45, "Ch 1", pid=8)
    assert [(incident.pid, dict(incident.effects)) for incident in node.open] == [(7, {}), (8, {45: 1})]


def test_an_ecc_error_with_its_followers_is_one_incident_with_the_action_of_154() -> None:
    node = Node()
    node.xid(48, "DBE")
    node.xid(171, "DRAM")
    node.xid(63, "Row Remapper")
    node.xid(154, "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)")
    for _ in range(40):
        node.xid(45, "Ch 1 caused by previous Xid 48", pid=3)
    incident = node.only()
    assert (incident.code, dict(incident.effects)) == (48, {171: 1, 63: 1, 154: 1, 45: 40})
    assert incident.blame is Blame.YES


def test_an_effect_is_never_hidden_below_a_root_that_accuses_less() -> None:
    node = Node()
    node.xid(63, "Row Remapper")
    node.xid(48, "DBE")
    assert {incident.code: incident.blame for incident in node.open} == {63: Blame.NO, 48: Blame.YES}


def test_an_xid_45_without_its_cause_says_what_the_cause_was() -> None:
    node = Node()
    node.xid(45, "Ch 1 caused by previous Xid 149")
    assert node.only().caused_by == 149


def test_a_later_45_long_after_the_fault_is_its_own_incident() -> None:
    node = Node()
    node.xid(79)
    node.clock_s += 120
    node.xid(45, "Ch 1", pid=9)
    assert [incident.code for incident in node.open] == [79, 45]


def test_faults_of_other_gpus_do_not_attach() -> None:
    node = Node()
    node.xid(79, gpu=0)
    node.xid(45, "Ch 1", gpu=1)
    assert len(node.open) == 2


@pytest.mark.parametrize("xid_first", [True, False])
def test_a_bus_loss_joins_the_xid_79_in_either_order(xid_first: bool) -> None:
    node = Node()
    lines = [
        "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
    ]
    for line in lines if xid_first else reversed(lines):
        node.kernel(line)
    assert (node.only().kind, node.only().code, node.only().count) == (IncidentKind.XID, 79, 1)


def test_a_lone_109_is_blamed_once_154_asks_for_a_reset() -> None:
    node = Node()
    node.xid(109, "CTX SWITCH TIMEOUT", pid=3)
    assert node.only().blame is Blame.CONDITIONAL
    node.xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    assert (node.only().blame, node.only().blame_condition) == (Blame.YES, "")


def test_154_raises_the_class_and_never_lowers_it() -> None:
    node = Node()
    node.xid(79)
    node.xid(154, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x1 (GPU Reset Required)")
    assert node.only().fault_class is FaultClass.NEEDS_REBOOT


def test_an_unknown_code_warns_and_never_vanishes() -> None:
    node = Node()
    node.xid(185, "Memory sparing")
    incident = node.only()
    assert (incident.code, incident.fault_class, incident.blame) == (185, FaultClass.UNKNOWN, Blame.NO)
    assert "185, Memory sparing" in incident.raw


CORPUS = Path(__file__).parents[2] / "corpus"


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("ks01-xid79", [("Xid", 79, 1, {}, "YES")]),
        ("ks02-ecc-48-63-94", [("Xid", 48, 1, {63: 1, 94: 1}, "YES")]),
        ("ks03-application-31-43", [("Xid", 31, 1, {43: 1}, "CONDITIONAL")]),
        ("ks08-nvlink5-149-144", [("Xid", 149, 1, {144: 1}, "CONDITIONAL")]),
        ("ks14-xid45-train", [("Xid", 45, 4, {}, "NO")]),
        ("ks15-rminitadapter", [("RmInitFailed", 0, 1, {}, "YES")]),
    ],
)
def test_the_corpus_as_incidents(case: str, expected: list[tuple[str, int, int, dict[int, int], str]]) -> None:
    node = Node()
    for line in (CORPUS / f"{case}.log").read_text().splitlines():
        text = line[min(found for word in ("NVRM", "nvidia-nv") if (found := line.find(word)) >= 0) :]
        if list(LineParser().feed(text)):
            node.kernel(text)
    seen = [(i.kind.value, i.code, i.count, dict(i.effects), i.blame.name) for i in node.open]
    assert seen == expected


# --- injected


def test_a_forged_line_is_shown_as_injected_and_never_mixes_with_a_real_one() -> None:
    node = Node()
    line = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    node.kernel(line, injected=True)
    node.kernel(line)
    node.kernel(line, injected=True)
    assert [(i.injected, i.blame, i.count) for i in node.open] == [(True, Blame.NO, 2), (False, Blame.YES, 1)]


def test_the_i1_flag_is_an_injection() -> None:
    node = Node()
    node.xid(144, "SAW_MVB Fatal XC0 i1 Link 2 (0x00000001 0x00000002 0x0 0x0 0x0 0x0)")
    assert (node.only().injected, node.only().blame) == (True, Blame.NO)


# --- repeats


def test_a_storm_of_repeats_is_one_incident_and_few_events() -> None:
    node = Node()
    for number in range(100_000):
        if number == 0:
            node.xid(95, "Uncontained")
            signal = from_kernel_signal(node)
        else:
            node.changes += node.folding.fold(signal)
        if number % 1000 == 0:
            node.clock_s += 1
            signal = from_kernel_signal(node)
    node.changes += node.folding.flush(WALL + node.clock_s, node.clock_s)
    assert node.only().count == 100_000
    assert len(node.changes) <= 10
    assert node.changes[-1].incident.count == 100_000


def from_kernel_signal(node: Node) -> Signal:
    [event] = LineParser().feed("NVRM: Xid (PCI:0000:3b:00): 95, Uncontained")
    return from_kernel(event, GPUS, Moment(WALL + node.clock_s, node.clock_s), injected=False)


def test_growth_is_told_after_a_second_without_another_line() -> None:
    node = Node()
    node.xid(45, "Ch 1", pid=1)
    node.xid(45, "Ch 2", pid=1)
    assert node.wait(0.5) == []
    [told] = node.wait(1.0)
    assert told.incident.count == 2
    assert node.wait(1.0) == []


def test_the_clock_has_to_wake_only_for_growth_that_is_not_told() -> None:
    node = Node()
    node.xid(45, "Ch 1", pid=1)
    assert node.folding.due_s == float("inf")
    node.xid(45, "Ch 2", pid=1)
    assert node.folding.due_s == node.clock_s + 1
    node.wait(1.0)
    assert node.folding.due_s == float("inf")


def test_open_incidents_are_bounded_and_the_blamed_ones_stay() -> None:
    node = Node()
    node.xid(79)
    for pid in range(1, rules.MAX_OPEN + 100):
        node.clock_s += 0.01
        node.xid(31, "MMU Fault", gpu=1, pid=pid)
    assert len(node.open) == rules.MAX_OPEN
    assert node.folding.evicted == 100
    assert any(incident.code == 79 for incident in node.open)


# --- recovery


def test_an_application_error_is_over_after_a_quiet_time() -> None:
    node = Node()
    node.xid(13, "x", pid=1)
    assert node.wait(rules.QUIET_S - 1) == []
    [over] = node.wait(2)
    assert over.kind is ChangeKind.RECOVERED
    assert (over.incident.recovered_by, over.incident.recovered_at_s) == (RecoveredBy.QUIET, WALL + node.clock_s - 1)
    assert node.open == ()


def test_a_lost_gpu_never_recovers_by_waiting() -> None:
    node = Node()
    node.xid(79)
    for _ in range(100):
        node.wait(3600)
    assert len(node.open) == 1


def restarted(node: Node, *, boot_id: str = "boot-1") -> Node:
    kept, _ = node.folding.take_dirty()
    again = Node(boot_id=boot_id)
    again.clock_s = node.clock_s if boot_id == "boot-1" else 20.0
    again.folding.restore(kept, now_s=WALL + again.clock_s, monotonic_s=again.clock_s)
    return again


def test_a_fault_has_the_index_that_its_gpu_has_now() -> None:
    """A driver that was loaded while GPU 2 was away counted the ones behind it from 2 on; then GPU 2 came back."""
    shifted = [replace(gpu, index=gpu.index - (gpu.index > 2)) for gpu in GPUS.gpus if gpu.index != 2]
    node = Node(inventory=replace(GPUS, gpus=tuple(shifted)))
    node.xid(95, gpu=3)
    node.look(*shifted)
    assert node.only().component.index == 2
    node.look()
    assert (node.only().component.index, node.only().component.uuid) == (3, "GPU-3")


def test_a_restart_of_the_agent_neither_repeats_nor_forgets() -> None:
    node = restarted(before := Node())
    before.xid(79)
    node = restarted(before)
    assert [incident.code for incident in node.open] == [79]
    assert kinds(node.xid(79)) in ([], [ChangeKind.UPDATED])
    assert node.only().count == 2


def test_a_record_read_again_after_a_lost_commit_is_the_same_incident() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    [event] = LineParser().feed(line)
    signal = from_kernel(event, GPUS, Moment(WALL, 1000.0), injected=False, origin="boot-1/42/1000")
    [first], [again] = Node().folding.fold(signal), Node().folding.fold(signal)
    assert first.incident.id == again.incident.id
    other = from_kernel(event, GPUS, Moment(WALL, 1000.0), injected=False, origin="boot-1/43/1000")
    [second] = Node().folding.fold(other)
    assert second.incident.id != first.incident.id


def test_a_reboot_clears_what_a_reboot_cures_once_the_gpu_is_back_and_quiet() -> None:
    before = Node()
    before.xid(79)
    node = restarted(before, boot_id="boot-2")
    assert node.wait(rules.REMEDY_QUIET_S + 1) == [], "NVML has not seen the GPU yet"
    assert node.look() == []
    [over] = node.wait(1)
    assert (over.kind, over.incident.recovered_by) == (ChangeKind.RECOVERED, RecoveredBy.REBOOT)


def test_a_fault_that_comes_back_after_the_reboot_stays_open() -> None:
    before = Node()
    before.xid(79)
    node = restarted(before, boot_id="boot-2")
    node.look()
    node.clock_s += 10
    node.xid(79)
    assert ChangeKind.RECOVERED not in kinds(node.wait(10 * rules.REMEDY_QUIET_S))
    assert len(node.open) == 1


def test_a_failed_row_remap_survives_the_reboot_and_ends_with_the_gpu() -> None:
    before = Node()
    before.xid(64, "Row Remapper: failed")
    node = restarted(before, boot_id="boot-2")
    node.look()
    assert node.wait(3600) == []
    newcomer = GpuIdentity(0, "GPU-new", PciAddress(0, 0x3B, 0), "NVIDIA H100 80GB HBM3", "n")
    for _ in range(CONFIRMED_AFTER - 1):
        assert node.look(newcomer) == [], "not confirmed"
    [over] = node.look(newcomer)
    assert (over.kind, over.incident.recovered_by) == (ChangeKind.RECOVERED, RecoveredBy.REPLACED)


def test_a_reset_clears_what_a_reset_cures_after_a_quiet_time() -> None:
    node = Node()
    node.look()
    node.xid(48, "DBE")
    subject = "00000000:3B:00.0"
    assert node.folding.reset_seen(subject, now_s=WALL, monotonic_s=node.clock_s) == ()
    assert node.wait(rules.REMEDY_QUIET_S - 1) == []
    [over] = node.wait(2)
    assert (over.kind, over.incident.recovered_by) == (ChangeKind.RECOVERED, RecoveredBy.RESET)


def test_the_link_of_a_nic_recovers_when_it_is_active_again() -> None:
    node = Node()
    node.kernel("mlx5_core 0000:29:00.0 mlx5_0: Port: 1 Link DOWN")
    node.kernel("mlx5_core 0000:29:00.1 mlx5_1: Port: 1 Link DOWN")
    [over] = node.folding.link_active("00000000:29:00.0", now_s=WALL, monotonic_s=node.clock_s)
    assert over.incident.component.pci_bus_id == "00000000:29:00.0"
    assert [incident.component.pci_bus_id for incident in node.open] == ["00000000:29:00.1"]


# --- findings of checks


def finding(check: str, gpu: int = 0) -> Finding:
    component = Component(ComponentKind.GPU, gpu, f"GPU-{gpu}", f"00000000:{0x3B + gpu:02X}:00.0")
    return Finding(f"{check}/GPU-{gpu}", check, component, FaultClass.NEEDS_RESET, Blame.YES, "broken", "reset it")


def test_a_finding_opens_once_and_closes_when_it_is_gone() -> None:
    node = Node()
    now = {"now_s": WALL, "monotonic_s": node.clock_s}
    [opened] = node.folding.finding_opened(finding("nvlink_down"), **now)
    assert (opened.incident.kind, opened.incident.check) == (IncidentKind.HEALTH_CHECK, "nvlink_down")
    assert node.wait(10_000) == []
    [over] = node.folding.finding_recovered(finding("nvlink_down"), **now)
    assert (over.kind, over.incident.id) == (ChangeKind.RECOVERED, opened.incident.id)
    assert node.folding.finding_recovered(finding("nvlink_down"), **now) == ()


def test_a_lost_gpu_is_told_once_although_nvml_finds_it_lost_too() -> None:
    node = Node()
    node.xid(79)
    assert node.folding.finding_opened(finding("gpu_lost"), now_s=WALL, monotonic_s=node.clock_s) == ()
    assert len(node.folding.finding_opened(finding("gpu_lost", gpu=1), now_s=WALL, monotonic_s=node.clock_s)) == 1


def test_findings_survive_a_restart_with_their_key() -> None:
    before = Node()
    before.folding.finding_opened(finding("nvlink_down"), now_s=WALL, monotonic_s=before.clock_s)
    node = restarted(before)
    assert [one.key for one in node.folding.open_findings] == ["nvlink_down/GPU-0"]
    assert kinds(node.folding.finding_recovered(finding("nvlink_down"), now_s=WALL, monotonic_s=1.0)) == [
        ChangeKind.RECOVERED
    ]


# --- any order


@given(
    st.lists(
        st.tuples(
            st.sampled_from([13, 31, 43, 45, 48, 63, 79, 94, 95, 109, 119, 154, 171, 185]),
            st.integers(0, 2),
            st.sampled_from([0, 7, 8]),
            st.booleans(),
            st.floats(0, 400),
        ),
        max_size=60,
    )
)
def test_in_any_order_nothing_is_lost_and_blame_never_shrinks(steps: list[tuple[int, int, int, bool, float]]) -> None:
    node = Node()
    weight = {Blame.NO: 0, Blame.CONDITIONAL: 1, Blame.YES: 2}
    seen: dict[str, int] = {}
    for code, gpu, pid, by_nvml, pause_s in steps:
        node.nvml(code, gpu=gpu) if by_nvml else node.xid(code, "text", gpu=gpu, pid=pid)
        held = [i for i in node.open if i.component.index == gpu and (i.code == code or code in i.effects)]
        assert held, "a signal always leaves a trace in an open incident"
        for incident in node.open:
            assert weight[incident.blame] >= seen.get(incident.id, 0)
            seen[incident.id] = weight[incident.blame]
            assert incident.first_seen_s <= incident.last_seen_s
        node.wait(pause_s)
    opened = {change.incident.id for change in node.changes if change.kind is ChangeKind.OPENED}
    over = {change.incident.id for change in node.changes if change.kind is ChangeKind.RECOVERED}
    assert {incident.id for incident in node.open} == opened - over
