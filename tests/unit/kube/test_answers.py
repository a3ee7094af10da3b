"""What servers send that is no Kubernetes object, or one that is nested without end."""

import json

import pytest
from nvcre_kube.answers import FIELDS_IN_EVENT, FIELDS_IN_LIST, FIELDS_IN_OBJECT, decoded, is_object

DEPTH = 9_000
"""Kubernetes takes 10,000."""


def nested(name: str) -> str:
    return f'{{"metadata":{{"name":"{name}"}},"spec":{{"x":{"[" * DEPTH}"]}}"{"]" * DEPTH}}},"status":{{"s":[1]}}}}'


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"null", b"\xff\xfe", b'{"a":' * DEPTH, b'{"a":1' + b"2" * 5000]
)
def test_what_is_no_object_is_none(body):
    assert decoded(body, FIELDS_IN_OBJECT) is None


@pytest.mark.parametrize(
    ("body", "fields_at", "path"),
    [
        ("{}", FIELDS_IN_OBJECT, ()),
        ('{{"type":"ADDED","object":{}}}', FIELDS_IN_EVENT, ("object",)),
        ('{{"items":[{{"metadata":{{"name":"a"}}}},{}]}}', FIELDS_IN_LIST, ("items", 1)),
    ],
)
def test_an_object_that_is_nested_too_deep_loses_only_that_field(body, fields_at, path):
    answer = decoded(body.format(nested("b")).encode(), fields_at)
    for step in path:
        answer = answer[step]
    assert answer == {"metadata": {"name": "b"}, "spec": None, "status": {"s": [1]}}


def test_brackets_and_quotes_inside_text_are_no_nesting():
    text = '{"[\\' * 600
    body = (
        json.dumps({"metadata": {"name": text}, "spec": {"x": text}})[:-1] + f', "deep": {"[" * DEPTH}{"]" * DEPTH}}}'
    )
    assert decoded(body.encode(), FIELDS_IN_OBJECT) == {
        "metadata": {"name": text}, "spec": {"x": text}, "deep": None
    }  # fmt: skip


def test_every_object_has_metadata_and_all_but_a_bookmark_a_name():
    assert is_object({"metadata": {"name": "a"}})
    assert is_object({"metadata": {}}, named=False)
    for other in (None, 1, [], {}, {"metadata": None}, {"metadata": {"name": 1}}):
        assert not is_object(other)
