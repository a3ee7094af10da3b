import asyncio

import pytest
from nvcre_kube.leader_election import LeaderElector

from .conftest import LeaseServer


class Replica:
    """One process that competes; remembers when its leading task ran."""

    def __init__(self, server: LeaseServer, identity: str, *, stop_s: float = 0.0) -> None:
        self.elector = LeaderElector(
            server.seen_by(identity),  # type: ignore[arg-type]
            namespace="nvcre-system",
            name="nvcre-coordinator",
            identity=identity,
            annotations=lambda: {"nvcre.nvidia.com/grpc": f"{identity}:9443"},
        )
        self.identity = identity
        self.server = server
        self.leading = False
        self.stop_s = stop_s

    async def lead(self) -> None:
        self.leading = True
        try:
            await asyncio.sleep(1e9)
        finally:
            await asyncio.sleep(self.stop_s)
            self.leading = False

    def start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.elector.run(self.lead))


def test_one_leads_and_the_other_knows_where(run_virtually):
    async def scenario():
        server = LeaseServer()
        first, second = Replica(server, "a"), Replica(server, "b")
        tasks = [first.start()]
        await asyncio.sleep(1)
        tasks.append(second.start())
        await asyncio.sleep(120)
        assert (first.leading, second.leading) == (True, False)
        assert second.elector.leader_annotations == {"nvcre.nvidia.com/grpc": "a:9443"}
        for task in tasks:
            task.cancel()

    run_virtually(scenario())


def test_a_release_lets_the_other_lead_at_once(run_virtually):
    async def scenario():
        server = LeaseServer()
        first, second = Replica(server, "a"), Replica(server, "b")
        task = first.start()
        await asyncio.sleep(1)
        other = second.start()
        await asyncio.sleep(5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not first.leading
        await asyncio.sleep(3)
        assert second.leading
        other.cancel()

    run_virtually(scenario())


@pytest.mark.parametrize("broken", ["refuses", "hangs"])
def test_without_the_api_server_nobody_leads_before_the_lease_can_expire(run_virtually, broken):
    async def scenario():
        server = LeaseServer()
        first = Replica(server, "a", stop_s=1.0)
        task = first.start()
        await asyncio.sleep(5)
        assert first.leading
        server.broken = broken
        await asyncio.sleep(9.9 + 2 + 1)
        assert not first.leading, "renew deadline 10 s, lease 15 s"
        server.broken = None
        await asyncio.sleep(30)
        assert first.leading, "competes again"
        task.cancel()

    run_virtually(scenario())


def test_a_dead_leader_is_replaced_within_the_lease_duration_and_two_retry_periods(run_virtually):
    async def scenario():
        loop = asyncio.get_running_loop()
        server = LeaseServer()
        first, second = Replica(server, "a"), Replica(server, "b")
        task = first.start()
        await asyncio.sleep(1)
        other = second.start()
        await asyncio.sleep(10)
        server.deaf_to.add("a")
        last_renewal = server.written_at
        for _ in range(3000):
            await asyncio.sleep(0.01)
            if second.leading:
                break
        assert 15 <= loop.time() - last_renewal <= 15 + 2 * 2
        task.cancel()
        other.cancel()

    run_virtually(scenario())


@pytest.mark.parametrize("outage_s", [3, 12, 20, 60])
def test_never_may_two_write(run_virtually, outage_s):
    async def scenario():
        loop = asyncio.get_running_loop()
        server = LeaseServer()
        replicas = [Replica(server, "a"), Replica(server, "b")]
        tasks = [replica.start() for replica in replicas]
        led = set()
        for turn in range(6):
            cut_off = "ab"[turn % 2]
            server.deaf_to.add(cut_off)
            for _ in range(outage_s * 20):
                await asyncio.sleep(0.05)
                writers = [one.identity for one in replicas if one.elector.write_until() > loop.time()]
                assert len(writers) <= 1
                led.update(writers)
            server.deaf_to.clear()
            await asyncio.sleep(10)
        assert len(led) == (2 if outage_s > 15 + 2 * 2 else 1)
        for task in tasks:
            task.cancel()

    run_virtually(scenario())


def test_who_released_the_lease_writes_no_more_and_until_then_may(run_virtually):
    async def scenario():
        loop = asyncio.get_running_loop()
        replica = Replica(LeaseServer(), "a", stop_s=1.0)
        task = replica.start()
        await asyncio.sleep(3)
        task.cancel()
        await asyncio.sleep(0.5)
        assert replica.elector.write_until() > loop.time(), "its last words"
        await asyncio.gather(task, return_exceptions=True)
        assert replica.elector.write_until() < loop.time()

    run_virtually(scenario())


def test_an_error_of_the_leading_task_is_not_swallowed(run_virtually):
    async def scenario():
        replica = Replica(LeaseServer(), "a")

        async def fail() -> None:
            raise RuntimeError("boom")

        with pytest.raises(RuntimeError, match="boom"):
            await replica.elector.run(fail)
        assert replica.server.lease is not None
        assert replica.server.lease["spec"]["holderIdentity"] == "", "released"

    run_virtually(scenario())
