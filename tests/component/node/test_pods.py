"""A Pod is its containers' processes: start, end, environment, volumes, deletion."""

import asyncio
import json
from typing import Any

import pytest
from nvcre_kube.resources import CONFIG_MAPS, PODS, TOKEN_REVIEWS

from .conftest import Api, Control, processes_with


def terminated(pod: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return dict(pod["status"]["containerStatuses"][index]["state"]["terminated"])


@pytest.mark.parametrize(
    ("script", "phase", "code", "reason"),
    [
        ("exit 0", "Succeeded", 0, "Completed"),
        ("exit 3", "Failed", 3, "Error"),
        ("kill -SEGV $$$$", "Failed", 139, "Error"),  # $$$$ is $$ after expansion
    ],
)
async def test_the_exit_code_decides(api: Api, script: str, phase: str, code: int, reason: str) -> None:
    await api.run("p", "sh", "-c", script)
    end = terminated(await api.phase("p", "Succeeded", "Failed"))
    pod = await api.pod("p")
    assert pod is not None
    assert pod["status"]["phase"] == phase
    assert (end["exitCode"], end["reason"]) == (code, reason)
    assert end["startedAt"] <= end["finishedAt"]


async def test_environment_and_expansion(api: Api) -> None:
    env = [
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "GREETING", "value": "hello from $(NODE)"},
    ]
    await api.run("p", "sh", "-c", "env; pwd", container={"env": env})
    pod = await api.phase("p", "Succeeded")
    lines = (await api.log("p")).decode().splitlines()
    seen = dict(line.split("=", 1) for line in lines if "=" in line)
    assert seen["GREETING"] == f"hello from {pod['spec']['nodeName']}"
    assert seen["NVCRE_POD_DIR"] == lines[-1]
    assert "NOT_FOR_PODS" not in seen


async def test_running_is_ready_and_a_command_needs_no_shell(api: Api) -> None:
    await api.run("p", "sleep", "1000")
    pod = await api.phase("p", "Running")
    assert {c["type"]: c["status"] for c in pod["status"]["conditions"]}["Ready"] == "True"
    assert pod["status"]["podIP"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("command", "message"),
    [([], "has no command"), (["sh", "-c", "true"], "secretKeyRef is not supported")],
)
async def test_what_cannot_start_here_waits_and_says_why(api: Api, command: list[str], message: str) -> None:
    env = [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}] if command else []
    await api.run("p", *command, container={"env": env})

    async def waiting() -> dict[str, Any] | None:
        pod = await api.pod("p") or {}
        statuses = pod.get("status", {}).get("containerStatuses") or [{}]
        return statuses[0].get("state", {}).get("waiting")  # type: ignore[no-any-return]

    state = await api.until(waiting)
    assert state["reason"] == "CreateContainerConfigError"
    assert message in state["message"]
    assert message in await api.event("p", "FailedToStart")
    await api.client.delete(PODS, "p", api.namespace)
    await api.gone("p")


@pytest.mark.parametrize(
    ("command", "spec", "message"),
    [
        ("no-such-program", {}, "executable file not found in $PATH"),
        ("/no/such/program", {}, "no such file"),
        ("/etc/passwd", {}, "Permission denied"),
        ("true", {"workingDir": "/no/such/dir"}, "workingDir '/no/such/dir' does not exist"),
    ],
)
async def test_a_program_that_cannot_be_run_fails_with_its_name(
    api: Api, command: str, spec: dict[str, Any], message: str
) -> None:
    await api.run("p", command, container=spec)
    end = terminated(await api.phase("p", "Failed"))
    assert (end["exitCode"], end["reason"]) == (127, "StartError")
    assert message in end["message"]


async def test_init_containers_run_one_after_the_other_before_the_rest(api: Api) -> None:
    init = [
        {"name": "a", "image": "x", "command": ["sh", "-c", "echo a > $(NVCRE_POD_DIR)/volumes/work/f"]},
        {"name": "b", "image": "x", "command": ["sh", "-c", "echo b >> $(NVCRE_POD_DIR)/volumes/work/f"]},
    ]
    volumes = [{"name": "work", "emptyDir": {}}]
    await api.run("p", "cat", "$(NVCRE_POD_DIR)/volumes/work/f", initContainers=init, volumes=volumes)
    await api.phase("p", "Succeeded")
    assert await api.log("p", container="main") == b"a\nb\n"


async def test_a_failed_init_container_fails_the_pod(api: Api) -> None:
    await api.run("p", "true", initContainers=[{"name": "a", "image": "x", "command": ["false"]}])
    pod = await api.phase("p", "Failed")
    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 1
    assert "waiting" in pod["status"]["containerStatuses"][0]["state"]


async def test_on_failure_restarts_and_keeps_the_previous_log(api: Api) -> None:
    script = "f=$(NVCRE_POD_DIR)/once; if [ -e $f ]; then echo second; sleep 1000; fi; touch $f; echo first; exit 1"
    await api.run("p", "sh", "-c", script, restartPolicy="OnFailure")
    await api.logged("p", b"second")
    pod = await api.phase("p", "Running")
    status = pod["status"]["containerStatuses"][0]
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 1


async def test_crash_loop_backs_off(api: Api) -> None:
    await api.run("p", "false", restartPolicy="Always")

    async def backing_off() -> bool:
        pod = await api.pod("p") or {}
        statuses = pod.get("status", {}).get("containerStatuses") or [{}]
        return bool(statuses[0].get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff")

    await api.until(backing_off)
    await api.client.delete(PODS, "p", api.namespace)
    await api.gone("p")


async def test_deadline(api: Api) -> None:
    await api.run("p", "sleep", "1000", activeDeadlineSeconds=1, terminationGracePeriodSeconds=1)
    pod = await api.phase("p", "Failed")
    assert pod["status"]["reason"] == "DeadlineExceeded"


async def test_deletion_is_told_to_the_process_and_the_directory_goes(api: Api, shared: Control) -> None:
    script = "trap 'echo bye > $(NVCRE_POD_DIR)/../bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    await api.run("p", "sh", "-c", script)
    await api.logged("p", b"up")
    pod = await api.pod("p")
    assert pod is not None
    directory = shared.directory / "root" / "pods" / pod["metadata"]["uid"]
    assert directory.is_dir()
    await api.client.delete(PODS, "p", api.namespace)
    await api.gone("p")
    assert (directory.parent / "bye").read_text() == "bye\n"

    async def cleaned() -> bool:
        return not directory.exists() and not list((shared.directory / "root" / "logs").glob(f"{api.namespace}_p_*"))

    await api.until(cleaned)


async def test_who_ignores_sigterm_is_killed_with_all_its_processes(api: Api) -> None:
    script = "trap '' TERM; (setsid sleep 7771 &); sleep 7772 & echo up; sleep 7773"
    await api.run("p", "sh", "-c", script, terminationGracePeriodSeconds=1)
    await api.logged("p", b"up")
    await api.client.delete(PODS, "p", api.namespace)
    await api.gone("p")

    async def dead() -> bool:
        return not any(processes_with(f"sleep\0{number}") for number in (7771, 7772, 7773))

    await api.until(dead)


async def test_what_a_container_leaves_behind_ends_with_it(api: Api) -> None:
    await api.run("p", "sh", "-c", "sleep 7781 & (setsid sleep 7782 &); exit 0")
    await api.phase("p", "Succeeded")

    async def dead() -> bool:
        return not any(processes_with(f"sleep\0{number}") for number in (7781, 7782))

    await api.until(dead)


async def test_forced_deletion_kills_at_once(api: Api) -> None:
    await api.run("p", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done", "mark-7791")
    await api.logged("p", b"up")
    await api.client.delete(PODS, "p", api.namespace, grace_period_s=0)

    async def dead() -> bool:
        return not processes_with("mark-7791")

    await api.until(dead)


async def test_a_config_map_is_waited_for_and_refreshed_in_place(api: Api) -> None:
    volumes = [{"name": "conf", "configMap": {"name": "settings"}}]
    script = "cd $(NVCRE_POD_DIR)/volumes/conf; cat a; while ! grep -q new a; do sleep 0.05; done; cat a; ls"
    await api.run("p", "sh", "-c", script, volumes=volumes)
    assert "configmap 'settings' not found" in await api.event("p", "FailedMount")
    metadata = {"name": "settings", "namespace": api.namespace}
    await api.client.create(
        CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "old\n", "b": "x"}}
    )
    await api.logged("p", b"old")
    await api.client.merge_patch(CONFIG_MAPS, "settings", {"data": {"a": "new\n", "b": None}}, api.namespace)
    await api.phase("p", "Succeeded")
    assert (await api.log("p")).splitlines()[:2] == [b"old", b"new"]


async def test_the_projected_token_is_bound_to_the_pod(api: Api) -> None:
    source = {"serviceAccountToken": {"path": "token", "audience": "nvcre-coordinator", "expirationSeconds": 600}}
    volumes = [{"name": "t", "projected": {"sources": [source]}}]
    script = "cat volumes/t/token; echo; stat -c %a volumes/t/token; sleep 1000"
    await api.run("p", "sh", "-c", script, volumes=volumes, serviceAccountName="worker")
    token, mode = (await api.logged("p", b"600")).decode().split()
    assert mode == "600"
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": ["nvcre-coordinator"]},
    }
    status = (await api.client.create(TOKEN_REVIEWS, review))["status"]
    assert status["authenticated"] is True
    assert status["user"]["username"] == f"system:serviceaccount:{api.namespace}:worker"
    assert status["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["p"]


async def test_in_a_scenario_its_programs_win_over_names_and_paths(own_api: Api, control: Control) -> None:
    simulation = control.directory / "simulation"
    shim = simulation / "bin" / "mpirun"
    shim.parent.mkdir(parents=True)
    shim.write_text("#!/bin/sh\necho shim on $NVCRE_NODE_NAME as $NVCRE_POD_NAME in $NVCRE_SIMULATION\n")
    shim.chmod(0o755)
    driver = simulation / "nodes" / "node-0" / "driver.json"
    driver.parent.mkdir(parents=True)
    driver.write_text(json.dumps({"product": "NVIDIA H100 80GB HBM3"}))
    control.node("--scheduler", "--simulation", str(simulation), nodes=("node-0",))
    for name, program in (("by-name", "mpirun"), ("by-path", "/usr/local/mpi/bin/mpirun")):
        await own_api.run(name, program)
        await own_api.phase(name, "Succeeded")
        assert await own_api.log(name) == f"shim on node-0 as {name} in {simulation}\n".encode()


async def test_many_pods_at_once(api: Api) -> None:
    await asyncio.gather(*(api.run(f"p-{i}", "sh", "-c", f"echo {i}; exit {i % 2}") for i in range(40)))
    for i in range(40):
        assert terminated(await api.phase(f"p-{i}", "Succeeded", "Failed"))["exitCode"] == i % 2
    assert await api.log("p-17") == b"17\n"
