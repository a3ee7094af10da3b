"""The control plane itself: it takes our manifests, runs TrainJobs on our kubelets, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvcre_kube.resources import PODS, TRAIN_JOBS, TRAINING_RUNTIMES

from .conftest import Api
from .processes import PATIENCE_S, REPOSITORY, Plane, processes_with, start_plane, stop

pytestmark = pytest.mark.timeout(600)


def test_it_serves_the_version_it_was_built_from(plane: Plane) -> None:
    version = json.loads(plane.kubectl("version", "-o", "json"))
    assert version["serverVersion"]["gitVersion"] == plane.kubernetes
    assert plane.kubectl("get", "--raw", "/readyz") == "ok"


def test_every_manifest_of_the_daemonset_directory_is_accepted(plane: Plane) -> None:
    """CRDs and the namespace for real, since the others need them; then all as a strictly validated dry run."""
    documents = plane.manifests()
    files = [file for file in (REPOSITORY / "daemonset").rglob("*.yaml") if file.name != "kustomization.yaml"]
    of_files = [one for file in files for one in yaml.safe_load_all(file.read_text()) if one]
    assert sorted(map(kind_and_name, documents)) == sorted(map(kind_and_name, of_files))

    plane.install()
    words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    taken = plane.kubectl(*words, stdin=yaml.safe_dump_all(documents))
    assert len(taken.splitlines()) == len(documents)


def kind_and_name(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


@pytest.mark.usefixtures("kubelets")
async def test_a_pod_s_log_is_read_through_the_api_server(api: Api) -> None:
    await api.client.create(PODS, pod(api.namespace, "talks", "sh", "-c", "echo one; echo two >&2; echo three"))

    async def done() -> bool:
        return (await api.pods()).get("talks") == "Succeeded"

    await api.until(done)
    assert await api.log("talks") == "one\ntwo\nthree\n"
    assert await api.log("talks", tail_lines=1) == "three\n"


@pytest.mark.usefixtures("kubelets")
async def test_a_train_job_of_two_nodes_completes_on_our_kubelets(api: Api) -> None:
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {
            "name": "torch",
            "namespace": api.namespace,
            "labels": {"trainer.kubeflow.org/framework": "torch"},
        },
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {"spec": {"replicatedJobs": [replicated_job()]}},
        },
    }
    await api.client.create(TRAINING_RUNTIMES, runtime)
    trainjob = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "two", "namespace": api.namespace},
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "torch"},
            "trainer": {"numNodes": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}},
        },
    }
    await api.create_train_job(trainjob)

    async def complete() -> bool:
        seen = await api.client.get(TRAIN_JOBS, "two", api.namespace)
        conditions = {one["type"]: one for one in seen.get("status", {}).get("conditions", ())}
        assert conditions.get("Failed", {}).get("status") != "True", conditions
        return conditions.get("Complete", {}).get("status") == "True"

    await api.until(complete)
    pods = await api.client.list(PODS, api.namespace)
    assert sorted(one["spec"]["nodeName"] for one in pods) == ["node-0", "node-1"]
    logs = sorted([await api.log(one["metadata"]["name"]) for one in pods])
    assert logs == ["rank 0 of 2\n", "rank 1 of 2\n"]


def test_nothing_is_left_behind(tmp_path: Path, plane: Plane) -> None:
    other = start_plane(tmp_path, plane.kubernetes)
    assert len(processes_with(str(tmp_path))) > 5
    assert stop(other.process) == 0
    assert list(other.directory.iterdir()) == []
    assert processes_with(str(tmp_path)) == []


def test_no_process_outlives_whoever_started_it(tmp_path: Path, plane: Plane) -> None:
    other = start_plane(tmp_path, plane.kubernetes)
    other.process.send_signal(signal.SIGKILL)
    other.process.wait(PATIENCE_S)
    assert_soon_empty(str(tmp_path))


def assert_soon_empty(text: str) -> None:
    import time

    until = time.monotonic() + PATIENCE_S
    while left := processes_with(text):
        assert time.monotonic() < until, left
        time.sleep(0.1)


def pod(namespace: str, name: str, *command: str) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "command": list(command)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def replicated_job() -> dict[str, Any]:
    command = ["sh", "-c", "echo rank $PET_NODE_RANK of $PET_NNODES"]
    pod_spec = {"restartPolicy": "Never", "containers": [{"name": "node", "image": "none", "command": command}]}
    return {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"backoffLimit": 0, "template": {"spec": pod_spec}},
        },
    }
