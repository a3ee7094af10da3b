"""What volumes hold, what is refused, what is waited for."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nvcre_local.node.volume_plan import (
    EmptyDirectory,
    Files,
    Holder,
    HostPath,
    NotYet,
    ObjectFiles,
    RefusedVolume,
    TokenFile,
    object_files,
    plan,
    renew_at,
)


def config_map(items: dict[str, str] | None = None, *, optional: bool = False) -> ObjectFiles:
    return ObjectFiles(Holder.CONFIG_MAP, "m", items, optional=optional)


def secret(items: dict[str, str] | None = None) -> ObjectFiles:
    return ObjectFiles(Holder.SECRET, "s", items)


def planned(**source: Any) -> Any:
    return plan({"spec": {"volumes": [{"name": "v", **source}]}})["v"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({}, EmptyDirectory()),
        ({"emptyDir": {"medium": "Memory"}}, EmptyDirectory()),
        ({"hostPath": {"path": "/dev"}}, HostPath("/dev")),
        ({"configMap": {"name": "m"}}, Files((config_map(),))),
        (
            {"configMap": {"name": "m", "items": [{"key": "k", "path": "a/b"}], "optional": True}},
            Files((config_map({"k": "a/b"}, optional=True),)),
        ),
        ({"secret": {"secretName": "s"}}, Files((secret(),))),
        ({"projected": {"sources": [{"secret": {"name": "s"}}]}}, Files((secret(),))),
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
        ({"nfs": {"server": "s"}}, "nfs"),
        ({"persistentVolumeClaim": {"claimName": "c"}}, "persistentVolumeClaim"),
        ({"projected": {"sources": [{"clusterTrustBundle": {"path": "p"}}]}}, "projected clusterTrustBundle"),
        ({"configMap": {"name": "m", "items": [{"key": "k", "path": "../../etc/passwd"}]}}, "inside the volume"),
        ({"projected": {"sources": [{"serviceAccountToken": {"path": "/etc/x"}}]}}, "inside the volume"),
    ],
)
def test_refused_volumes_are_named(source: dict[str, Any], word: str) -> None:
    with pytest.raises(RefusedVolume, match=f"volume 'v': .*{word}"):
        planned(**source)


@pytest.mark.parametrize("name", ["../../x", "..", "a/b", "", "A"])
def test_a_volume_whose_name_is_no_directory_is_refused(name: str) -> None:
    with pytest.raises(RefusedVolume, match="the name must be of lower case letters"):
        plan({"spec": {"volumes": [{"name": name, "emptyDir": {}}]}})


MAP = {"data": {"a": "1", "b": "2"}, "binaryData": {"c": "AP8="}}


def test_files_of_a_config_map() -> None:
    assert object_files(config_map(), MAP) == {"a": b"1", "b": b"2", "c": b"\x00\xff"}
    assert object_files(config_map({"b": "x/y"}), MAP) == {"x/y": b"2"}


def test_files_of_a_secret() -> None:
    assert object_files(secret({"key": "ssh/id"}), {"data": {"key": "AP8=", "other": "AA=="}}) == {
        "ssh/id": b"\x00\xff"
    }


@pytest.mark.parametrize(
    ("source", "found", "message"),
    [
        (config_map(), None, "configmap 'm' not found"),
        (secret(), None, "secret 's' not found"),
        (config_map({"zz": "f"}), MAP, "configmap 'm' has no key 'zz'"),
        (config_map(), {"binaryData": {"c": "A"}}, "is not base64"),
        (secret(), {"data": {"c": "A"}}, "is not base64"),
        (config_map(), {"data": {"../../x": "1"}}, "the key '../../x' cannot be the name of a file"),
        (config_map(), {"data": {"..": "1"}}, "the key '..' cannot be the name of a file"),
        (config_map(), {"data": {".": "1"}}, "the key '.' cannot be the name of a file"),
    ],
)
def test_what_is_missing_is_waited_for_by_name(source: ObjectFiles, found: Any, message: str) -> None:
    with pytest.raises(NotYet, match=message):
        object_files(source, found)


def test_an_optional_config_map_may_be_missing() -> None:
    assert object_files(config_map(optional=True), None) == {}
    assert object_files(config_map({"a": "a", "zz": "z"}, optional=True), MAP) == {"a": b"1"}


def test_a_token_is_renewed_after_four_fifths_of_its_life() -> None:
    issued = datetime(2026, 1, 1, tzinfo=UTC)
    assert renew_at(issued, issued + timedelta(seconds=1000)) == issued + timedelta(seconds=800)
    assert renew_at(issued, issued) > issued
