"""`python -m nvcre_local.node`: kubelets of simulated nodes, and with flags the tiny trainer and scheduler."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvcre_kube.client import KubeClient
from nvcre_kube.credentials import ConfigError
from nvcre_kube.events import EventRecorder
from nvcre_kube.informer import Informer, keep_object
from nvcre_kube.resources import NODES, PODS, JsonObject
from nvcre_protos.flags import Flags
from nvcre_protos.logfmt import log_to_stderr
from nvcre_protos.ready_file import write_ready_file

from nvcre_local.node.environment import Machine
from nvcre_local.node.kubelet import Kubelet
from nvcre_local.node.log_files import MAX_BYTES
from nvcre_local.node.log_records import RECORD_LIMIT
from nvcre_local.node.log_server import LogServer
from nvcre_local.node.node_objects import Host, NodeSpec, parse_node
from nvcre_local.node.pods import NodeServices
from nvcre_local.node.processes import Processes
from nvcre_local.node.volumes import MountedObjects
from nvcre_local.scheduler import Scheduler
from nvcre_local.trainer import JOBSET_INDEX, Trainer, jobset_of

logger = logging.getLogger("nvcre_local.node")

DESCRIPTION = """\
Runs Pods as processes of this machine: a kubelet for each --node, all in this one process, against any Kubernetes API
server. There is no image, no mount and no isolation: a container is its command, started as the user who started this,
with $NVCRE_POD_DIR as its working directory and $NVCRE_POD_DIR/volumes/NAME as its volumes.
"""
EPILOG = """\
Every flag may also be given in the environment: --root is NVCRE_ROOT. SIGTERM or SIGINT ends everything that was
started, with exit code 0.

  python -m nvcre_local.node --kubeconfig kubeconfig --node node-0=8 --node node-1=8 --root /tmp/nodes \\
      --kubelet-token-file token --trainer --scheduler
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nvcre_local.node",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    flags = Flags(parser, os.environ)
    flags.add("kubeconfig", "how to reach the API server", metavar="FILE", required=True)
    flags.add_repeatable("node", "register a node, with 8 GPUs unless said otherwise", "NAME[=GPUS]")
    flags.add("root", "where Pod directories and logs go", metavar="DIR", required=True)
    flags.add("kubelet-token-file", "the bearer token that an API server must show to read logs", metavar="FILE")
    flags.add(
        "kubelet-client-ca",
        "PEM of the authority whose client certificates may read logs: what a kube-apiserver shows",
        metavar="FILE",
    )
    flags.add(
        "container-log-max-size",
        "bytes of a container's log before it is rotated, as a kubelet's",
        str(MAX_BYTES),
        "BYTES",
    )
    flags.add("gpu-product", "label nvidia.com/gpu.product; a scenario's product wins", "", "NAME")
    flags.add(
        "simulation",
        "simulation directory of a scenario; its bin/ comes first on the PATH of every Pod",
        metavar="DIR",
    )
    flags.add_switch("trainer", "also turn TrainJobs into Pods (where no Kubeflow Trainer runs)")
    flags.add_switch("scheduler", "also place Pods on nodes (where no kube-scheduler runs)")
    flags.add("ready-file", "written as JSON once all nodes are registered", metavar="FILE")
    return parser


class UsageError(Exception):
    """A flag whose value cannot be used."""


def _nodes(arguments: argparse.Namespace) -> list[NodeSpec]:
    try:
        nodes = [parse_node(text) for text in arguments.node]
    except ValueError as error:
        raise UsageError(str(error)) from None
    names = [node.name for node in nodes]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"--node {twice[0]} is given twice")
    if not nodes and not (arguments.trainer or arguments.scheduler):
        raise UsageError("nothing to do: give at least one --node, or --trainer, or --scheduler")
    return [replace(node, product=_product(node.name, arguments)) for node in nodes]


def _product(node: str, arguments: argparse.Namespace) -> str:
    if arguments.simulation is not None:
        file = Path(arguments.simulation) / "nodes" / node / "driver.json"
        with suppress(FileNotFoundError):
            try:
                return str(json.loads(file.read_text())["product"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UsageError(f"--simulation: {file}: {error!r}") from None
    return str(arguments.gpu_product)


def _machine(arguments: argparse.Namespace) -> Machine:
    return Machine(
        # Our own programs (nvcre-agent) lie beside the interpreter, whether its environment is activated or not.
        path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        home=os.environ.get("HOME", "/"),
        lang=os.environ.get("LANG", "C.UTF-8"),
        simulation=Path(arguments.simulation).resolve() if arguments.simulation else None,
    )


def _log_max_bytes(arguments: argparse.Namespace) -> int:
    text = arguments.container_log_max_size
    if not (text.isascii() and text.isdecimal() and len(text) <= 15 and int(text) >= RECORD_LIMIT):
        raise UsageError(f"--container-log-max-size {text!r} must be a number of bytes, at least {RECORD_LIMIT}")
    return int(text)


def _host() -> Host:
    def first_line(path: str) -> str:
        try:
            return Path(path).read_text().strip()
        except OSError:
            return ""

    pages, page_size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Host(
        cpus=os.cpu_count() or 1,
        memory_kib=pages * page_size // 1024,
        boot_id=first_line("/proc/sys/kernel/random/boot_id"),
        machine_id=first_line("/etc/machine-id"),
    )


def _private_directory(path: str) -> Path:
    root = Path(path).resolve()
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"--root: {error}") from None
    return root


def _client_ca(path: str | None) -> Path | None:
    """Raises UsageError for a file without certificates."""
    if path is None:
        return None
    try:
        ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--kubelet-client-ca: {path}: {error}") from None
    return Path(path)


def _token(arguments: argparse.Namespace) -> str:
    """ "" where certificates are asked for instead."""
    path = arguments.kubelet_token_file
    if path is None:
        if arguments.kubelet_client_ca is None:
            raise UsageError("nobody could read logs: give --kubelet-token-file or --kubelet-client-ca")
        return ""
    try:
        token = Path(path).read_text().strip()
    except OSError as error:
        raise UsageError(f"--kubelet-token-file: {error}") from None
    if not token:
        raise UsageError(f"--kubelet-token-file: {path} is empty")
    return token


async def _serve(
    arguments: argparse.Namespace, client: KubeClient, nodes: Sequence[NodeSpec], root: Path, token: str
) -> int:
    """Everything this process does, until SIGTERM or SIGINT; any part that dies takes the rest with it."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    events = EventRecorder(client, "nvcre-local-node")
    # One watch of Pods for everybody in this process; a lone kubelet asks for its own only.
    lone = nodes[0].name if len(nodes) == 1 and not (arguments.trainer or arguments.scheduler) else None
    pods: Informer[JsonObject] = Informer(
        client,
        PODS,
        convert=keep_object,
        field_selector=f"spec.nodeName={lone}" if lone else None,
        indexers={JOBSET_INDEX: jobset_of},
    )
    processes = Processes()
    services = NodeServices(
        client, events, processes, MountedObjects(client), _machine(arguments), root, _log_max_bytes(arguments)
    )
    kubelet: Kubelet | None = None

    def find(node: str, namespace: str, pod: str, container: str) -> Any:
        return kubelet.find(node, namespace, pod, container) if kubelet else None

    log_server = LogServer([node.name for node in nodes], token, find, _client_ca(arguments.kubelet_client_ca))
    try:
        ports = await log_server.start()
        kubelet = Kubelet(nodes, ports, _host(), services, pods)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(pods.run()), tasks.create_task(events.run())]
            running.append(tasks.create_task(_ready(arguments, kubelet, pods, ports)))
            if arguments.scheduler:
                all_nodes = Informer(client, NODES, convert=keep_object)
                running.append(tasks.create_task(all_nodes.run()))
                running.append(tasks.create_task(Scheduler(client, events, pods, all_nodes).run()))
            if arguments.trainer:
                running.append(tasks.create_task(Trainer(client, events, pods).run()))
            stop = asyncio.create_task(stopping.wait())
            await asyncio.wait((stop, processes.lost), return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            for task in running:
                task.cancel()
    finally:
        await processes.close()
        await log_server.close()
    if not stopping.is_set():
        logger.error("the spawner process was killed, and every Pod of these nodes with it")
        return 1
    return 0


async def _ready(arguments: argparse.Namespace, kubelet: Kubelet, pods: Informer[JsonObject], ports: Any) -> None:
    await kubelet.register()
    await pods.wait_synced()
    if arguments.ready_file:
        write_ready_file(Path(arguments.ready_file), {"nodes": dict(ports)})
    logger.info("node runtime ready nodes=%d", len(ports))
    await kubelet.run()


async def _main(arguments: argparse.Namespace) -> int:
    try:
        nodes = _nodes(arguments)
        token = _token(arguments)
        _client_ca(arguments.kubelet_client_ca)
        root = _private_directory(arguments.root)
        client = await KubeClient.from_kubeconfig(Path(arguments.kubeconfig))
    except (UsageError, ConfigError) as error:
        print(f"python -m nvcre_local.node: {error}", file=sys.stderr)
        return 2
    async with client:
        return await _serve(arguments, client, nodes, root, token)


def main() -> None:
    arguments = _parser().parse_args()
    log_to_stderr(os.environ.get("NVCRE_LOG_LEVEL", "info"))
    sys.exit(asyncio.run(_main(arguments)))


if __name__ == "__main__":
    main()
