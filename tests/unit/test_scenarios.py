"""Every fault scenario has a test that is named by its number, and docs/scenarios.md says where."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "k": "tests/unit/agent/scenarios",
    "a": "tests/component/agent",
    "v": "tests/unit/coordinator/scenarios",
    "u": "tests/unit/coordinator",
    "f": "tests/component/fleet",
    "s": "tests/component/scenarios",
    "e": "tests/e2e",
}
NUMBERS = [f"{number:02d}" for number in range(1, 49)]


@cache
def numbers_of(file: Path) -> frozenset[str]:
    """By the names of the tests in it: test_20_47_... proves both."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, functions)]
    found = [re.match(r"test_((?:\d\d_)+)", name) for name in names]
    return frozenset(number for match in found if match for number in match[1].strip("_").split("_"))


def rows() -> dict[str, list[Path]]:
    """The files that the table names, by number."""
    found = {}
    for line in (ROOT / "docs/scenarios.md").read_text().splitlines():
        if row := re.fullmatch(r"\| (\d\d) \| .+ \| (.+) \|", line):
            references = (reference.partition("/") for reference in row[2].split(", "))
            found[row[1]] = [
                ROOT / FOLDERS[letter] / Path(name).parent / f"test_{Path(name).name}.py"
                for letter, _, name in references
            ]
    return found


def _file(reference: str) -> Path:
    """k/checks: tests/unit/agent/scenarios/test_checks.py."""
    letter, _, name = reference.partition("/")
    return ROOT / FOLDERS[letter] / Path(name).with_name(f"test_{Path(name).name}.py")


@pytest.mark.parametrize("number", NUMBERS)
def test_a_scenario_has_a_row_and_each_file_of_it_has_a_test_of_that_number(number: str) -> None:
    files = rows()[number]
    assert files
    for file in files:
        assert number in numbers_of(file), f"docs/scenarios.md: no test_{number}_... in {file.relative_to(ROOT)}"


def test_no_test_has_a_number_that_is_no_scenario() -> None:
    files = [file for folder in FOLDERS.values() for file in (ROOT / folder).rglob("test_*.py")]
    assert {number for file in files for number in numbers_of(file)} == set(NUMBERS)
