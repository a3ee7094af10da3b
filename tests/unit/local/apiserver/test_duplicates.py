"""Keys given twice, found in the text of a body."""

import pytest
from nvcre_local.apiserver import duplicates
from nvcre_local.apiserver.requests import decode, duplicate_fields


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (b'{"a": 1, "b": {"a": 2}}', []),
        (b'{"a": 1, "a": 1}', ["a"]),
        (b'{"a": {"b": [{"c": 1}, {"c": 1, "c": 2, "c": 3}]}}', ["a.b[1].c", "a.b[1].c"]),
        (b'{"a": {"a": 1}, "a": {"b": 1, "b": 2}}', ["a", "a.b"]),
        (b'{"a": %s}' % (b"9" * 5000), []),
    ],
)
def test_in_json(text: bytes, paths: list[str]) -> None:
    assert duplicates.in_json(text) == [f'duplicate field "{path}"' for path in paths]


def test_in_yaml_the_line_is_told() -> None:
    text = b"a: 1\nb:\n- {c: 1}\n- c: 1\n  c: 2\n"
    assert decode(text, "application/yaml") == {"a": 1, "b": [{"c": 1}, {"c": 2}]}
    assert duplicate_fields(text, "application/yaml") == ('yaml: line 5: key "c" already set in map',)
