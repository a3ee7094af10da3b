"""A leading task's client; the connection below it is a list of what was sent."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.aio.client.configuration import Configuration
from nvcre_kube.client import CONNECTION_ERRORS, KubeClient
from nvcre_kube.fencing import FencedClient, NotLeading
from nvcre_kube.resources import CONFIG_MAPS

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "ns"}}
WRITES = {
    "POST": lambda client: client.create(CONFIG_MAPS, CONFIG_MAP),
    "PUT": lambda client: client.update(CONFIG_MAPS, CONFIG_MAP),
    "PATCH": lambda client: client.merge_patch(CONFIG_MAPS, "a", {}, "ns"),
    "DELETE": lambda client: client.delete(CONFIG_MAPS, "a", "ns"),
}


class Answer:
    status = 200

    async def read(self) -> bytes:
        return b'{"metadata": {"name": "a"}}'

    async def __aenter__(self) -> "Answer":
        return self

    async def __aexit__(self, *_: object) -> None: ...


class Connection:
    """`busy_s`: how long it takes to be had, before anything is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.busy_s = 0.0

    async def request(self, method: str, *_: Any, **__: Any) -> Any:
        await asyncio.sleep(self.busy_s)
        self.sent.append(method)
        return SimpleNamespace(response=Answer())


@pytest.fixture
def connection() -> Connection:
    return Connection()


def fenced(connection: Connection, until: float) -> FencedClient:
    client = KubeClient(Configuration())
    client._rest = connection  # type: ignore[assignment]
    return FencedClient(client, lambda: until)


@pytest.mark.parametrize("method", WRITES)
def test_a_write_is_sent_as_long_as_the_lease_is_ours(run_virtually, connection, method):
    run_virtually(WRITES[method](fenced(connection, until=5.0)))
    assert connection.sent == [method]


@pytest.mark.parametrize("method", WRITES)
def test_a_write_is_not_sent_once_the_lease_may_be_another_s(run_virtually, connection, method):
    async def scenario():
        client = fenced(connection, until=5.0)
        await asyncio.sleep(5.0)
        with pytest.raises(NotLeading):
            await WRITES[method](client)

    run_virtually(scenario())
    assert connection.sent == []
    assert issubclass(NotLeading, CONNECTION_ERRORS), "callers that know outages know this"


@pytest.mark.parametrize("method", WRITES)
def test_a_write_that_waits_for_a_connection_is_given_up_in_time(run_virtually, connection, method):
    async def scenario():
        connection.busy_s = 10.0
        with pytest.raises(TimeoutError):
            await WRITES[method](fenced(connection, until=5.0))
        await asyncio.sleep(20)

    run_virtually(scenario())
    assert connection.sent == []


def test_reads_go_on(run_virtually, connection):
    run_virtually(fenced(connection, until=-1.0).get(CONFIG_MAPS, "a", "ns"))
    assert connection.sent == ["GET"]
