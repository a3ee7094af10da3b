"""The flags of nvcre-coordinator (docs/architecture.md), each also from the environment as NVCRE_ and its name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from nvcre_protos.addresses import format_address
from nvcre_protos.flags import Flags

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

    parser.add_argument("--version", action="version", version=f"nvcre-coordinator {version('nvcre')}")
    flags = Flags(parser, environment)
    flag = flags.add
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
    grpc_host, grpc_port = flags.address("--grpc-address", given.grpc_address)
    min_bytes = flags.integer("--probe-min-bytes", given.probe_min_bytes, 8, 1 << 40)
    max_bytes = flags.integer("--probe-max-bytes", given.probe_max_bytes, min_bytes, 1 << 40)
    pod_ip = environment.get("POD_IP", "")
    return Config(
        kubeconfig=Path(given.kubeconfig) if given.kubeconfig else None,
        namespace=given.namespace,
        grpc_address=format_address(grpc_host, grpc_port),
        metrics_address=flags.address("--metrics-address", given.metrics_address),
        health_address=flags.address("--health-address", given.health_address),
        node_selector=given.node_selector,
        leader_elect=given.leader_elect,
        agent_heartbeat_s=flags.seconds("--agent-heartbeat", given.agent_heartbeat, 0.1, 3600),
        probe_min_bytes=min_bytes,
        probe_max_bytes=max_bytes,
        probe_runs=flags.integer("--probe-runs", given.probe_runs, 1, 20),
        ready_file=Path(given.ready_file) if given.ready_file else None,
        log_level=flags.log_level(given.log_level),
        identity=environment.get("POD_NAME") or f"{os.uname().nodename}-{os.getpid()}",
        advertised_host=pod_ip if pod_ip and grpc_host in ("0.0.0.0", "::") else grpc_host,
    )
