import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration
from nvcre_kube.client import ApiError, KubeClient, _lines
from nvcre_kube.events import NOTE_LIMIT, TRUNCATED, truncate
from nvcre_kube.resources import CONFIG_MAPS, NODE_HEALTHS, PODS


def test_paths():
    assert PODS.path("ns", "p", "log") == "/api/v1/namespaces/ns/pods/p/log"
    assert PODS.path() == "/api/v1/pods"
    assert NODE_HEALTHS.path(name="n/1") == "/apis/nvcre.nvidia.com/v1alpha1/nodehealths/n%2F1"
    with pytest.raises(ValueError, match="needs a namespace"):
        PODS.path(name="p")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"code": 409, "reason": "Conflict", "message": "changed"}', "409 Conflict: changed"),
        (b"<html>bad gateway</html>", "500 : <html>bad gateway</html>"),
        (b"\xff\xfe", "500 : ��"),
        (b"", "500 : no message"),
    ],
)
def test_an_error_says_what_the_server_said(body, text):
    assert str(ApiError.from_response(500, body)) == text


async def test_watch_lines_survive_any_chunking():
    async def chunks():
        for piece in (b'{"a"', b": 1}\n", b"\n", b'{"b": 2}\n{"c"', b": 3}\n"):
            yield piece

    assert [line async for line in _lines(chunks())] == [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}']


def test_a_note_is_cut_at_a_character():
    cut = truncate("é" * NOTE_LIMIT, NOTE_LIMIT)
    assert cut.endswith(TRUNCATED)
    assert len(cut.encode()) <= NOTE_LIMIT


@pytest.mark.parametrize("name", [".", ".."])
async def test_a_name_that_is_a_way_up_is_nobody_s(name):
    configuration = Configuration()
    configuration.host = "http://127.0.0.1:1"
    async with KubeClient(configuration) as client:
        with pytest.raises(ApiError) as error:
            await client.get(NODE_HEALTHS, name)
    assert error.value.not_found


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"<html>proxy</html>", "the answer is not an object"),
        (b"[]", "the answer is not an object"),
        (b'{"items": [1]}', "the answer is not an object of Kubernetes"),
    ],
)
async def test_an_answer_that_no_api_server_gives_is_an_error_of_the_way_there(body, told):
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body + b"\n")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    obj = {"metadata": {"name": "a", "namespace": "ns"}}
    async with KubeClient(configuration) as client:
        for asked in (
            client.get(CONFIG_MAPS, "a", "ns"),
            client.update(CONFIG_MAPS, obj),
            client.update_status(CONFIG_MAPS, obj),
            client.merge_patch(CONFIG_MAPS, "a", {}, "ns"),
        ):
            with pytest.raises(ApiError, match=told) as caught:
                await asked
            assert caught.value.status == 502
        with pytest.raises(ApiError, match=r"the answer is not (an object|a list of objects)$"):
            await client.list(CONFIG_MAPS, "ns")
        with pytest.raises(ApiError, match="watch of configmaps: an event is not one"):
            await anext(client.watch(CONFIG_MAPS, "ns", resource_version="1"))
    await runner.cleanup()
