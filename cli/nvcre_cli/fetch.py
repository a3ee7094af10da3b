"""Reads from the API server what a report needs. Decides nothing."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus

from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import (
    BANDWIDTH_MEASUREMENTS,
    CONFIG_MAPS,
    EVENTS,
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
    bandwidth, goodput, healths, pods, ran_on, events = await asyncio.gather(
        client.list(BANDWIDTH_MEASUREMENTS, namespace),
        client.list(GOODPUT_MEASUREMENTS, namespace),
        client.list(NODE_HEALTHS),
        _pods(client, job),
        _ran_on(client, namespace, name),
        client.list(EVENTS, namespace, field_selector="type=Warning"),
    )
    measurements = [
        m for m in (*bandwidth, *goodput) if ((m.get("spec") or {}).get("jobRef") or {}).get("name") == name
    ]
    return Gathered(job, measurements, pods, healths, ran_on, [e for e in events if _about(e, job)])


def _about(event: JsonObject, job: JsonObject) -> bool:
    """The Job itself, its workload, or a Pod of that; an event of an earlier Job of this name is not about this one."""
    name = (event.get("involvedObject") or {}).get("name", "")
    workload = ((job.get("status") or {}).get("workloadRef") or {}).get("name")
    ours = name == job["metadata"]["name"] or (bool(workload) and (name == workload or name.startswith(f"{workload}-")))
    last = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or ""
    return ours and str(last) >= str(job["metadata"].get("creationTimestamp", ""))


async def _pods(client: KubeClient, job: JsonObject) -> list[JsonObject]:
    workload = ((job.get("status") or {}).get("workloadRef") or {}).get("name")
    if not workload:
        return []
    namespace = job["metadata"]["namespace"]
    return await client.list(PODS, namespace, label_selector=f"jobset.sigs.k8s.io/jobset-name={workload}")


async def _ran_on(client: KubeClient, namespace: str, name: str) -> frozenset[str]:
    """Nodes of all Pods the coordinator saw, gone ones included (ConfigMap `<job>-pods`)."""
    try:
        record = await client.get(CONFIG_MAPS, f"{name}-pods", namespace)
        pods = json.loads((record.get("data") or {}).get("pods.json") or "{}").get("pods") or {}
        return frozenset(str(pod["node"]) for pod in pods.values() if pod.get("node"))
    except ApiError as error:
        if error.not_found or error.status == HTTPStatus.FORBIDDEN:
            return frozenset()
        raise
    except (ValueError, AttributeError, TypeError, KeyError):
        return frozenset()  # not a record of ours: the report does without
