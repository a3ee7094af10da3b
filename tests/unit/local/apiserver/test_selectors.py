"""Label and field selectors, as kubectl and client-go write them."""

import pytest
from nvcre_local.apiserver.selectors import Selector, SelectorError, parse_fields, parse_labels

LABELS = {"app": "web", "tier": "front", "example.com/x": ""}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        ("app = web , tier=front", True),
        ("app=db", False),
        ("app!=db", True),
        ("missing!=anything", True),
        ("app in (web, db)", True),
        ("app in (db)", False),
        ("app notin (db)", True),
        ("missing notin (db)", True),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("!app", False),
        ("example.com/x", True),
        ("example.com/x=", True),
        ("app=web,!missing,tier in (front)", True),
    ],
)
def test_label_selectors(selector: str, matches: bool) -> None:
    body = {"metadata": {"labels": LABELS}}
    assert Selector(labels=parse_labels(selector)).matches(body) is matches


@pytest.mark.parametrize(
    "selector", ["app=web,", "app in web", "app in (a", "app>1", "-x=1", "=x", "a b", "app=" + "v" * 64, ","]
)
def test_malformed_label_selectors_are_refused(selector: str) -> None:
    with pytest.raises(SelectorError):
        parse_labels(selector)


def test_very_many_requirements_are_refused() -> None:
    with pytest.raises(SelectorError, match="more than"):
        parse_labels(",".join(f"a{n}=b" for n in range(1000)))


FIELDS = {"metadata.name", "status.phase", "spec.unschedulable"}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("metadata.name=p", True),
        ("metadata.name==p", True),
        ("metadata.name!=p", False),
        ("status.phase!=Running,metadata.name=p", True),
        ("status.phase=", True),
        ("spec.unschedulable=true", True),
    ],
)
def test_field_selectors(selector: str, matches: bool) -> None:
    body = {"metadata": {"name": "p"}, "spec": {"unschedulable": True}}
    assert Selector(fields=parse_fields(selector, FIELDS)).matches(body) is matches


def test_escaped_commas_belong_to_the_value() -> None:
    (found,) = parse_fields(r"metadata.name=a\,b\=c\\", FIELDS)
    assert found.value == r"a,b=c" + "\\"


def test_unsupported_fields_are_named() -> None:
    with pytest.raises(SelectorError, match=r"field label not supported: spec\.color"):
        parse_fields("spec.color=red", FIELDS)
