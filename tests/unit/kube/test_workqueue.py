import asyncio
import itertools

import pytest
from nvcre_kube.client import ApiError
from nvcre_kube.workqueue import WorkQueue, run_workers


def test_a_key_added_twice_is_handed_out_once(run_virtually):
    async def scenario():
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        queue.add("a")
        assert await queue.get() == "a"
        assert len(queue) == 0

    run_virtually(scenario())


def test_a_key_added_while_worked_on_comes_again_after_done(run_virtually):
    async def scenario():
        queue: WorkQueue[str] = WorkQueue()
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        assert len(queue) == 0, "two workers would hold the same key"
        queue.done("a")
        assert await queue.get() == "a"

    run_virtually(scenario())


def test_of_several_delays_the_earliest_counts(run_virtually):
    async def scenario():
        loop = asyncio.get_running_loop()
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 10)
        queue.add_after("a", 2)
        queue.add_after("a", 5)
        await queue.get()
        assert 2 <= loop.time() < 2.1
        queue.done("a")
        await asyncio.sleep(20)
        assert len(queue) == 0

    run_virtually(scenario())


def test_an_immediate_addition_keeps_a_pending_deadline(run_virtually):
    async def scenario():
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 5)
        queue.add("a")
        queue.done(await queue.get())
        assert await asyncio.wait_for(queue.get(), 6) == "a"

    run_virtually(scenario())


def test_failures_are_retried_ever_more_slowly_and_forgotten_on_success(run_virtually):
    async def scenario():
        loop = asyncio.get_running_loop()
        queue: WorkQueue[str] = WorkQueue()
        times: list[float] = []

        async def reconcile(_key: str) -> None:
            times.append(loop.time())
            if len(times) < 6:
                raise RuntimeError("not yet")

        queue.add("a")
        worker = asyncio.create_task(run_workers(queue, reconcile, workers=2, name="test"))
        await asyncio.sleep(60)
        worker.cancel()
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert len(times) == 6
        assert all(later > earlier for earlier, later in zip(gaps, gaps[2:], strict=False)), gaps

    run_virtually(scenario())


def test_one_key_that_always_fails_does_not_stop_the_others(run_virtually):
    async def scenario():
        queue: WorkQueue[str] = WorkQueue()
        seen: list[str] = []

        async def reconcile(key: str) -> float | None:
            if key == "bad":
                raise RuntimeError("poison")
            seen.append(key)
            return 1.0 if len(seen) < 3 else None

        queue.add("bad")
        queue.add("good")
        worker = asyncio.create_task(run_workers(queue, reconcile, workers=1, name="test"))
        await asyncio.sleep(10)
        worker.cancel()
        assert seen == ["good"] * 3, "asked to look again after a second, twice"

    run_virtually(scenario())


@pytest.mark.parametrize(
    ("error", "traced"), [(RuntimeError("poison"), True), (TimeoutError(), False), (ApiError(500, "", "no"), False)]
)
def test_a_server_in_trouble_is_a_line_and_a_mistake_of_ours_a_traceback(run_virtually, caplog, error, traced):
    async def scenario():
        queue: WorkQueue[str] = WorkQueue()

        async def reconcile(key: str) -> float | None:
            raise error

        queue.add("a")
        worker = asyncio.create_task(run_workers(queue, reconcile, workers=1, name="test"))
        await asyncio.sleep(0.01)
        worker.cancel()

    run_virtually(scenario())
    (record,) = caplog.records
    assert record.getMessage().startswith("reconcile failed controller=test key=a")
    assert bool(record.exc_info) is traced


def test_keys_that_fail_together_are_not_retried_together(run_virtually):
    async def scenario():
        loop = asyncio.get_running_loop()
        queue: WorkQueue[int] = WorkQueue()
        for key in range(50):
            queue.add_rate_limited(key)
        times = set()
        for _ in range(50):
            await queue.get()
            times.add(loop.time())
        assert len(times) > 10

    run_virtually(scenario())


def test_timers_that_earlier_ones_replaced_do_not_pile_up(run_virtually):
    async def scenario():
        queue: WorkQueue[str] = WorkQueue()
        for _ in range(1000):
            queue.add_after("a", 3600)
            queue.add_after("a", 0.01)
            queue.done(await queue.get())
        assert len(queue._timers) < 100

    run_virtually(scenario())
