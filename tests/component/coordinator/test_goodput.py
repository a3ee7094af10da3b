"""Goodput measurements through the real process: a run that is followed, a coordinator that dies, the end of a Job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from nvcre_kube.resources import GOODPUT_MEASUREMENTS, JOBS, LOG_PROFILES
from support.eventually import eventually

ROOT = Path(__file__).parents[3]
MEASURED = {"goodputMeasurement": {"logProfileRef": "megatron-bridge", "sampleInterval": "1s"}}
BEGAN = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=10)


def line(second: float, text: str) -> bytes:
    """As a kubelet gives it with time stamps, and as Megatron stamps it."""
    time = BEGAN + timedelta(seconds=second)
    stamped = text.replace("AT", time.strftime("%Y-%m-%d %H:%M:%S.%f"))
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S.%f')}Z {stamped}\n".encode()


def step(second: float, number: int, seconds: float = 5.0) -> bytes:
    return line(
        second,
        f" [AT] iteration {number:8d}/     200 | consumed samples: 768 | elapsed time per iteration (ms): "
        f"{seconds * 1e3} | throughput per GPU (TFLOP/s/GPU): 400.0 | lm loss: 1.218472E+01 | loss scale: 1.0 |",
    )


BANNER = line(
    0,
    "using world size: 8, data-parallel size: 8, context-parallel size: 1, tensor-model-parallel size: 1, "
    "pipeline-model-parallel size: 1",
)
SAVED = line(60, "[AT] saving checkpoint at iteration      10 to /ckpt in torch_dist format") + line(
    63, "[AT] successfully saved checkpoint from iteration      10 to /ckpt [ t 1/1, p 1/1 ]"
)


async def launched(cluster: Any, name: str, *, workers: int) -> list[str]:
    manifest = yaml.safe_load((ROOT / "daemonset/log-profiles/megatron-bridge.yaml").read_text())
    await cluster.client.create(LOG_PROFILES, manifest)
    await cluster.start()
    await cluster.add_node("node-0")
    await cluster.create_job(name, MEASURED)
    await cluster.until(name, "InProgress", "True", "WorkloadRunning")
    return [await cluster.add_pod(name, "node", "node-0", index=index) for index in range(workers)]


async def status(cluster: Any, name: str) -> dict[str, Any]:
    """Empty before there is one."""
    found = await cluster.client.list(GOODPUT_MEASUREMENTS, "default")
    return next((one.get("status", {}) for one in found if one["metadata"]["name"] == f"{name}-goodput"), {})


async def until(cluster: Any, name: str, **wanted: Any) -> dict[str, Any]:
    async def holds() -> dict[str, Any] | None:
        seen = await status(cluster, name)
        return seen if all(seen.get(field) == value for field, value in wanted.items()) else None

    try:
        found: dict[str, Any] = await eventually(holds)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await status(cluster, name)}\n{cluster.log()}") from error
    return found


def condition(seen: dict[str, Any], kind: str) -> tuple[str, str]:
    return next((one["status"], one["reason"]) for one in seen["conditions"] if one["type"] == kind)


async def gauges(cluster: Any, fetch: Any) -> dict[str, str]:
    _, text = await fetch(f"http://{cluster.addresses['metrics']}/metrics")
    rows = (line.partition("{") for line in text.splitlines() if line.startswith("nvcre_goodput_"))
    return {name: rest.rpartition(" ")[2] for name, _, rest in rows}


async def test_two_workers_a_coordinator_that_dies_and_the_end(cluster: Any, fetch: Any) -> None:
    first, last = await launched(cluster, "train", workers=2)
    cluster.kubelet.logs[first] = BANNER + SAVED
    cluster.kubelet.logs[last] = b"".join(step(20 + 5 * number, number) for number in range(1, 9))
    seen = await until(cluster, "train", currentStep=8, lastCheckpointStep=10)
    assert condition(seen, "Measuring") == ("True", "JobRunning")
    assert (seen["checkpointSaveTimeSec"], seen["resumeTimeSec"]) == ("3.000000", "25.000000")
    assert (seen["avgStepTimeSec"], seen["avgTFLOPSPerGPU"], seen["warmupBaseStep"]) == ("5.000000", "400.000000", 1)
    assert (await gauges(cluster, fetch))["nvcre_goodput_avg_step_time_seconds"] == "5.0"

    await cluster.kill()
    cluster.kubelet.logs[last] += b"".join(step(20 + 5 * number, number) for number in range(9, 13))
    await cluster.start()
    seen = await until(cluster, "train", currentStep=12)
    # Five steps are warmup; each of the seven others counts once, also those that both coordinators were given.
    assert (seen["nonWarmupTimeSec"], seen["warmupTimeSec"]) == ("35.000000", "5.000000")
    assert (seen["checkpointSaveTimeSec"], seen["resumeTimeSec"]) == ("3.000000", "25.000000")

    for pod in (first, last):
        await cluster.end_pod(pod, 0)
    await cluster.finish_workload("train", "Complete", "done")

    async def complete() -> dict[str, Any] | None:
        now = await status(cluster, "train")
        return now if now.get("completionTime") else None

    seen = await eventually(complete)
    assert condition(seen, "Complete") == ("True", "JobSucceeded")
    assert condition(seen, "Measuring") == ("False", "JobSucceeded")
    assert (seen["currentStep"], seen["interruptionCount"]) == (12, 0)
    assert 0 <= float(seen["result"]) <= 1

    async def only_the_ratio_stays() -> bool:
        return set(await gauges(cluster, fetch)) == {"nvcre_goodput_ratio"}

    await eventually(only_the_ratio_stays)


async def test_a_job_that_fails_and_was_over_before_it_was_read(cluster: Any) -> None:
    (pod,) = await launched(cluster, "short", workers=1)
    cluster.kubelet.logs[pod] = BANNER + step(25, 1) + SAVED + step(70, 11)
    await cluster.end_pod(pod, 1)
    await cluster.finish_workload("short", "Failed", "over")

    async def complete() -> dict[str, Any] | None:
        now = await status(cluster, "short")
        return now if now.get("completionTime") else None

    seen = await eventually(complete)
    assert condition(seen, "Complete") == ("True", "JobFailed")
    assert (seen["currentStep"], seen["lastCheckpointStep"], seen["interruptionCount"]) == (11, 10, 1)
    assert seen["pendingInterruption"]["reason"] == "JobFailed"
    assert float(seen["lostWorkTimeSec"]) > 0


async def test_a_job_that_ended_while_no_coordinator_was_there(cluster: Any) -> None:
    (pod,) = await launched(cluster, "alone", workers=1)

    async def made() -> bool:
        return bool(await cluster.client.list(GOODPUT_MEASUREMENTS, "default"))

    await eventually(made)
    await cluster.kill()
    cluster.kubelet.logs[pod] = BANNER + step(25, 1) + step(30, 2)
    await cluster.end_pod(pod, 0)
    job = await cluster.job("alone")
    ended = (datetime.now(UTC) - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for one in job["status"]["conditions"]:
        if one["type"] in ("InProgress", "Succeeded"):
            reason = "WorkloadCompleted" if one["type"] == "Succeeded" else "NotApplicable"
            one |= {"status": "True" if one["type"] == "Succeeded" else "False", "reason": reason}
            one |= {"lastTransitionTime": ended}
    await cluster.client.update_status(JOBS, job)
    await cluster.start()

    async def complete() -> dict[str, Any] | None:
        now = await status(cluster, "alone")
        return now if now.get("completionTime") else None

    seen = await eventually(complete)
    assert condition(seen, "Complete") == ("True", "JobSucceeded")
    assert (seen["currentStep"], seen["completionTime"]) == (2, ended)


async def test_a_profile_that_is_not_there_is_told_and_waited_for_and_a_corrected_one_reads_on(cluster: Any) -> None:
    await cluster.start()
    await cluster.add_node("node-0")
    await cluster.create_job("early", MEASURED)

    async def told() -> bool:
        conditions = (await status(cluster, "early")).get("conditions", [])
        return [(one["type"], one["reason"]) for one in conditions] == [("Measuring", "LogProfileNotFound")]

    await eventually(told)
    manifest = yaml.safe_load((ROOT / "daemonset/log-profiles/megatron-bridge.yaml").read_text())
    await cluster.client.create(LOG_PROFILES, manifest)
    await cluster.until("early", "InProgress", "True", "WorkloadRunning")
    pod = await cluster.add_pod("early", "node", "node-0")
    cluster.kubelet.logs[pod] = BANNER + step(25, 1)
    await until(cluster, "early", currentStep=1)

    steps = {"trainingStep": {"regex": r"^done with (?P<iteration>\d+)", "example": None}}
    await cluster.client.merge_patch(LOG_PROFILES, manifest["metadata"]["name"], {"spec": {"patterns": steps}})
    number = 1

    async def reads_on() -> bool:
        nonlocal number
        number += 1
        cluster.kubelet.logs[pod] += line(30 + number, f"done with {number}")
        return bool((await status(cluster, "early"))["currentStep"] > 1)

    await eventually(reads_on)


async def test_a_container_that_is_started_again_in_its_pod_is_followed_on(cluster: Any) -> None:
    (pod,) = await launched(cluster, "twice", workers=1)
    cluster.kubelet.logs[pod] = BANNER + step(25, 1)
    cluster.kubelet.ended.add(pod)  # the log ends, the pod does not
    await until(cluster, "twice", currentStep=1)
    cluster.kubelet.logs[pod] += step(40, 2)
    await until(cluster, "twice", currentStep=2)
