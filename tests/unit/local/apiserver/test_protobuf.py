"""Protobuf bodies of kubectl: read in full, or refused; never in part."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_local.apiserver.protobuf import MAGIC, Malformed, Unsupported, decode


def field(number: int, value: bytes | int) -> bytes:
    """One field; lengths and numbers here stay below 128."""
    return bytes([number << 3, value]) if isinstance(value, int) else bytes([number << 3 | 2, len(value)]) + value


def envelope(api_version: bytes, kind: bytes, raw: bytes) -> bytes:
    return MAGIC + field(1, field(1, api_version) + field(2, kind)) + field(2, raw) + field(3, b"") + field(4, b"")


def test_a_secret_reads_as_its_json_would() -> None:
    metadata = field(1, b"s") + field(2, b"") + field(8, b"") + field(11, field(1, b"k") + field(2, b"v"))
    raw = field(1, metadata) + field(2, field(1, b"a") + field(2, b"b")) + field(3, b"Opaque") + field(5, 1)
    assert decode(envelope(b"v1", b"Secret", raw)) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s", "labels": {"k": "v"}},
        "data": {"a": "Yg=="},
        "type": "Opaque",
        "immutable": True,
    }


@pytest.mark.parametrize(
    "raw", [envelope(b"v1", b"Pod", b""), envelope(b"v1", b"ConfigMap", field(9, b"x")), MAGIC, MAGIC + field(9, 1)]
)
def test_what_is_not_known_is_refused(raw: bytes) -> None:
    with pytest.raises(Unsupported):
        decode(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        MAGIC + b"\x0a\x7f",
        MAGIC + b"\xff" * 11,
        envelope(b"v1", b"ConfigMap", b"\x0d1234"),
        envelope(b"v1", b"ConfigMap", field(1, field(1, b"\xff"))),
        envelope(b"v1", b"ConfigMap", field(1, 1)),
        envelope(b"v1", b"ConfigMap", field(4, b"x")),
    ],
)
def test_what_is_broken_is_refused(raw: bytes) -> None:
    with pytest.raises(Malformed):
        decode(raw)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for body in (MAGIC + raw, envelope(b"v1", b"ConfigMap", raw[:120])):
        with contextlib.suppress(Malformed, Unsupported):
            assert isinstance(decode(body), dict)
