"""Ends of a command that are not results: each carries its exit code and one message for a person."""

from __future__ import annotations

EXIT_PASSED = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class Problem(Exception):
    """The command cannot go on; printed as one line (or a short list), never as a traceback."""

    exit_code = EXIT_FAILED


class UsageProblem(Problem):
    """What the person gave us cannot work."""

    exit_code = EXIT_USAGE


class Interrupted(Problem):
    exit_code = EXIT_INTERRUPTED
