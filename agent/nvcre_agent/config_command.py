"""`nvcre-agent config check FILE`: everything that is wrong with a configuration file, before an agent is given it."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from nvcre_agent import named_files
from nvcre_agent.command_line import printable
from nvcre_agent.config import ConfigError, Given, Problem, check_file, read_file

VALID, WRONG = 0, 2

_DESCRIPTION = """\
Reads a configuration file of the agent, and the files that it names, and tells everything that is wrong with line, key,
value and remedy. It starts nothing. Keys are the flags of `nvcre-agent run`, without the dashes.
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="nvcre-agent config",
        description=_DESCRIPTION,
        epilog="exit codes:\n  0  the file can be used\n  2  it cannot, or usage\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("check",))
    parser.add_argument("file", metavar="FILE", type=Path)
    given = parser.parse_args(arguments)
    values, _ = read_file(given.file)
    problems = sorted([*check_file(given.file), *_in_named_files(values)], key=_line)
    for problem in problems:
        print(printable(str(problem)))
    if problems:
        return WRONG
    print(f"{given.file}: can be used; sets {', '.join(sorted(values)) or 'nothing'}")
    return VALID


def _line(problem: Problem) -> int:
    """Of `agent.yaml:3: listen`; 0 for the file as a whole."""
    found = re.search(r":([0-9]+):", problem.where)
    return int(found[1]) if found else 0


def _in_named_files(values: Mapping[str, Given]) -> Iterator[Problem]:
    named = {name: Path(values[name].text) for name in ("xid-catalogue", "limits") if name in values}
    try:
        named_files.read(named.get("xid-catalogue"), named.get("limits"))
    except ConfigError as error:
        for problem in error.problems:
            yield Problem(values[problem.where.removeprefix("--")].where, problem.says)
