"""What volumes hold, what is refused, what is waited for."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nvcre_local.node.volume_plan import (
    ConfigMapFiles,
    EmptyDirectory,
    Files,
    HostPath,
    NotYet,
    RefusedVolume,
    TokenFile,
    config_map_files,
    plan,
    renew_at,
)


def planned(**source: Any) -> Any:
    return plan({"spec": {"volumes": [{"name": "v", **source}]}})["v"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({}, EmptyDirectory()),
        ({"emptyDir": {"medium": "Memory"}}, EmptyDirectory()),
        ({"hostPath": {"path": "/dev"}}, HostPath("/dev")),
        ({"configMap": {"name": "m"}}, Files((ConfigMapFiles("m"),))),
        (
            {"configMap": {"name": "m", "items": [{"key": "k", "path": "a/b"}], "optional": True}},
            Files((ConfigMapFiles("m", {"k": "a/b"}, optional=True),)),
        ),
        (
            {"projected": {"sources": [{"serviceAccountToken": {"path": "token", "audience": "x"}}]}},
            Files((TokenFile("token", "x", 3600),)),
        ),
    ],
)
def test_volumes(source: dict[str, Any], expected: Any) -> None:
    assert planned(**source) == expected


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ({"secret": {"secretName": "s"}}, "secret"),
        ({"persistentVolumeClaim": {"claimName": "c"}}, "persistentVolumeClaim"),
        ({"projected": {"sources": [{"secret": {"name": "s"}}]}}, "projected secret"),
        ({"configMap": {"name": "m", "items": [{"key": "k", "path": "../../etc/passwd"}]}}, "inside the volume"),
        ({"projected": {"sources": [{"serviceAccountToken": {"path": "/etc/x"}}]}}, "inside the volume"),
    ],
)
def test_refused_volumes_are_named(source: dict[str, Any], word: str) -> None:
    with pytest.raises(RefusedVolume, match=f"volume 'v': .*{word}"):
        planned(**source)


MAP = {"data": {"a": "1", "b": "2"}, "binaryData": {"c": "AP8="}}


def test_files_of_a_config_map() -> None:
    assert config_map_files(ConfigMapFiles("m"), MAP) == {"a": b"1", "b": b"2", "c": b"\x00\xff"}
    assert config_map_files(ConfigMapFiles("m", {"b": "x/y"}), MAP) == {"x/y": b"2"}


@pytest.mark.parametrize(
    ("source", "config_map", "message"),
    [
        (ConfigMapFiles("m"), None, "configmap 'm' not found"),
        (ConfigMapFiles("m", {"zz": "f"}), MAP, "configmap 'm' has no key 'zz'"),
        (ConfigMapFiles("m"), {"binaryData": {"c": "A"}}, "is not base64"),
    ],
)
def test_what_is_missing_is_waited_for_by_name(source: ConfigMapFiles, config_map: Any, message: str) -> None:
    with pytest.raises(NotYet, match=message):
        config_map_files(source, config_map)


def test_an_optional_config_map_may_be_missing() -> None:
    assert config_map_files(ConfigMapFiles("m", optional=True), None) == {}
    assert config_map_files(ConfigMapFiles("m", {"a": "a", "zz": "z"}, optional=True), MAP) == {"a": b"1"}


def test_a_token_is_renewed_after_four_fifths_of_its_life() -> None:
    issued = datetime(2026, 1, 1, tzinfo=UTC)
    assert renew_at(issued, issued + timedelta(seconds=1000)) == issued + timedelta(seconds=800)
    assert renew_at(issued, issued) > issued
