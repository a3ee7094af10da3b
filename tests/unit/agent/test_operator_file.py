"""An operator's file, whatever it is: read or refused in a sentence, soon and in little memory."""

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from nvcre_agent import config
from nvcre_agent.checks import limits
from nvcre_agent.checks.limits import LimitsError
from nvcre_agent.xid import catalogue
from nvcre_agent.xid.catalogue import CatalogueError

READERS: list[Callable[[Path], object]] = [catalogue.built, limits.built]
NESTED = "\n".join(f"      {this}: &{this} [{', '.join([f'*{last}'] * 9)}]" for last, this in pairwise("abcdefghi"))
BOMB = f"{{}}:\n  {{}}:\n    {{}}:\n      a: &a [x, x]\n{NESTED}\n"


def refusal(read: Callable[[Path], object], path: Path) -> str:
    with pytest.raises((CatalogueError, LimitsError)) as refused:
        read(path)
    return str(refused.value)


def test_everything_that_is_wrong_in_a_file_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("xid: {79: {blam: x, remedey: y}, abc: {}, 999: {class: Deadly}}\neffects: {}\n")
    with pytest.raises(CatalogueError) as caught:
        catalogue.built(file)
    assert [problem.removeprefix(f"{file}: ").split(";")[0] for problem in caught.value.problems] == [
        "xid 79: unknown key 'blam'",
        "xid 79: unknown key 'remedey'",
        "xid abc: the number must be a whole one, not 'abc'",
        "xid 999: blame is missing",
        "'effects' cannot be overridden, only xid and recovery_action",
    ]
    file.write_text("pcie_replay: {}\npcie_replays: {per_minute: 1, per_min: x}\n")
    with pytest.raises(LimitsError) as refused:
        limits.built(file)
    assert len(refused.value.problems) == 3


def of_settings(path: Path) -> str:
    return "; ".join(map(str, config.check_file(path)))


def test_a_few_lines_that_stand_for_gigabytes_are_refused_where_they_begin(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(BOMB.format("xid", "94", "blame"))
    assert refusal(catalogue.built, file) == f"{file}: has an alias (*a) in line 5; write it out"
    file.write_text(BOMB.format("pcie_replays", "per_min", "x"))
    assert refusal(limits.built, file) == f"{file}: has an alias (*a) in line 5; write it out"
    assert "has an alias" in of_settings(file)


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_file_of_text_never_holds_the_reader(read: Callable[[Path], object], tmp_path: Path) -> None:
    fifo, large, binary = tmp_path / "fifo", tmp_path / "large", tmp_path / "binary"
    os.mkfifo(fifo)
    with large.open("wb") as file:
        file.truncate(100 << 20)
    binary.write_bytes(b"\xff\xfe\0")
    for path, says in [
        (fifo, "is no regular file"),
        (tmp_path, "is no regular file"),
        (Path("/dev/zero"), "is no regular file"),
        (large, "is larger than 262144 bytes"),
        (binary, "cannot be read: 'utf-8' codec"),
        (tmp_path / "none", "cannot be read: No such file"),
    ]:
        assert f"{path}: {says}" in refusal(read, path)
    assert f"{fifo}: is no regular file" in of_settings(fifo)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "text",
    [
        f"a: {'[' * 20_000}",
        "a: 2001-99-99",
        f"a: {'9' * 5_000}",
        "? [a]\n: 1",
        "a: !!python/name:os.system x",
    ],
)
def test_yaml_that_cannot_be_built_is_a_sentence(read: Callable[[Path], object], text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    assert f"{file}: is not YAML: " in refusal(read, file)


def test_a_key_that_stands_twice_would_lose_one_of_its_values(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text('xid:\n  94: {blame: "No"}\n  94: {blame: "Yes"}\n')
    assert refusal(catalogue.built, file) == f"{file}: has 94 twice, again in line 3; keep one"
    file.write_text("pcie_replays: {per_min: 1}\npcie_replays: {per_min: 2}\n")
    assert refusal(limits.built, file) == f"{file}: has pcie_replays twice, again in line 2; keep one"


def test_a_limit_is_a_number_that_a_machine_can_hold(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    for number in ("1" * 400, ".inf", "-.inf", ".nan"):
        file.write_text(f"pcie_replays: {{per_min: {number}}}")
        assert "per_min must be a number" in refusal(limits.built, file)
