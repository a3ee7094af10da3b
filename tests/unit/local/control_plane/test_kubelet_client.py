"""Whom a kubelet's log endpoint lets in: the API server by its client certificate, or whoever has the token."""

import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from nvcre_local.control_plane.certificates import Authority, Pair
from nvcre_local.node.log_server import LogServer


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, datetime.now(UTC))


@pytest.fixture
async def url(authority: Authority) -> AsyncIterator[str]:
    server = LogServer(["node-0"], "", lambda *_: None, authority.certificate)
    ports = await server.start()
    yield f"https://127.0.0.1:{ports['node-0']}/containerLogs/ns/pod/main"
    await server.close()


async def ask(url: str, pair: Pair | None = None, token: str | None = None) -> int:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context, headers=headers) as answer:
        return answer.status


async def test_a_client_certificate_of_the_authority_reads_logs(url: str, authority: Authority):
    assert await ask(url, authority.client("api-server")) == 404  # let in; there is no such Pod


@pytest.mark.parametrize("token", [None, "", "anything"])
async def test_without_certificate_no_token_helps_where_none_was_given(url: str, token: str | None):
    assert await ask(url, token=token) == 401


async def test_a_certificate_of_somebody_else_ends_the_connection(url: str, tmp_path: Path):
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", datetime.now(UTC)).client("api-server")
    with pytest.raises(aiohttp.ClientError):
        await ask(url, other)


async def test_a_serving_certificate_is_no_client_s(url: str, authority: Authority):
    with pytest.raises(aiohttp.ClientError):
        await ask(url, authority.serving("webhooks"))
