"""The flags of nvcre-coordinator (docs/architecture.md), each also from the environment as NVCRE_ and its name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_DESCRIPTION = """\
Runs the Jobs of nvcre.nvidia.com on this cluster, listens to the node agents and writes who is to blame.
Every flag may also be given in the environment: --node-selector is NVCRE_NODE_SELECTOR.
"""


@dataclass(frozen=True, slots=True)
class Config:
    kubeconfig: Path | None
    namespace: str
    grpc_address: str
    metrics_address: tuple[str, int]
    health_address: tuple[str, int]
    node_selector: str
    leader_elect: bool
    agent_heartbeat_s: float
    probe_min_bytes: int
    probe_max_bytes: int
    probe_runs: int
    ready_file: Path | None
    log_level: str
    identity: str  # in the Lease
    advertised_host: str  # where agents find this replica, written into the Lease


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Config:
    """Usage errors end the process with code 2 and a sentence on stderr."""
    parser = argparse.ArgumentParser(prog="nvcre-coordinator", description=_DESCRIPTION)

    def flag(name: str, text: str, default: str | None = None, metavar: str = "VALUE") -> None:
        given = environment.get("NVCRE_" + name.replace("-", "_").upper()) or default
        shown = f" (default {default})" if default else ""
        parser.add_argument(f"--{name}", help=text + shown, default=given, metavar=metavar)

    flag("kubeconfig", "kubeconfig of the cluster; default: in-cluster", metavar="FILE")
    flag("namespace", "namespace of the Lease, the certificates and the probes' Pods", "nvcre-system", "NAME")
    flag("grpc-address", "where the agents connect; port 0 takes a free one", "0.0.0.0:9443", "HOST:PORT")
    flag("metrics-address", "where /metrics is served", "0.0.0.0:8080", "HOST:PORT")
    flag("health-address", "where /healthz and /readyz are served", "0.0.0.0:8081", "HOST:PORT")
    flag("node-selector", "label selector of the GPU nodes", "nvidia.com/gpu.present=true", "SELECTOR")
    flag("agent-heartbeat", "seconds between the heartbeats of an agent", "30", "SECONDS")
    flag("probe-min-bytes", "smallest message of a probe", str(8 << 20), "BYTES")
    flag("probe-max-bytes", "largest message of a probe", str(4 << 30), "BYTES")
    flag("probe-runs", "runs of a probe; the best one counts", "3", "N")
    flag("ready-file", "written as JSON with the chosen addresses once the process serves", metavar="FILE")
    flag("log-level", "debug, info, warning or error", "info", "LEVEL")
    elect = (environment.get("NVCRE_LEADER_ELECT") or "true").lower() not in ("0", "false", "no")
    parser.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=elect,
        help="compete for the Lease nvcre-coordinator; without it this process always leads",
    )
    given = parser.parse_args(arguments)
    if given.log_level not in ("debug", "info", "warning", "error"):
        parser.error(f"--log-level {given.log_level!r} must be debug, info, warning or error")
    grpc_host, grpc_port = _address(parser, "--grpc-address", given.grpc_address)
    min_bytes = _integer(parser, "--probe-min-bytes", given.probe_min_bytes, 8, 1 << 40)
    max_bytes = _integer(parser, "--probe-max-bytes", given.probe_max_bytes, min_bytes, 1 << 40)
    pod_ip = environment.get("POD_IP", "")
    return Config(
        kubeconfig=Path(given.kubeconfig) if given.kubeconfig else None,
        namespace=given.namespace,
        grpc_address=f"{grpc_host}:{grpc_port}",
        metrics_address=_address(parser, "--metrics-address", given.metrics_address),
        health_address=_address(parser, "--health-address", given.health_address),
        node_selector=given.node_selector,
        leader_elect=given.leader_elect,
        agent_heartbeat_s=_seconds(parser, "--agent-heartbeat", given.agent_heartbeat),
        probe_min_bytes=min_bytes,
        probe_max_bytes=max_bytes,
        probe_runs=_integer(parser, "--probe-runs", given.probe_runs, 1, 20),
        ready_file=Path(given.ready_file) if given.ready_file else None,
        log_level=given.log_level,
        identity=environment.get("POD_NAME") or f"{os.uname().nodename}-{os.getpid()}",
        advertised_host=pod_ip if pod_ip and grpc_host in ("0.0.0.0", "[::]") else grpc_host,
    )


def _address(parser: argparse.ArgumentParser, name: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        parser.error(f"{name} {text!r} must be HOST:PORT, for example 0.0.0.0:8080")
    return host, int(port)


def _integer(parser: argparse.ArgumentParser, name: str, text: str, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        parser.error(f"{name} {text!r} must be a whole number from {least} to {most}")
    return int(text)


def _seconds(parser: argparse.ArgumentParser, name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        parser.error(f"{name} {text!r} must be a number of seconds from 0.1 to 3600")
    return seconds
