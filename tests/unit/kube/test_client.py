import pytest
from nvcre_kube.client import ApiError, _lines
from nvcre_kube.events import NOTE_LIMIT, TRUNCATED, truncate
from nvcre_kube.resources import NODE_HEALTHS, PODS


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
