"""Logs through the API server and at the kubelet's own endpoint: complete, in order, followed to the end."""

import asyncio
import ssl
from datetime import datetime
from typing import Any

import aiohttp
import pytest
from nvcre_kube.client import ApiError
from nvcre_kube.resources import PODS
from support.api_server import KUBELET_TOKEN

from .conftest import Api, Control


class Kubelet:
    """Asks a kubelet as an API server does."""

    def __init__(self, control: Control) -> None:
        self._ports = control.ports

    async def get(self, node: str, path: str, token: str | None = KUBELET_TOKEN, **query: str) -> tuple[int, bytes]:
        trust_anyone = ssl.create_default_context()
        trust_anyone.check_hostname, trust_anyone.verify_mode = False, ssl.CERT_NONE
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"https://127.0.0.1:{self._ports[node]}/containerLogs/{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, params=query, headers=headers, ssl=trust_anyone) as response,
        ):
            return response.status, await response.read()


async def test_output_and_errors_come_in_the_order_of_their_arrival(api: Api) -> None:
    await api.run("p", "sh", "-c", "echo 1; echo 2 >&2; echo 3; printf end")
    await api.phase("p", "Succeeded")
    assert await api.log("p") == b"1\n2\n3\nend"


async def test_every_line_has_a_time_and_a_reader_can_go_on_from_it(api: Api) -> None:
    await api.run("p", "sh", "-c", "for i in 1 2 3; do echo $i; sleep 1.1; done")
    await api.phase("p", "Succeeded")
    lines = (await api.log("p", timestamps=True)).decode().splitlines()
    stamps = [line.split(" ")[0] for line in lines]
    assert [line.split(" ")[1] for line in lines] == ["1", "2", "3"]
    assert stamps == sorted(set(stamps))
    since = datetime.fromisoformat(stamps[1])
    assert (await api.log("p", since_time=since)).splitlines()[-1] == b"3"
    assert b"1" not in await api.log("p", since_time=since)


async def test_binary_garbage_and_a_line_of_five_megabytes_arrive_whole(api: Api) -> None:
    script = (
        "import os,sys; w=lambda b: (sys.stdout.buffer.write(b), sys.stdout.flush())\n"
        "w(bytes(range(256))*4 + b'\\n'); w(b'x'*5242880 + b'\\n'); w(b'after\\n')"
    )
    await api.run("p", "python3", "-c", script)
    await api.phase("p", "Succeeded")
    log = await api.log("p")
    assert log == bytes(range(256)) * 4 + b"\n" + b"x" * 5_242_880 + b"\nafter\n"
    assert await api.log("p", tail_lines=1) == b"after\n"
    assert await api.log("p", limit_bytes=10) == bytes(range(10))


async def test_following_ends_when_the_container_does(api: Api) -> None:
    script = "echo started; while [ ! -e $(NVCRE_POD_DIR)/go ]; do sleep 0.05; done; echo last"
    await api.run("p", "sh", "-c", script)
    await api.logged("p", b"started")
    got = b""
    async with asyncio.timeout(15):
        async for chunk in api.client.pod_log("p", api.namespace, follow=True):
            if not got:
                pod = await api.pod("p")
                assert pod is not None
                await api.run("go", "touch", f"../{pod['metadata']['uid']}/go")
            got += chunk
    assert got == b"started\nlast\n"


async def test_a_deleted_pods_last_words_reach_who_follows(api: Api) -> None:
    script = "trap 'echo last words; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    await api.run("p", "sh", "-c", script)
    await api.logged("p", b"up")

    async def follow() -> bytes:
        return await api.log("p", follow=True)

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.2)
    await api.client.delete(PODS, "p", api.namespace)
    # The whole group is told, so the shell may also report that its sleep was terminated.
    assert (await asyncio.wait_for(following, 15)).endswith(b"last words\n")


async def test_the_kubelet_answers_its_api_server_only(api: Api, shared: Control) -> None:
    await api.run("p", "sh", "-c", "echo secret")
    pod = await api.phase("p", "Succeeded")
    node = pod["spec"]["nodeName"]
    other = "node-1" if node == "node-0" else "node-0"
    kubelet = Kubelet(shared)
    path = f"{api.namespace}/p/main"
    assert await kubelet.get(node, path) == (200, b"secret\n")
    assert (await kubelet.get(node, path, None))[0] == 401
    assert (await kubelet.get(node, path, "guess"))[0] == 401
    assert (await kubelet.get(other, path))[0] == 404
    assert (await kubelet.get(node, f"{api.namespace}/p/other"))[0] == 404
    assert (await kubelet.get(node, f"{api.namespace}/none/main"))[0] == 404
    assert (await kubelet.get(node, path, tailLines="x")) == (400, b"tailLines: 'x' must be a number of at least 0\n")


async def test_the_previous_run_can_be_read(api: Api, shared: Control) -> None:
    script = "if [ -e once ]; then echo second; sleep 1000; fi; touch once; echo first; exit 1"
    await api.run("p", "sh", "-c", script, restartPolicy="OnFailure")
    await api.logged("p", b"second")
    pod: Any = await api.pod("p")
    path = f"{api.namespace}/p/main"
    assert await Kubelet(shared).get(pod["spec"]["nodeName"], path, previous="true") == (200, b"first\n")


async def test_a_container_that_waits_has_no_log_yet(api: Api) -> None:
    volumes = [{"name": "v", "configMap": {"name": "never"}}]
    await api.run("p", "true", volumes=volumes)
    await api.event("p", "FailedMount")
    with pytest.raises(ApiError, match="waiting to start: ContainerCreating") as refusal:
        await api.log("p")
    assert refusal.value.status == 400
