"""The programs behind the shims: all_reduce_perf, mpirun and sshd.

    python -m nvcre_local.simulated_nccl.programs DIR [--node NODE] PROGRAM [ARGUMENTS...]

all_reduce_perf measures one node. mpirun waits for the workers of its JobSet, prints the table they would have printed
together, and follows a worker's death about a second later with what NCCL and mpirun say then. sshd is the worker: it
lives until the launcher is done, or dies as the scenario orders.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from nvcre_local.simulated_nccl import text
from nvcre_local.simulated_nccl.arguments import EndWith, MpiArguments, PerfArguments, parse_mpirun, parse_test
from nvcre_local.simulated_nccl.directory import Directory, Handshake, PodIdentity, SimulationBroken, Worker
from nvcre_local.simulated_nccl.fabric import Fabric

POLL_S = 0.05
WORKERS_WITHIN_S = 300.0
PEER_NOTICES_AFTER_S = 1.0
EXIT_NCCL = 3  # testNcclError
EXIT_TOO_FEW_GPUS = 5


class PeerFailed(Exception):
    """A worker of the same run has died; `rank` is its completion index."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.rank = rank


def say(words: str) -> None:
    sys.stdout.write(words)
    sys.stdout.flush()


def print_run(
    program: str,
    arguments: PerfArguments,
    devices: list[text.Device],
    fabric: Fabric,
    *,
    seconds: float,
    watch: Callable[[], None],
) -> None:
    """The whole output of one run, rows spread over `seconds`; `watch` is asked often and may raise PeerFailed."""
    say(text.banner(program, arguments) + text.device_lines(devices) + text.HEADING)
    sizes = arguments.sizes() * max(1, arguments.cycles)
    averages: list[float] = []
    for size in sizes:
        say(text.row_start(size, arguments))
        _wait(seconds / len(sizes), watch)
        for side in ("out-of-place", "in-place"):
            measured = text.Measured.of(size, fabric.time_us(size, side), fabric.busbw_factor)
            averages.append(measured.busbw_gbps)
            say(text.row_side(measured, checked=arguments.check != 0))
        say("\n")
    say(text.footer(program, sum(averages) / len(averages) if averages else 0.0))


def _wait(seconds: float, watch: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while True:
        watch()
        left = until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(POLL_S, left))


def all_reduce_perf(
    directory: Directory,
    node: str,
    program: str,
    arguments: list[str],
    environment: Mapping[str, str],
    *,
    seconds: float,
) -> int:
    """One process, one node: ranks = threads x GPUs."""
    parsed = parse_test(program, arguments)
    driver = directory.driver(node)
    lost = directory.lost_gpus(node)
    gpus = [(index, gpu) for index, gpu in enumerate(driver["gpus"]) if index not in lost]
    ranks = parsed.threads * parsed.gpus
    if ranks > len(gpus):
        sys.stderr.write(f"Invalid number of GPUs: {ranks} requested but only {len(gpus)} were found.\n")
        return EXIT_TOO_FEW_GPUS
    devices = [
        text.Device(rank, os.getpid(), node, index, gpu["pci"], driver["product"])
        for rank, (index, gpu) in enumerate(gpus[:ranks])
    ]
    fabric = Fabric.over((directory.links(node),), max(1, ranks), environment)
    print_run(program, parsed, devices, fabric, seconds=seconds, watch=lambda: None)
    return 0


def sshd(directory: Directory, node: str, pod: PodIdentity) -> int:
    handshake = Handshake(directory, pod.jobset)
    worker = Worker(pod.rank, node, os.getpid())
    say("Server listening on 0.0.0.0 port 22.\n")
    handshake.start(worker)
    while not handshake.done:
        crash = directory.crash(node)
        if crash is not None:
            for line in crash.lines:
                say(line.replace("{host}", node).replace("{pid}", str(worker.pid)) + "\n")
            handshake.fail(worker, crash.exit_code)
            return crash.exit_code
        time.sleep(POLL_S)
    return 0


def mpirun(directory: Directory, node: str, pod: PodIdentity, arguments: list[str], environment: dict[str, str]) -> int:
    asked = parse_mpirun(arguments)
    program = os.path.basename(asked.program)
    if program not in ("all_reduce_perf", "all_reduce_perf_mpi"):
        rule = "-" * 74
        sys.stderr.write(
            f"{rule}\nmpirun was unable to find the specified executable file, and therefore\ndid not launch the job."
            f"\n\nNode:       {node}\nExecutable: {asked.program}\n{rule}\n"
        )
        return 134
    if asked.processes is None:  # a slot, a process: what the hostfile of Trainer has
        asked = replace(asked, processes=_slots(Path(environment.get("NVCRE_POD_DIR", ""))))
    parsed = parse_test(program, list(asked.arguments))
    handshake = Handshake(directory, pod.jobset)
    workers = _await_workers(handshake, asked, parsed, gpus=len(directory.driver(node)["gpus"]))
    devices = _devices(directory, workers, asked, parsed)
    nodes = dict.fromkeys(device.host for device in devices)
    fabric = Fabric.over(
        tuple(directory.links(name) for name in nodes),
        len(devices),
        environment | asked.environment,
        directory.slow_links_gbps(nodes),
    )

    def watch() -> None:
        rank = handshake.failed()
        if rank is not None:
            raise PeerFailed(rank)

    try:
        seconds = directory.seconds("run_seconds", 12.0)
        print_run(program, parsed, devices, fabric, seconds=seconds, watch=watch)
    except PeerFailed as failure:
        time.sleep(PEER_NOTICES_AFTER_S)
        dead = next(worker for worker in workers if worker.rank == failure.rank)
        say(_peer_failure(devices[0], dead))
        sys.stderr.write(_mpi_abort(rank=0, exit_code=EXIT_NCCL))
        return EXIT_NCCL
    handshake.finish()
    return 0


def _slots(pod: Path) -> int:
    """mpirun without a number of processes starts one a slot; without a hostfile one."""
    hostfile = pod / "volumes" / "mpi-hostfile" / "hostfile"
    lines = hostfile.read_text().splitlines() if hostfile.exists() else []
    return sum(int(line.rpartition("slots=")[2]) for line in lines if "slots=" in line) or 1


def _await_workers(handshake: Handshake, asked: MpiArguments, parsed: PerfArguments, *, gpus: int) -> list[Worker]:
    """All worker Pods that the processes fill; mpirun itself would retry ssh as long."""
    per_node = max(1, gpus // max(1, parsed.threads * parsed.gpus))
    expected = -(-(asked.processes or 1) // per_node)
    until = time.monotonic() + WORKERS_WITHIN_S
    while len(workers := handshake.workers()) < expected:
        if time.monotonic() > until:
            raise SimulationBroken(f"{len(workers)} of {expected} workers started within {WORKERS_WITHIN_S:.0f} s")
        time.sleep(POLL_S)
    return workers[:expected]


def _devices(
    directory: Directory, workers: list[Worker], asked: MpiArguments, parsed: PerfArguments
) -> list[text.Device]:
    """Processes fill the nodes in rank order; each drives threads x GPUs devices."""
    devices: list[text.Device] = []
    per_process = max(1, parsed.threads * parsed.gpus)
    wanted = (asked.processes or 1) * per_process
    for worker in workers:
        driver = directory.driver(worker.node)
        for index, gpu in enumerate(driver["gpus"]):
            if len(devices) < wanted:
                pid = worker.pid + 1 + index // per_process
                devices.append(text.Device(len(devices), pid, worker.node, index, gpu["pci"], driver["product"]))
    return devices


def _peer_failure(first: text.Device, dead: Worker) -> str:
    """What the surviving ranks print; NCCL starts a warning on a line of its own."""
    at = time.strftime("%Y-%m-%d %H:%M:%S")
    peer = f"{dead.node}<10.1.0.{dead.rank + 1}:41833>"
    process = f"{first.host}:{first.pid}"
    error = f"socketProgress: Connection closed by remote peer {peer}"
    return (
        f"\n[{at}] {process}:{first.pid + 64} [{first.index}] misc/socket.cc:915 NCCL WARN {error}\n"
        f"{first.host}: Test NCCL failure common.cu:303 "
        f"'remote process exited or there was a network error / {error}'\n"
        f" .. {first.host} pid {first.pid}: Test failure common.cu:401\n"
        f" .. {first.host} pid {first.pid}: Test failure common.cu:597\n"
        f" .. {first.host} pid {first.pid}: Test failure all_reduce.cu:109\n"
        f" .. {first.host} pid {first.pid}: Test failure common.cu:1005\n"
    )


def _mpi_abort(*, rank: int, exit_code: int) -> str:
    rule = "-" * 74
    return (
        f"{rule}\nPrimary job  terminated normally, but 1 process returned\n"
        f"a non-zero exit code. Per user-direction, the job has been aborted.\n{rule}\n"
        f"{rule}\nmpirun detected that one or more processes exited with non-zero status, thus causing\n"
        f"the job to be terminated. The first process to do so was:\n\n"
        f"  Process name: [[17219,1],{rank}]\n  Exit code:    {exit_code}\n{rule}\n"
    )


def run(
    directory: Directory, node: str, program: str, arguments: list[str], environment: dict[str, str], *, probe: bool
) -> int:
    if not node:
        raise SimulationBroken("NVCRE_NODE_NAME is not set: give the container env with fieldRef spec.nodeName")
    match program:
        case "sshd":
            return sshd(directory, node, PodIdentity.parse(environment.get("NVCRE_POD_NAME", "")))
        case "mpirun":
            pod = PodIdentity.parse(environment.get("NVCRE_POD_NAME", ""))
            return mpirun(directory, node, pod, arguments, environment)
        case _:
            seconds = directory.seconds("probe_seconds", 1.0) if probe else directory.seconds("run_seconds", 12.0)
            return all_reduce_perf(directory, node, program, arguments, environment, seconds=seconds)


def main(arguments: list[str], environment: dict[str, str]) -> int:
    """`arguments`: DIR [--node NODE] PROGRAM ..., as the shims call it; a shim that knows its node is an agent's."""
    directory, arguments = Directory(Path(arguments[0])), arguments[1:]
    node, probe = environment.get("NVCRE_NODE_NAME", ""), arguments[0] == "--node"
    if probe:
        node, arguments = arguments[1], arguments[2:]
    program, arguments = arguments[0], arguments[1:]
    try:
        return run(directory, node, program, arguments, environment, probe=probe)
    except EndWith as end:
        sys.stderr.write(end.stderr)
        say(end.stdout)
        return end.code
    except SimulationBroken as broken:
        sys.stderr.write(f"nvcre simulation: {program}: {broken}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], dict(os.environ)))
