"""Are the InfiniBand and RoCE ports of the node up, and do they stay up?

Judges what ports.py remembers.  A port that a person took down is nobody's fault: nothing opens for it, and what was
open stays until the port is back.
"""

from __future__ import annotations

from collections.abc import Iterator

from nvcre_protos.vocabulary import Blame, ComponentKind, FaultClass, Source

from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.limits import Limits
from nvcre_agent.checks.model import Component, Finding, Undecided
from nvcre_agent.checks.ports import PortMemory
from nvcre_agent.host.model import Host, IbPort


def ib_port_down(host: Host, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    listed = {port.name: port for port in host.ports or ()}
    for name, memory in baseline.ports.known.items():
        port = listed.get(name)
        if host.ports is None:
            yield Undecided(f"ib_port_down/{name}")
        elif port is not None and port.planned_down:
            yield Undecided(f"ib_port_down/{name}", "the port was taken down by a person")
        elif memory.down_since_s is not None and baseline.at_s - memory.down_since_s >= limits.ib_port_down_seconds:
            yield _finding(
                "ib_port_down",
                memory,
                f"port {name} is down for more than {limits.ib_port_down_seconds / 60:g} minutes ({_state(port)})",
                "check cable, transceiver and switch port; reset the port or reboot the node when they are good",
            )


def ib_port_flapping(host: Host, baseline: Baseline, limits: Limits) -> Iterator[Finding | Undecided]:
    """Several outages that were longer than a retrained link; over when the port was quiet for a while."""
    now_s = baseline.at_s
    for name, memory in baseline.ports.known.items():
        ended = [
            outage.ended_s
            for outage in memory.outages
            if outage.lasted_s >= limits.ib_port_flapping_outage_s
            and now_s - outage.ended_s <= limits.ib_port_flapping_window_s
        ]
        if len(ended) < limits.ib_port_flapping_outages or now_s - ended[-1] > limits.ib_port_flapping_quiet_s:
            continue
        yield _finding(
            "ib_port_flapping",
            memory,
            f"port {name} was down {len(ended)} times within {limits.ib_port_flapping_window_s / 3600:g} hours",
            "replace cable or transceiver, then try another switch port",
        )


def _finding(check: str, memory: PortMemory, message: str, remedy: str) -> Finding:
    return Finding(
        key=f"{check}/{memory.name}",
        check=check,
        component=Component(ComponentKind.NIC, pci_bus_id=memory.pci),
        fault_class=FaultClass.NEEDS_RESET,
        blame=Blame.YES,
        message=f"InfiniBand {message}",
        remedy=remedy,
        source=Source.HOST,
    )


def _state(port: IbPort | None) -> str:
    return port.state if port else "gone from /sys/class/infiniband"
