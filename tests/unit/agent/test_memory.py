"""Whatever kernel log and driver say, the agent's memory stays: each line of another GPU, code, process or NIC."""

import asyncio
import gc
import logging
import os
from collections import deque
from pathlib import Path

from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.host.reading import HostReader
from nvcre_agent.metrics import Metrics
from nvcre_agent.nvml.monitor import NvmlMonitor
from nvcre_agent.nvml.snapshot import MOST_GPUS, GpuIdentity, GpuSnapshot, Inventory, PciAddress, Snapshot
from nvcre_agent.outbox import SLOW_COMMIT_S, open_outbox
from nvcre_agent.watch import Watch

FIRST = 3500  # until the open incidents and the outbox are full
LINES = 1400
GROWTH = 150  # entries: one for each line of one kind would be found
CONTAINERS = (dict, list, set, frozenset, deque)


def xid(number: int) -> str:
    pci = f"{number % 0x10000:04x}:{number * 7 % 256:02x}:{number % 32:02x}"
    return f"3,{{}},{{}},-;NVRM: Xid (PCI:{pci}): {number}, pid={number}, name=p{number}, told {number}"


def forged(number: int) -> str:
    return xid(number).replace("3,", "12,", 1)


def sxid(number: int) -> str:
    switch = f"nvidia-nvswitch{number % 64}: SXid (PCI:0000:{number % 256:02x}:00.0)"
    return f"3,{{}},{{}},-;{switch}: {number}, Fatal, Link {number % 64} x"


def nic(number: int) -> str:
    return f"3,{{}},{{}},-;mlx5_core {number % 65536:04x}:01:00.0 ib{number}: Link DOWN"


def killed(number: int) -> str:
    return f"3,{{}},{{}},-;Memory cgroup out of memory: Killed process {number} (p{number}) total-vm:1kB"


def hardware(number: int) -> str:
    return f"3,{{}},{{}},-;EDAC MC{number}: 1 UE error {number} on unit"


def corrected(number: int) -> str:
    return f"4,{{}},{{}},-;pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: {number % 65536:04x}:81:00.0"


KINDS = (xid, forged, sxid, nic, killed, hardware, corrected)


async def test_lines_that_all_differ_do_not_add_up(tmp_path: Path) -> None:
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    metrics, outbox = Metrics("node", "1.0"), open_outbox(tmp_path / "outbox.sqlite")
    watch = Watch(
        boot_id="boot",
        kernel_log=fifo,
        nvml=NvmlMonitor(),
        host=HostReader(tmp_path, tmp_path),
        outbox=outbox,
        metrics=metrics,
        simulated=False,
    )
    outbox.start()
    reading = asyncio.create_task(watch.run_kernel_log())
    await asyncio.sleep(0)
    writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)

    async def read(numbers: range) -> None:
        for number in numbers:
            text = KINDS[number % len(KINDS)](number).format(number, number * 1000)
            os.write(writer, f"{text}\n".encode())
            if number % 100 == 0:
                await watch.settle(60.0)
        await watch.settle(60.0)
        metrics.scrape()
        assert watch.kernel_counts["records"] == numbers.stop

    async def at_rest() -> int:
        """What is held, once nothing waits for the disk any more."""
        async with asyncio.timeout(60):
            while outbox.progress[0]:  # noqa: ASYNC110 - another thread's
                await asyncio.sleep(SLOW_COMMIT_S)
        await asyncio.sleep(2 * SLOW_COMMIT_S)
        return held()

    logging.disable()  # pytest keeps every record
    try:
        await read(range(FIRST))
        full = await at_rest()
        await read(range(FIRST, FIRST + LINES))
        assert await at_rest() - full < GROWTH
    finally:
        logging.disable(logging.NOTSET)
        os.close(writer)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await outbox.close()


def test_gpus_that_a_driver_makes_up_do_not_add_up() -> None:
    """A new UUID in a new slot with every snapshot."""
    known, inventory, metrics = Baseline(), None, Metrics("node", "1.0")
    for number in range(3 * MOST_GPUS):
        gpu = GpuIdentity(number % 8, f"GPU-{number}", PciAddress(number, 1, 0), "product", "serial")
        snapshot = Snapshot(float(number), number * 10**9, 1, (GpuSnapshot(gpu, None),))
        known = known.advance(snapshot)
        inventory = Inventory((gpu,), "570", "12.8").remembering(inventory)
        metrics.snapshot_seen(snapshot)
    assert (len(known.gpus), len(inventory.gpus)) == (MOST_GPUS, MOST_GPUS)
    assert metrics.scrape().count(b'UUID="GPU-') < 100


def held() -> int:
    """Entries of all containers of this process; those without inner containers are known by their owners only."""
    gc.collect()
    owners = gc.get_objects()
    plain = {
        id(one): one for one in gc.get_referents(*owners) if isinstance(one, CONTAINERS) and not gc.is_tracked(one)
    }
    return sum(len(one) for one in (*owners, *plain.values()) if isinstance(one, CONTAINERS))
