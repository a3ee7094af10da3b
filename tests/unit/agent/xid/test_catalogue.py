"""An operator's catalogue file changes single keys by number; what is wrong in it is named by file, entry and key."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from nvcre_agent.xid import catalogue
from nvcre_agent.xid.catalogue import CatalogueError
from nvcre_agent.xid.classify import classify_recovery_action, classify_xid
from nvcre_protos.vocabulary import Blame, FaultClass


@pytest.fixture(autouse=True)
def as_shipped() -> Iterator[None]:
    yield
    catalogue.override(None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "xid.yaml"


def test_one_key_of_a_known_number_changes_and_the_rest_stays(file: Path) -> None:
    before = classify_xid(79)
    file.write_text('xid: {79: {remedy: "call the hotline"}}\nrecovery_action: {2: {class: NeedsReset}}')
    catalogue.override(file)
    assert classify_xid(79).remedy == "call the hotline"
    assert (classify_xid(79).fault_class, classify_xid(79).mnemonic) == (before.fault_class, before.mnemonic)
    assert classify_recovery_action(2).fault_class is FaultClass.NEEDS_RESET
    assert classify_xid(48).fault_class is FaultClass.NEEDS_RESET


def test_a_new_number_is_known_from_then_on(file: Path) -> None:
    assert classify_xid(185).fault_class is FaultClass.UNKNOWN
    file.write_text(
        'xid: {185: {class: Informational, blame: "No", clears: quiet, remedy: "plan a replacement", hardware: true}}'
    )
    catalogue.override(file)
    assert (classify_xid(185).fault_class, classify_xid(185).hardware) == (FaultClass.INFORMATIONAL, True)


def test_a_blame_that_is_not_conditional_any_more_loses_its_condition(file: Path) -> None:
    file.write_text('xid: {13: {blame: "Yes"}}')
    catalogue.override(file)
    assert (classify_xid(13).blame, classify_xid(13).condition) == (Blame.YES, "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("xid: [", "is not YAML"),
        ("- 79", "must be a mapping with xid or recovery_action"),
        ("effects: {}", "'effects' cannot be overridden"),
        ("xid: [79]", "xid must map numbers to entries"),
        ("xid: {seventy-nine: {}}", "xid seventy-nine: the number must be a whole one"),
        ("xid: {79: replace it}", "xid 79: must be a mapping"),
        ("xid: {79: {remedey: x}}", "xid 79: unknown key 'remedey'; did you mean remedy?"),
        ("xid: {79: {class: Deadly}}", "xid 79: class 'Deadly' is none of FatalHardware"),
        ("xid: {79: {clears: never}}", "xid 79: clears 'never' is none of replacement"),
        ("xid: {79: {blame: No}}", 'xid 79: blame must be a text in quotes (blame: "No"), not False'),
        ("xid: {79: {blame: Conditional}}", "xid 79: condition is given exactly where blame is Conditional"),
        ("xid: {79: {hardware: maybe}}", "xid 79: hardware must be true, false or null"),
        ("xid: {185: {class: Informational}}", "xid 185: blame is missing"),
    ],
)
def test_an_error_names_file_entry_and_key_and_changes_nothing(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    with pytest.raises(CatalogueError) as caught:
        catalogue.override(file)
    assert str(caught.value).startswith(f"{file}: {words}")
    assert classify_xid(79).blame is Blame.YES


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(CatalogueError, match="cannot be read"):
        catalogue.override(file)


def test_triage_is_that_of_schema_kernel_1() -> None:
    rows = catalogue.catalogue().xid
    hardware = {46, 48, 54, 61, 62, 63, 64, 74, 79, 92, 94, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158, 167, 169}
    assert {code for code, row in rows.items() if row.hardware} == hardware | {171, 172, 173}
    assert {code for code, row in rows.items() if row.hardware is False} == {8, 13, 31, 32, 43, 45, 69, 109, 154}


def test_every_row_says_where_it_is_from_and_which_boards_print_it() -> None:
    rows = catalogue.catalogue().xid
    assert all(row.source.startswith("https://") for row in rows.values())
    # NVLink 4 and older print 74, Blackwell prints 144-150; 136 is Hopper's alone.
    assert (rows[74].boards, rows[136].boards, {rows[code].boards for code in range(144, 151)}) == ("AH", "H", {"BG"})
