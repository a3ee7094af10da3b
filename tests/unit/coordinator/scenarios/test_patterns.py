"""Fault scenarios that only several incidents together decide: over jobs (5), and over the nodes of a rack (15)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nvcre_coordinator.api.meta import from_json
from nvcre_coordinator.api.workload import Pod
from nvcre_coordinator.core.application_repeats import application_repeats
from nvcre_coordinator.core.escalation import is_fault, judged
from nvcre_coordinator.core.incidents import Component, Incident
from nvcre_coordinator.core.link_faults import far_end, without_victims
from nvcre_coordinator.core.node_verdict import Gpu, Observed, Rules, Verdict, assess, assess_gpus
from nvcre_coordinator.core.occupants import Occupant, Occupants, program_of, workload_of
from nvcre_coordinator.fleet.link_watch import LinkWatch
from nvcre_coordinator.fleet.nodes import node_facts
from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, IncidentKind

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
RULES = Rules()
GPUS = tuple(Gpu(index=index, uuid=f"GPU-{index}") for index in range(4))


def error(code: int, workload: str, *, gpu: int = 0, unit: str = "", at: datetime = NOW, **fields: Any) -> Incident:
    return Incident(
        id=f"{code}-{workload}-{gpu}-{unit}-{at}", kind=IncidentKind.XID, code=code, unit=unit, workload=workload,
        fault_class=FaultClass.APPLICATION, blame=Blame.CONDITIONAL, first_seen=at, last_seen=at,
        component=Component(kind=ComponentKind.GPU, index=gpu, uuid=f"GPU-{gpu}"), **fields,
    )  # fmt: skip


A, B = "team-a/train#11", "team-b/bench#22"
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("told", "suspect"),
    [
        pytest.param([error(31, A), error(31, B)], True, id="31 of two jobs"),
        pytest.param([error(31, A), error(31, "team-b/train#11")], True, id="same program, another namespace"),
        pytest.param([error(31, A), error(31, "team-a/train#33")], True, id="same namespace, another program"),
        pytest.param([error(31, A), error(31, "team-a/train-2#11", at=NOW + HOUR)], False, id="a resubmission"),
        pytest.param([error(31, A), error(31, A)], False, id="a restart"),
        pytest.param([error(31, A), error(31, "")], False, id="nobody knows whose"),
        pytest.param([error(31, A), error(31, B, gpu=1)], False, id="two GPUs"),
        pytest.param([error(31, A, gpu=gpu) for gpu in range(4)], False, id="one job on many GPUs"),
        pytest.param(
            [*(error(31, A, gpu=gpu) for gpu in range(4)), error(31, B)], False, id="a job that carries it around"
        ),
        pytest.param([error(31, A), error(31, B, at=NOW - 25 * HOUR)], False, id="a day ago"),
        pytest.param([error(31, A), error(13, B, unit="GPC 1, TPC 3")], False, id="two codes"),
        pytest.param([error(13, w, unit="GPC 1, TPC 3") for w in (A, B)], True, id="13 on the same TPC"),
        pytest.param([error(13, A, unit="GPC 1, TPC 3"), error(13, B, unit="GPC 2, TPC 3")], False, id="13 elsewhere"),
        pytest.param([error(13, A), error(13, B)], False, id="13 that names no unit"),
        pytest.param([error(31, A, injected=True), error(31, B)], False, id="a test"),
        pytest.param([error(31, A, during_maintenance=True), error(31, B)], False, id="a maintenance"),
    ],
)
def test_05_the_same_error_of_different_jobs_on_one_part_makes_the_gpu_suspect(
    told: list[Incident], suspect: bool
) -> None:
    seen = Observed(reported=True, gpus=GPUS, open=tuple(told[:1]), closed=tuple(told[1:]))
    found = assess(seen, NOW, RULES)
    assert found.verdict is (Verdict.SUSPECT if suspect else Verdict.HEALTHY)
    assert ("run dcgmi diag" in found.message) is suspect
    assert [gpu.verdict is Verdict.SUSPECT for gpu in assess_gpus(seen, NOW, RULES)] == [suspect, False, False, False]
    assert not any(is_fault(incident) for incident in judged(told, ()))  # no Job blames it


def test_05_the_suspicion_names_the_jobs_and_ends_with_a_diagnosis_or_with_the_day() -> None:
    told = [error(31, A, at=NOW - HOUR), error(31, B)]
    (suspicion,) = application_repeats(told, NOW)
    assert "Xid 31 from 2 different jobs within 24 h (team-a/train, team-b/bench)" in suspicion.message
    assert suspicion.until == NOW + 23 * HOUR
    assert application_repeats(told, suspicion.until + timedelta(seconds=1)) == ()
    assert application_repeats(told, NOW + HOUR, diagnosed_at=NOW + timedelta(minutes=1)) == ()


def pod(image: str = "team/train:1", command: tuple[str, ...] = ("python", "train.py"), **env: str) -> Pod:
    container = {"name": "node", "image": image, "command": list(command), "env": [env] if env else []}
    return from_json({"metadata": {"name": "p", "namespace": "team-a"}, "spec": {"containers": [container]}}, Pod)


def test_05_jobs_are_told_apart_by_image_and_command() -> None:
    assert program_of(pod()) == program_of(pod(name="RUN", value="2"))
    assert program_of(pod()) != program_of(pod(image="team/train:2"))
    assert program_of(pod()) != program_of(pod(command=("python", "other.py")))
    assert workload_of("team-a", "n" * 300, "11").endswith("#11")


def test_05_whose_program_it_was_is_known_by_the_pod_or_by_being_alone() -> None:
    occupants = Occupants()
    occupants.note("node-1", Occupant("u1", A, NOW, NOW + HOUR))
    occupants.note("node-1", Occupant("u2", B, NOW + 2 * HOUR))

    def whose(at: datetime | None = None, uid: str = "") -> str:
        return occupants.workload("node-1", pod_uid=uid, at=at)

    assert whose(NOW + timedelta(minutes=30)) == A
    assert whose(NOW + 3 * HOUR) == B
    assert whose(NOW + 1.5 * HOUR) == ""  # between them
    assert whose(NOW, uid="u2") == B  # the agent read it from the process
    assert whose(NOW, uid="somebody-else") == ""
    occupants.note("node-1", Occupant("u3", A, NOW + 2 * HOUR))
    assert whose(NOW + 3 * HOUR) == ""  # two jobs share the node
    for number in range(100):
        occupants.note("node-1", Occupant(f"more-{number}", A, NOW + 5 * HOUR))
    assert whose(uid="u2") == ""  # bounded


def raw(reason: int, link: int = 7) -> str:
    return (
        f"NVRM: Xid (PCI:0008:06:00): 149, pid=7, name=train, NETIR_LINK_EVT Fatal XC0 i0 Link {link:02d} "
        f"(0x{reason << 20 | 0x1C6:08x} 0x00000000 0x00000000)"
    )


def link_fault(reason: int, *, link: int = 7, blame: Blame | None = None, at: datetime = NOW) -> Incident:
    local = reason in (2, 4, 10, 42, 43)
    return Incident(
        id=f"i-{reason}-{link}", kind=IncidentKind.XID, code=149, fault_class=FaultClass.NEEDS_RESET,
        blame=blame or (Blame.YES if local else Blame.CONDITIONAL), first_seen=at, last_seen=at, raw=raw(reason, link),
        component=Component(kind=ComponentKind.NVLINK, index=link, uuid="GPU-0"),
    )  # fmt: skip


class Rack:
    def __init__(self) -> None:
        self.watch = LinkWatch()
        self.open: dict[str, tuple[Incident, ...]] = {}

    def tell(self, node: str, *incidents: Incident, domain: str = "rack-1") -> frozenset[str]:
        self.open[node] = tuple(without_victims(incident) for incident in incidents)
        return self.watch.told(node, domain, self.open[node])

    def verdicts(self) -> dict[str, Verdict]:
        return {node: self.assess(node).verdict for node in self.open}

    def assess(self, node: str) -> Any:
        open_now = judged(self.open[node], ())
        return assess(Observed(reported=True, open=open_now, link_event=self.watch.event(node)), NOW, RULES)


def test_15_of_a_rack_that_saw_a_link_die_only_the_end_with_a_reason_of_its_own_is_blamed() -> None:
    rack = Rack()
    for number in range(17):
        reason = (21, 32, 33, 34, 35, 36, 37)[number % 7]
        told = link_fault(reason, link=number % 4, at=NOW + timedelta(seconds=number))
        rack.tell(f"node-{number}", told, blameless(145))
    rack.tell("node-17", link_fault(4, link=11))
    verdicts = rack.verdicts()
    assert [node for node, verdict in verdicts.items() if verdict is not Verdict.HEALTHY] == ["node-17"]
    assert verdicts["node-17"] is Verdict.FAULTY
    witness = rack.assess("node-3").message
    assert witness == (
        "only a witness: 18 nodes tell of a dead NVLink within a minute; node-17 has a reason of its own"
    )


def blameless(code: int) -> Incident:
    return Incident(id=f"x{code}", kind=IncidentKind.XID, code=code, fault_class=FaultClass.INFORMATIONAL,
                    blame=Blame.NO, first_seen=NOW, last_seen=NOW)  # fmt: skip


def test_15_where_no_end_has_a_reason_the_common_far_end_is_named_and_no_node() -> None:
    rack = Rack()
    for number in range(18):
        rack.tell(f"node-{number}", link_fault(33, link=7))
    assert set(rack.verdicts().values()) == {Verdict.HEALTHY}
    assert "look at the NVSwitch at the far end of link 7" in rack.assess("node-0").message


def test_15_a_victim_is_not_blamed_though_the_driver_asks_for_its_reset() -> None:
    """Xid 154 raises the incident on every victim; it says what the GPU needs and not whose fault it is."""
    victim = link_fault(35, blame=Blame.YES)
    assert far_end(victim)
    assert not is_fault(without_victims(victim))
    own = link_fault(4)
    assert without_victims(own) == own


@pytest.mark.parametrize(
    ("others", "domain", "later"),
    [
        pytest.param(1, "rack-1", timedelta(0), id="two nodes are no crowd"),
        pytest.param(5, "rack-2", timedelta(0), id="another rack"),
        pytest.param(5, "", timedelta(0), id="others that share no NVLink"),
        pytest.param(5, "rack-1", timedelta(minutes=2), id="another minute"),
    ],
)
def test_15_a_link_fault_without_a_crowd_stays_a_suspicion(others: int, domain: str, later: timedelta) -> None:
    rack = Rack()
    for number in range(others):
        rack.tell(f"other-{number}", link_fault(33, at=NOW - later), domain=domain)
    rack.tell("node-0", link_fault(33))
    assert rack.assess("node-0").verdict is Verdict.SUSPECT


def test_15_nodes_without_a_rack_are_no_witnesses_of_each_other_and_cost_each_other_nothing() -> None:
    """HGX nodes: their links end inside the chassis, whether their clique is not labelled or is of zeros."""
    domains = [node_facts({"metadata": {"name": "n", "labels": labels}}).nvlink_domain for labels in HGX]
    assert domains == ["", ""]
    fleet = Rack()
    looked_at = [fleet.tell(f"node-{number}", link_fault(33), domain=domains[number % 2]) for number in range(10)]
    assert set(fleet.verdicts().values()) == {Verdict.SUSPECT}
    assert looked_at == [frozenset()] * 10


HGX: tuple[dict[str, str], ...] = ({}, {"nvidia.com/gpu.clique": "00000000-0000-0000-0000-000000000000.0"})


def test_15_a_witness_is_suspect_all_the_same_for_another_link_that_died_yesterday() -> None:
    rack = Rack()
    yesterday = link_fault(33, link=2, at=NOW - timedelta(days=1))
    for number in range(3):
        rack.tell(f"node-{number}", link_fault(33), *([yesterday] if number == 0 else []))
    assert rack.verdicts() == {"node-0": Verdict.SUSPECT, "node-1": Verdict.HEALTHY, "node-2": Verdict.HEALTHY}


def test_15_the_nodes_that_told_first_are_looked_at_again_and_memory_is_bounded() -> None:
    rack = Rack()
    rack.tell("a", link_fault(33))
    rack.tell("b", link_fault(33))
    assert rack.tell("c", link_fault(33)) == {"a", "b"}
    assert rack.tell("c", link_fault(33)) == frozenset()  # nothing new
    for number in range(1_000):
        rack.tell(f"n{number}", link_fault(33), domain="mislabelled")
    assert len(rack.watch._told["mislabelled"]) <= 128
    rack.tell("n999", link_fault(34), domain="mislabelled")
    for number in range(1_000):
        rack.tell(f"n{number}", domain="mislabelled")
    assert rack.tell("c") == {"a", "b"}  # its link is back: two are no crowd
    assert rack.assess("a").verdict is Verdict.SUSPECT
