"""Client, informer, events and election against the embedded API server."""

import asyncio
import base64
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.credentials import ConfigError
from nvcre_kube.events import EventRecorder
from nvcre_kube.informer import Informer, keep_object
from nvcre_kube.leader_election import LeaderElector
from nvcre_kube.resources import CONFIG_MAPS, EVENTS, NAMESPACES, JsonObject
from nvcre_local.apiserver import certificates
from support.api_server import ApiServer, api_server

WITHIN_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with api_server(tmp_path_factory.mktemp("apiserver")) as running:
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_kubeconfig(server.kubeconfig) as connected:
        yield connected


@pytest.fixture
async def namespace(client: KubeClient, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("_", "-")[:60].strip("-")
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


def config_map(namespace: str, name: str, **data: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name.split("-", maxsplit=1)[0]}},
        "data": data,
    }


async def until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + WITHIN_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


class Watching:
    """An informer that runs, and what its handlers heard."""

    def __init__(self, client: KubeClient, namespace: str, **settings: object) -> None:
        self.informer: Informer[JsonObject] = Informer(
            client,
            CONFIG_MAPS,
            convert=keep_object,
            namespace=namespace,
            indexers={"data": lambda obj: obj.get("data", {}).values()},
            **settings,  # type: ignore[arg-type]
        )
        self.heard: list[tuple[str | None, str | None]] = []
        self.informer.add_handler(lambda old, new: self.heard.append((_value(old), _value(new))))

    async def __aenter__(self) -> "Watching":
        self._task = asyncio.create_task(self.informer.run())
        await self.informer.wait_synced()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _value(obj: JsonObject | None) -> str | None:
    return None if obj is None else obj["data"]["v"]


async def test_it_lists_watches_and_keeps_its_indices(client, namespace):
    await client.create(CONFIG_MAPS, config_map(namespace, "a-1", v="one"))
    async with Watching(client, namespace) as watching:
        informer = watching.informer
        assert informer.get("a-1", namespace)["data"] == {"v": "one"}
        await client.create(CONFIG_MAPS, config_map(namespace, "b-1", v="one"))
        await client.merge_patch(CONFIG_MAPS, "a-1", {"data": {"v": "two"}}, namespace)
        await client.delete(CONFIG_MAPS, "b-1", namespace)
        await until(lambda: len(watching.heard) == 4)
        assert watching.heard == [(None, "one"), (None, "one"), ("one", "two"), ("one", None)]
        assert informer.by_index("data", "one") == []
        assert [obj["metadata"]["name"] for obj in informer.by_index("data", "two")] == ["a-1"]


async def test_a_selector_makes_leaving_it_a_removal(client, namespace):
    await client.create(CONFIG_MAPS, config_map(namespace, "a-1", v="one"))
    async with Watching(client, namespace, label_selector="app=a") as watching:
        await client.merge_patch(CONFIG_MAPS, "a-1", {"metadata": {"labels": {"app": "b"}}}, namespace)
        await until(lambda: (("one", None)) in watching.heard)


async def test_pages_add_up(client, namespace, monkeypatch):
    for number in range(7):
        await client.create(CONFIG_MAPS, config_map(namespace, f"a-{number}", v=str(number)))
    page = await client.list_page(CONFIG_MAPS, namespace, limit=3)
    assert len(page.items) == 3
    assert page.continue_token
    async with Watching(client, namespace) as watching:
        assert len(watching.informer) == 7
    assert len(await client.list(CONFIG_MAPS, namespace)) == 7


async def test_a_server_that_forgot_everything_is_listed_anew(tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    with api_server(tmp_path, listen=listen) as server:
        client = await KubeClient.from_kubeconfig(server.kubeconfig)
        await client.create(CONFIG_MAPS, config_map("default", "a-1", v="one"))
        for number in range(10):  # its versions are to lie ahead of all that the next life of the server counts up to
            await client.merge_patch(CONFIG_MAPS, "a-1", {"data": {"v": "one", "n": str(number)}}, "default")
        watching = Watching(client, "default")
        await watching.__aenter__()
    with api_server(tmp_path, listen=listen):
        for number in range(3):
            await client.create(CONFIG_MAPS, config_map("default", f"new-{number}", v="new"))
        await until(lambda: watching.informer.get("a-1", "default") is None and len(watching.informer) == 3)
        assert ("one", None) in watching.heard
        await watching.__aexit__()
        await client.close()


async def test_refusals_carry_the_servers_words(client, namespace):
    with pytest.raises(ApiError) as caught:
        await client.get(CONFIG_MAPS, "absent", namespace)
    assert caught.value.not_found
    assert "absent" in caught.value.message
    created = await client.create(CONFIG_MAPS, config_map(namespace, "a-1", v="one"))
    with pytest.raises(ApiError) as caught:
        await client.create(CONFIG_MAPS, config_map(namespace, "a-1", v="one"))
    assert caught.value.already_exists
    await client.update(CONFIG_MAPS, created)
    await client.merge_patch(CONFIG_MAPS, "a-1", {"data": {"v": "two"}}, namespace)
    with pytest.raises(ApiError) as caught:
        await client.update(CONFIG_MAPS, created)
    assert caught.value.conflict
    with pytest.raises(ApiError) as caught:
        await client.delete(CONFIG_MAPS, "a-1", namespace, uid="somebody-else")
    assert caught.value.conflict


async def test_a_broken_kubeconfig_is_named(tmp_path: Path):
    for text in ("", "{", "apiVersion: v1\nkind: Config\n", "[" * 5000):
        file = tmp_path / "kubeconfig"
        file.write_text(text)
        with pytest.raises(ConfigError, match="kubeconfig"):
            await KubeClient.from_kubeconfig(file)
    with pytest.raises(ConfigError, match="absent: no such file; name one with --kubeconfig"):
        await KubeClient.from_kubeconfig(tmp_path / "absent")


async def test_what_lies_inside_a_kubeconfig_does_not_stay_in_tmpdir(tmp_path: Path, monkeypatch, server):
    config = yaml.safe_load(server.kubeconfig.read_text())
    authority = base64.b64encode(certificates.make(datetime.now(UTC)).authority.encode()).decode()
    config["clusters"][0]["cluster"]["certificate-authority-data"] = authority
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for _ in range(2):  # the library remembers what it wrote
        async with await KubeClient.from_kubeconfig(file) as client:
            assert await client.list(CONFIG_MAPS, "default") == []
            assert list(temporary.iterdir()) == []


async def test_repeated_events_become_one_with_a_count(client, namespace):
    about = await client.create(CONFIG_MAPS, config_map(namespace, "a-1", v="one"))
    for recorder in (EventRecorder(client, "test"), EventRecorder(client, "restarted")):
        for _ in range(2):
            recorder.record(about, type="Warning", reason="Broken", note="it broke")
        await recorder.drain()
        assert recorder.dropped == 0
    (event,) = await client.list(EVENTS, namespace)
    assert (event["count"], event["reason"], event["involvedObject"]["name"]) == (4, "Broken", "a-1")


async def test_two_replicas_and_one_lease(client, namespace):
    leading: list[str] = []

    def elector(identity: str) -> asyncio.Task[None]:
        async def lead() -> None:
            leading.append(identity)
            await asyncio.Event().wait()

        candidate = LeaderElector(
            client,
            namespace=namespace,
            name="lease",
            identity=identity,
            lease_duration_s=3,
            renew_deadline_s=2,
            retry_period_s=0.2,
        )
        return asyncio.create_task(candidate.run(lead))

    first = elector("a")
    await until(lambda: leading == ["a"])
    second = elector("b")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await until(lambda: leading == ["a", "b"])
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
