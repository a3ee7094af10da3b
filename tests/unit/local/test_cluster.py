"""The parts of a local cluster that hold without one: its files, its objects, its children."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import yaml
from nvcre_local import cluster_objects as objects
from nvcre_local.cluster import ClusterBroken, ClusterPlan, LocalCluster, check_free, to_the_end
from nvcre_local.cluster_hardware import Hardware
from nvcre_local.processes import ChildDied, Children, NotReady, tail
from nvcre_local.scenario_file import parse_scenario

SCENARIO = parse_scenario("{nodes: 3, gpusPerNode: 4}", name="s", where="s")


def container(runtime, job: str):
    jobs = {job["name"]: job for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]}
    return jobs[job]["template"]["spec"]["template"]["spec"]["containers"][0]


def test_the_simulated_runtime_has_a_worker_a_node_and_a_launcher_for_any_number_of_them():
    runtime = objects.simulated_runtime(SCENARIO, "team")
    assert (runtime["metadata"]["name"], runtime["metadata"]["namespace"]) == ("nccl-all-reduce-runtime", "team")
    jobs = {job["name"]: job["template"]["spec"] for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]}
    assert (jobs["node"]["parallelism"], jobs["node"]["completions"]) == (3, 3)
    assert runtime["spec"]["mlPolicy"]["numNodes"] == 1  # Kubeflow Trainer makes as many launchers
    assert container(runtime, "node")["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert runtime["spec"]["mlPolicy"]["mpi"]["numProcPerNode"] == 4
    assert container(runtime, "launcher")["command"] == ["mpirun", "--allow-run-as-root"]


def test_the_real_runtime_runs_nccl_tests_over_all_gpus_of_the_machine():
    runtime = objects.real_runtime(Hardware(2, "NVIDIA H200"), Path("/opt/nccl-tests/all_reduce_perf"), "default")
    launcher = container(runtime, "launcher")
    assert launcher["command"] == ["/opt/nccl-tests/all_reduce_perf", "-b", "8M", "-e", "8G", "-f", "2", "-g", "2"]
    assert launcher["resources"]["limits"] == {"nvidia.com/gpu": 2}


def test_an_agent_is_a_pod_with_a_projected_token_of_the_coordinators_audience():
    pod = objects.agent_pod(objects.AgentPlan("node-1", "127.0.0.1:1", simulate=Path("/s/driver.json")))
    assert (pod["metadata"]["namespace"], pod["spec"]["nodeName"]) == ("nvcre-system", "node-1")
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == "nvcre-agent"
    sources = pod["spec"]["volumes"][0]["projected"]["sources"]
    assert sources[0]["serviceAccountToken"]["audience"] == "nvcre-coordinator"
    assert "--simulate=/s/driver.json" in pod["spec"]["containers"][0]["command"]


def test_an_agent_on_real_gpus_is_never_told_to_simulate():
    command = objects.agent_pod(objects.AgentPlan("node-1", "127.0.0.1:1"))["spec"]["containers"][0]["command"]
    assert not [word for word in command if word.startswith(("--simulate", "--kernel-log"))]


def test_a_kubeconfig_carries_a_token_and_is_readable_by_its_owner_alone(tmp_path):
    identity = objects.Identity.new("admin", "system:masters")
    path = objects.write_secret(tmp_path / "kubeconfig", objects.kubeconfig("https://127.0.0.1:1", identity, ca="PEM"))
    assert path.stat().st_mode & 0o777 == 0o600
    content = yaml.safe_load(path.read_text())
    assert content["users"][0]["user"] == {"token": identity.token}
    assert content["clusters"][0]["cluster"]["certificate-authority-data"] == "UEVN"


def test_log_profiles_keep_their_go_layout_as_text():
    layouts = {
        profile["metadata"]["name"]: profile["spec"]["timestamp"]["layout"] for profile in objects.log_profiles()
    }
    assert isinstance(layouts["nccl-bandwidth"], str)


def test_neither_scenario_nor_gpu_is_no_cluster():
    with pytest.raises(ClusterBroken, match="neither a scenario nor a GPU"):
        _ = ClusterPlan(None).nodes


def test_an_occupied_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ClusterBroken, match=f"cannot listen on 127.0.0.1:{port}: Address already in use; take another"
        ):
            check_free(f"127.0.0.1:{port}")
    check_free("127.0.0.1:0")


@pytest.mark.parametrize("address", ["8080", "127.0.0.1:x", "127.0.0.1:99999", ""])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ClusterBroken, match="is not HOST:PORT"):
        check_free(address)


async def test_a_ctrl_c_does_not_stop_the_taking_down_half_way():
    may_end, begun, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def take_down() -> None:
        begun.set()
        await may_end.wait()
        ended.set()

    task = asyncio.create_task(to_the_end(take_down()))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


# -- children -------------------------------------------------------------------------------------------------


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


async def test_a_ready_file_says_where_a_child_serves(tmp_path):
    children = Children(tmp_path)
    ready = tmp_path / "ready.json"
    code = f"""
        import os, time
        open("{ready}.new", "w").write('{{"url": "u"}}')
        os.rename("{ready}.new", "{ready}")
        time.sleep(60)
    """
    child = await children.start("server", python(code))
    assert await children.ready(child, ready, within_s=30) == {"url": "u"}
    await children.stop("server")
    assert child.process.returncode == -signal.SIGTERM
    assert not children.died.done()


async def test_a_child_that_dies_is_reported_with_its_last_words(tmp_path):
    children = Children(tmp_path)
    child = await children.start("server", python("import sys; sys.exit('no such thing')"))
    with pytest.raises(ChildDied, match=r"(?s)server ended by itself \(exit code 1\).*no such thing"):
        await children.ready(child, tmp_path / "never", within_s=30)


async def test_a_child_that_never_serves_is_not_waited_for_for_ever(tmp_path):
    children = Children(tmp_path)
    child = await children.start("server", python("import time; time.sleep(60)"))
    with pytest.raises(NotReady, match="server is not ready after 0 s"):
        await children.ready(child, tmp_path / "never", within_s=0)
    await children.kill(child)
    assert not children.died.done()


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("nvcre_local.processes.TERMINATE_WITHIN_S", 0.05)
    children = Children(tmp_path)
    code = f"""
        import pathlib, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path("{tmp_path}/ready").write_text("{{}}")
        time.sleep(60)
    """
    child = await children.start("server", python(code))
    await children.ready(child, tmp_path / "ready", within_s=30)
    await children.stop("server")
    assert child.process.returncode == -signal.SIGKILL


def test_children_die_with_a_parent_that_is_killed(tmp_path):
    """Not even kill -9 of the command leaves a process."""
    code = f"""
        import asyncio, sys
        from pathlib import Path
        from nvcre_local.processes import Children

        async def main():
            child = await Children(Path("{tmp_path}")).start("c", [sys.executable, "-c", "import time; time.sleep(60)"])
            print(child.process.pid, flush=True)
            await asyncio.sleep(60)

        asyncio.run(main())
    """
    with subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        descriptor = os.pidfd_open(child)
        parent.kill()
        parent.wait()
        # the descriptor becomes readable when the process is gone
        asyncio.run(_readable(descriptor))
        os.close(descriptor)


async def _readable(descriptor: int) -> None:
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, gone.set)
    await asyncio.wait_for(gone.wait(), 30)
    asyncio.get_running_loop().remove_reader(descriptor)


def test_the_tail_of_a_log_is_short_however_long_the_log(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"x" * 5_000_000 + b"\n" + b"".join(b"line %d\n" % n for n in range(100)) + b"\xff\n")
    assert tail(log, 2) == "line 99\n\ufffd"
    assert tail(tmp_path / "none") == ""


async def test_a_ctrl_c_in_the_very_moment_the_work_ends_is_not_lost(tmp_path, monkeypatch):
    """The cancellation may arrive in any turn of the loop; swallowed, the run would go on."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for turns in range(8):
        cluster = LocalCluster(ClusterPlan(SCENARIO), lambda _: None)
        cluster._children = Children(tmp_path)

        async def work() -> None:
            await asyncio.sleep(0)

        async def supervised(cluster=cluster, work=work) -> str:
            await cluster.supervise(work())
            await asyncio.Event().wait()
            return "went on"

        task = asyncio.create_task(supervised())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 10)
