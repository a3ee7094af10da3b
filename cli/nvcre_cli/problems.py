"""Ends of a command that are not results: each carries its exit code and one message for a person.

Exit code 1 is a verdict about the run and nothing else, so that a script may act on it; what could not be tried, or
broke on our side, is 2.
"""

from __future__ import annotations

EXIT_PASSED = 0
EXIT_FAILED = 1
EXIT_NOT_TRIED = 2
EXIT_INTERRUPTED = 130


class Problem(Exception):
    """The command cannot go on; printed as one line (or a short list), never as a traceback."""

    exit_code = EXIT_NOT_TRIED


class UsageProblem(Problem):
    """What the person gave us cannot work."""


class Interrupted(Problem):
    exit_code = EXIT_INTERRUPTED
