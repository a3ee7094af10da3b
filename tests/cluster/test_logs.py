"""Logs through a real API server from our kubelet: a coordinator that dies, and files that are rotated meanwhile."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nvcre_kube.resources import BANDWIDTH_MEASUREMENTS

from .conftest import Api
from .jobs import Jobs, condition
from .processes import Plane, coordinator_of, kubelets_of

pytestmark = pytest.mark.timeout(300)

FILE_BYTES = 65536
MEASURED = {"bandwidthMeasurement": {"logProfileRef": "nccl-loopback", "sampleInterval": "1s"}}


@pytest.fixture(scope="module")
def kubelets(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with kubelets_of(plane, tmp_path_factory.mktemp("kubelets"), "--container-log-max-size", str(FILE_BYTES)):
        yield


def row(size: int) -> str:
    """Shell that prints a row of nccl-tests whose busbw is twice its size."""
    return f"echo '{size} 1 float sum -1 58.31 {size}.00 {2 * size}.00 0 58.40 1.00 2.00 0'"


FILL = f"head -c {2 * FILE_BYTES} /dev/zero | tr '\\0' '.' | fold -w 100; echo"
"""Shell that prints more than a file of a log holds."""


async def test_what_is_rotated_away_while_nobody_listens_is_a_gap_and_all_else_counts_once(
    api: Api, tmp_path: Path, plane: Plane, system: None, kubelets: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    jobs, directory = Jobs(api, tmp_path), tmp_path_factory.mktemp("coordinators")
    begin = (row(8), jobs.wait_for("followed"), FILL, row(16), jobs.wait_for("alone"))
    await jobs.create_runtime("; ".join((*begin, row(32), FILL, row(64), jobs.wait_for("end"), row(128))), nodes=1)

    async def measured(*sizes: int) -> dict[str, Any]:
        async def there() -> dict[str, Any] | None:
            found = await api.client.list(BANDWIDTH_MEASUREMENTS, api.namespace)
            status: dict[str, Any] = (found[0].get("status") or {}) if found else {}
            return status if [one["sizeBytes"] for one in status.get("results", [])] == list(sizes) else None

        status: dict[str, Any] = await api.until(there)
        return status

    with coordinator_of(plane, directory, identity="first") as first:
        await jobs.create("turned", spec=MEASURED)
        await measured(8)
        jobs.say("followed")
        await measured(8, 16)
        first.process.kill()
        first.process.wait()
    (pod,) = await api.pods()
    jobs.say("alone")

    async def rotated() -> bool:
        return "\n64 " in await api.log(pod)

    await api.until(rotated)
    assert "\n32 " not in await api.log(pod)
    with coordinator_of(plane, directory, identity="second"):
        (gap,) = (await measured(8, 16, 64))["logGaps"]
        assert (gap["pod"], gap["reason"]) == (pod, "Rotated")
        assert gap["after"] <= gap["before"]
        jobs.say("end")
        await jobs.until("turned", "Succeeded", "WorkloadCompleted")
        await jobs.until_attributed("turned")
        status = await measured(8, 16, 64, 128)
    assert {one["samples"] for one in status["results"]} == {1}
    complete = condition(status, "Complete")
    assert complete["reason"] == "JobSucceeded"
    assert re.search(rf"lines of pod {pod} after \S+ were rotated away while nobody was connected", complete["message"])
