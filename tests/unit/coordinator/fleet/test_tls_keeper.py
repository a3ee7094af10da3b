"""What the coordinator does where somebody deletes, or brings, what its certificates are kept in."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from nvcre_coordinator.fleet import certificates
from nvcre_coordinator.fleet.certificates import CA_CONFIG_MAP, SECRET, TlsKeeper
from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import JsonObject, Resource


class Objects:
    """The API server's part: what is there, by name."""

    def __init__(self) -> None:
        self.there: dict[str, JsonObject] = {}

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> JsonObject:
        await asyncio.sleep(0)
        if name not in self.there:
            raise ApiError(404, "NotFound", name)
        return dict(self.there[name])

    async def create(self, resource: Resource, obj: JsonObject, namespace: str | None = None, **_: Any) -> JsonObject:
        if obj["metadata"]["name"] in self.there:
            raise ApiError(409, "AlreadyExists", "")
        return await self.update(resource, obj)

    async def update(self, resource: Resource, obj: JsonObject) -> JsonObject:
        self.there[obj["metadata"]["name"]] = obj
        return obj

    @property
    def published(self) -> bytes:
        return str(self.there[CA_CONFIG_MAP]["data"]["ca.crt"]).encode()


@pytest.fixture
def objects() -> Objects:
    return Objects()


def keeper_of(objects: Objects, **more: Any) -> TlsKeeper:
    return TlsKeeper(cast(KubeClient, objects), "nvcre-system", **more)


async def looks_again(keeper: TlsKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `run` does after its wait: often enough for one look to be over."""
    monkeypatch.setattr(certificates, "LOOK_AGAIN_S", 0.0)
    task = asyncio.create_task(keeper.run())
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})


async def test_replicas_serve_by_one_authority(objects: Objects) -> None:
    first, second = keeper_of(objects), keeper_of(objects)
    await asyncio.gather(first.load(), second.load())
    assert first.material == second.material
    assert objects.published == first.material.ca_cert


async def test_a_deleted_config_map_is_published_again(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = keeper_of(objects)
    await keeper.load()
    before = keeper.material
    del objects.there[CA_CONFIG_MAP]
    await looks_again(keeper, monkeypatch)
    assert objects.published == before.ca_cert
    assert keeper.material is before


async def test_a_deleted_secret_means_new_keys_for_everybody(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = keeper_of(objects), keeper_of(objects)
    await one.load()
    await other.load()
    leaked = one.material
    del objects.there[SECRET]
    await looks_again(one, monkeypatch)
    await looks_again(other, monkeypatch)
    assert one.material == other.material
    assert one.material.ca_key != leaked.ca_key
    assert objects.published == one.material.ca_cert


async def test_somebody_else_s_certificates_are_only_read(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    made = certificates.renewed(None, ("a.example",), datetime.now(UTC))
    parts = {"ca.crt": made.ca_cert, "tls.key": made.key, "tls.crt": made.cert}
    data = {name: base64.b64encode(value).decode() for name, value in parts.items()}
    objects.there[SECRET] = secret = {"metadata": {"name": SECRET}, "data": data}
    keeper = keeper_of(objects, manage=False)
    await keeper.load()
    await looks_again(keeper, monkeypatch)
    assert objects.there == {SECRET: secret}
    del objects.there[SECRET]
    await looks_again(keeper, monkeypatch)
    assert objects.there == {}
    assert keeper.material.cert == made.cert
