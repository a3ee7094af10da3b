"""Reads from the API server what a report needs. Decides nothing."""

from __future__ import annotations

import asyncio

from nvcre_kube.client import KubeClient
from nvcre_kube.resources import (
    BANDWIDTH_MEASUREMENTS,
    GOODPUT_MEASUREMENTS,
    JOBS,
    NODE_HEALTHS,
    PODS,
    JsonObject,
)

from nvcre_cli.report import Gathered


async def gather(client: KubeClient, namespace: str, name: str) -> Gathered:
    """Raises ApiError; not_found when there is no such Job."""
    job = await client.get(JOBS, name, namespace)
    bandwidth, goodput, healths, pods = await asyncio.gather(
        client.list(BANDWIDTH_MEASUREMENTS, namespace),
        client.list(GOODPUT_MEASUREMENTS, namespace),
        client.list(NODE_HEALTHS),
        _pods(client, job),
    )
    measurements = [
        m for m in (*bandwidth, *goodput) if ((m.get("spec") or {}).get("jobRef") or {}).get("name") == name
    ]
    return Gathered(job, measurements, pods, healths)


async def _pods(client: KubeClient, job: JsonObject) -> list[JsonObject]:
    workload = ((job.get("status") or {}).get("workloadRef") or {}).get("name")
    if not workload:
        return []
    namespace = job["metadata"]["namespace"]
    return await client.list(PODS, namespace, label_selector=f"jobset.sigs.k8s.io/jobset-name={workload}")
