"""`nvcre profile`: the built-in LogProfiles, and line by line what one makes of a log, for whoever writes one."""

from __future__ import annotations

import msgspec
from nvcre_local.cluster_objects import log_profile_files
from nvcre_logs.lines import LineFeed, unwrap
from nvcre_logs.patterns import LinePattern, LogProfileError, compile_pattern
from nvcre_logs.profile import EventPattern
from nvcre_logs.saved_log import blocks_of
from rich.table import Table
from rich.text import Text

from nvcre_cli.log_arguments import chunks_of, named_profile, no_profile, shipped_profiles
from nvcre_cli.problems import EXIT_FAILED, EXIT_PASSED, UsageProblem
from nvcre_cli.terminal import Terminal, write_result


def list_shipped() -> None:
    """Names of the built-in profiles, and what each matches."""
    table = Table(box=None, pad_edge=False)
    for column in ("NAME", "READS"):
        table.add_column(column)
    for profile in sorted(shipped_profiles(), key=lambda profile: profile.name):
        patterns = profile.spec.patterns
        reads = [f.encode_name for f in msgspec.structs.fields(patterns) if getattr(patterns, f.name) is not None]
        table.add_row(profile.name, ", ".join(reads))
    Terminal().print(table)


def show_shipped(name: str) -> None:
    """As YAML, to begin one's own with.  Raises UsageProblem."""
    files = log_profile_files()
    if name not in files:
        raise UsageProblem(no_profile(name, files))
    write_result(files[name].read_text())


def show_matches(profile: str, log: str) -> int:
    """The exit code: 0 where a line matched.  Raises UsageProblem, also where an example does not match its pattern."""
    patterns = _patterns(profile)
    console = Terminal()
    counts = dict.fromkeys(patterns, 0)
    number = 0
    for block in blocks_of(LineFeed(), chunks_of(log)):
        for raw in block.split(b"\n")[:-1]:
            number += 1
            text = unwrap(raw).text.encode()
            for name, pattern in patterns.items():
                if (captures := _captures(pattern, text)) is not None:
                    counts[name] += 1
                    console.print(Text(f"{number:7d}  {name}  {captures}"), soft_wrap=True)
    said = (f"{name}: {count} of {number} lines" for name, count in counts.items())
    console.print(Text("; ".join(said)), soft_wrap=True)
    return EXIT_PASSED if any(counts.values()) else EXIT_FAILED


def _patterns(profile: str) -> dict[str, LinePattern]:
    found: dict[str, LinePattern] = {}
    patterns = named_profile(profile).spec.patterns
    for field in msgspec.structs.fields(patterns):
        pattern = getattr(patterns, field.name)
        if isinstance(pattern, EventPattern):
            try:
                found[field.encode_name] = compile_pattern(pattern, f"spec.patterns.{field.encode_name}", ())
            except LogProfileError as error:
                raise UsageProblem(f"{profile}: {error}") from error
    return found


def _captures(pattern: LinePattern, text: bytes) -> str | None:
    match = pattern.find(text)
    if match is None:
        return None
    groups = sorted(pattern.line.groupindex.items(), key=lambda item: item[1])
    told = ((name.decode(), match[group]) for name, group in groups)
    return "  ".join(f"{name}={value.decode(errors='replace')}" for name, value in told if value is not None)
