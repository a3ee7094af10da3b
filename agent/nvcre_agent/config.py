"""The flags of nvcre-agent, each also from the environment as NVCRE_ and the flag's name in capitals."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nvcre_protos.flags import Flags

from nvcre_agent.command_line import add_xid_catalogue

_OTHER_COMMANDS = """\
other commands (each has its --help):
  nvcre-agent scan              look at the GPUs and the kernel log of this machine once, and report
  nvcre-agent kernel-log FILE   explain a saved kernel log (dmesg, journalctl -k, nvidia-bug-report.log.gz)
"""


@dataclass(frozen=True, slots=True)
class Config:
    node_name: str
    coordinator: str | None
    ca_file: Path | None
    server_name: str
    token_file: Path | None
    outbox: Path
    kernel_log: Path
    boot_id_file: Path
    xid_catalogue: Path | None
    listen: tuple[str, int]
    nccl_tests_dir: Path | None
    simulate: Path | None
    sysfs: Path | None
    procfs: Path | None
    heartbeat_interval_s: float
    ready_file: Path | None
    log_level: str


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Config:
    """Read the flags. Usage errors end the process with code 2 and a sentence on stderr."""
    parser = argparse.ArgumentParser(
        prog="nvcre-agent",
        description="Watches the GPUs of this node (NVML and kernel log) and tells the nvcre coordinator\n"
        "what happens. Each flag may also be given in the environment: --node-name is NVCRE_NODE_NAME.",
        usage="nvcre-agent [run] --node-name NAME [flags]\n       nvcre-agent scan | kernel-log [flags]",
        epilog=_OTHER_COMMANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    flags = Flags(parser, environment)
    flag = flags.add
    flag("node-name", "name of this node, for logs and metrics; the stream's identity is the token", metavar="NAME")
    flag(
        "coordinator", "gRPC address of the coordinator; without it the agent only serves metrics", metavar="HOST:PORT"
    )
    flag("ca-file", "CA that signed the coordinator's certificate; read again on every connect", metavar="FILE")
    flag("server-name", "name the certificate must carry", "nvcre-coordinator.nvcre-system.svc", "NAME")
    flag("token-file", "ServiceAccount token; read again on every connect", metavar="FILE")
    flag("outbox", "SQLite file for events that are not acknowledged yet", "/var/lib/nvcre/outbox.sqlite", "FILE")
    flag(
        "kernel-log", "kernel log: the device, or a FIFO or file in its format, one record a line", "/dev/kmsg", "FILE"
    )
    flag("boot-id-file", "file that names this boot", "/proc/sys/kernel/random/boot_id", "FILE")
    add_xid_catalogue(flags)
    flag("listen", "address of /metrics and /healthz; port 0 takes a free one", "0.0.0.0:9465", "HOST:PORT")
    flag("nccl-tests-dir", "directory of all_reduce_perf; else PATH is searched", None, "DIR", "NCCL_TESTS_DIR")
    flag("simulate", "use the simulated driver over this node description; never chosen by itself", metavar="FILE")
    flag("sysfs", "the host's /sys (InfiniBand ports); of a simulated node: sys beside its description", metavar="DIR")
    flag("procfs", "the host's /proc (fabric manager); of a simulated node: proc beside its description", metavar="DIR")
    flag("heartbeat-interval", "seconds between heartbeats; the coordinator's settings win", "30", "SECONDS")
    flag("ready-file", "written as JSON with the chosen address once the agent serves", metavar="FILE")
    flag("log-level", "debug, info, warning or error", "info", "LEVEL")
    given = parser.parse_args(arguments)

    if not given.node_name:
        parser.error("--node-name is missing: give the node's name (downward API spec.nodeName) or set NVCRE_NODE_NAME")
    if given.coordinator:
        flags.address("--coordinator", given.coordinator)
        for name in ("ca_file", "token_file"):
            if not getattr(given, name):
                parser.error(f"--{name.replace('_', '-')} is missing: with --coordinator the stream needs it")
    return Config(
        node_name=given.node_name,
        coordinator=given.coordinator or None,
        ca_file=_path(given.ca_file),
        server_name=given.server_name,
        token_file=_path(given.token_file),
        outbox=Path(given.outbox),
        kernel_log=Path(given.kernel_log),
        boot_id_file=Path(given.boot_id_file),
        xid_catalogue=_path(given.xid_catalogue),
        listen=flags.address("--listen", given.listen),
        nccl_tests_dir=_path(given.nccl_tests_dir),
        simulate=_path(given.simulate),
        sysfs=_path(given.sysfs),
        procfs=_path(given.procfs),
        heartbeat_interval_s=flags.seconds("--heartbeat-interval", given.heartbeat_interval, 0.05, 3600),
        ready_file=_path(given.ready_file),
        log_level=flags.log_level(given.log_level),
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
