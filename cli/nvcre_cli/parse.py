"""`nvcre parse`: measures saved logs with the code that follows the logs of running pods, and prints what it found.

Prints; what a log means is nvcre_logs' business.  JSON is one document a log (schema nccl/1 or training/1), text the
verdict, then the table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvcre_logs import nccl_document, training_document
from nvcre_logs.nccl_log import NcclLog, NcclTest, Side
from nvcre_logs.patterns import LogProfileError
from nvcre_logs.saved_log import Measured, NamedProfile, guess, measure
from nvcre_logs.training_document import TrainingLog
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nvcre_cli.log_arguments import named_profile, shipped_profiles, source_of
from nvcre_cli.problems import EXIT_FAILED, EXIT_PASSED, UsageProblem
from nvcre_cli.render.sizes import show_size
from nvcre_cli.terminal import Terminal, complain, write_result

SHOWN_STEPS = 12
SHOWN_HOSTS = 8
NOTHING_KNOWN = (
    "no built-in LogProfile finds a table of nccl-tests or a training step in it; --profile takes one of your own "
    "(nvcre profile list, show, test). `nvcre-agent kernel-log` reads kernel logs."
)


def parse_logs(logs: Sequence[Path], profile: str | None, *, as_json: bool) -> int:
    """The exit code: 0 where every log has a complete and correct measurement at its end.

    Raises UsageProblem where the only log cannot be read; one of several is passed over and makes the exit code 2.
    """
    named = None if profile is None else named_profile(profile)
    console = Terminal()
    verdict = EXIT_PASSED
    for log in logs:
        try:
            measured = _measure(log, named)
        except UsageProblem as problem:
            if len(logs) == 1:
                raise
            complain(str(problem))  # the others are measured all the same
            verdict = problem.exit_code
            continue
        if not measured.ok:
            verdict = max(verdict, EXIT_FAILED)
        if as_json:
            if named is None:
                complain(f"{log}: {_read_by(measured, guessed=True)}")
            write_result(json.dumps(_document(measured, log.stem), indent=1) + "\n")
        else:
            _print(console, log, measured, guessed=named is None)
    return verdict


def _measure(log: Path, profile: NamedProfile | None) -> Measured:
    with source_of(str(log)) as source:
        try:
            return guess(source, shipped_profiles()) if profile is None else measure(source, profile)
        except LogProfileError as error:
            raise UsageProblem(str(error)) from error


def _document(measured: Measured, case: str) -> dict[str, Any]:
    if isinstance(measured.log, NcclLog):
        return nccl_document.document(measured.log, case)
    return training_document.document(measured.log, case)


# Text


def _print(console: Console, log: Path, measured: Measured, *, guessed: bool) -> None:
    if isinstance(measured.log, NcclLog):
        sentence = nccl_document.why(measured.log)
    else:
        sentence = training_document.why(measured.log)
    verdict = Text("OK" if measured.ok else "NOT OK", style="bold green" if measured.ok else "bold red")
    console.print(Text.assemble(verdict, f"  {log}: {sentence}"), soft_wrap=True)
    console.print(Text(_read_by(measured, guessed=guessed), style="dim"), soft_wrap=True)
    if isinstance(measured.log, NcclLog):
        for test in measured.log.tests:
            _print_table(console, test)
    else:
        _print_training(console, measured.log)
    if measured.log.oversized_lines:
        console.print(f"{measured.log.oversized_lines} line(s) longer than 1 MiB skipped")
    console.print()


def _read_by(measured: Measured, *, guessed: bool) -> str:
    if not guessed:
        return f"read by LogProfile {measured.profile}"
    return f"read by LogProfile {measured.profile} (a guess; --profile tells it)" if measured.found else NOTHING_KNOWN


def _print_table(console: Console, test: NcclTest) -> None:
    hosts = [f"{host} ({ranks})" for host, ranks in test.hosts.items()]
    more = f" and {len(hosts) - SHOWN_HOSTS} more" if len(hosts) > SHOWN_HOSTS else ""
    where = ", ".join(hosts[:SHOWN_HOSTS]) + more
    head = f"\n{test.name or 'a collective that the log does not name'}: {test.status}"
    if test.reasons:
        head += f" ({', '.join(test.reasons)})"
    console.print(Text(head, style="bold"), soft_wrap=True)
    ranks = f"{test.ranks} rank{'s' if test.ranks != 1 else ''} on {where}" if test.ranks else "the header is lost"
    if test.ranks_per_group:
        ranks += f", {test.ranks_per_group} a group"
    figures = []
    if test.peak_busbw_gbps is not None:
        figures.append(f"peak {test.peak_busbw_gbps:.2f} GB/s")
    if test.avg_busbw_gbps is not None:
        figures.append(f"average {test.avg_busbw_gbps:g} GB/s over all sizes")
    console.print(Text("; ".join([ranks, *figures])), soft_wrap=True)
    for failure in test.failures[:4]:
        console.print(Text(f"  {failure}"), soft_wrap=True)
    if not test.rows:
        return
    last = "error" if test.has_error_column else "wrong"
    table = Table(box=None, pad_edge=False)
    for name in ("size", "time µs", "algbw", "busbw", last, "in place µs", "algbw", "busbw", last):
        table.add_column(name, justify="right")
    for row in test.rows:
        table.add_row(show_size(row.size_bytes), *_cells(row.out_of_place), *_cells(row.in_place))
    console.print(table)


def _cells(side: Side) -> tuple[str, str, str, str]:
    last = side.wrong if side.error is None else side.error
    return (
        f"{side.time_us:g}",
        f"{side.algbw_gbps:.2f}",
        f"{side.busbw_gbps:.2f}",
        "N/A" if last is None else f"{last:g}",
    )


def _print_training(console: Console, log: TrainingLog) -> None:
    records = log.records
    if not records:
        return
    time = log.step_time()
    summary = Table(box=None, pad_edge=False, show_header=False)
    steps = [record.step or 0 for record in records]
    summary.add_row("framework", log.framework)
    summary.add_row("steps", f"{min(steps)} to {max(steps)} of {log.target}, {len(records)} logged")
    if time["mean_s"] is not None:
        first = (
            f"; {time['mean_excluding_first_s']:g} s without the first"
            if time["method"] == "printed" and len(records) > 1
            else ""
        )
        summary.add_row("step time", f"{time['mean_s']:g} s{first} ({time['method'].replace('_', ' ')})")
    tflops = [record.tflops for record in records if record.tflops is not None]
    if tflops:
        summary.add_row("TFLOP/s per GPU", f"{sum(tflops) / len(tflops):.1f}")
    for restart in log.restarts():
        lost = f"back from step {restart.highest_step} to {restart.resume_step}, {restart.lost_steps} steps lost"
        summary.add_row("restart", f"line {restart.line}: {lost}")
    for event in log.checkpoints:
        step = "" if event.step is None else f" of step {event.step}"
        took = "" if event.duration_s is None else f", {event.duration_s:g} s"
        summary.add_row("checkpoint", f"line {event.line}: {event.kind.value.replace('_', ' ')}{step}{took}")
    console.print(summary)
    table = Table(box=None, pad_edge=False)
    for name in ("step", "time s", "TFLOP/s", "loss", "at"):
        table.add_column(name, justify="right")
    shown = records if len(records) <= SHOWN_STEPS else [*records[: SHOWN_STEPS // 2], *records[-SHOWN_STEPS // 2 :]]
    for position, record in enumerate(shown):
        if len(shown) < len(records) and position == SHOWN_STEPS // 2:
            table.add_row("…")
        figures = (record.duration_s, record.tflops, record.loss)
        table.add_row(str(record.step), *("" if f is None else f"{f:g}" for f in figures), record.printed_time or "")
    console.print(table)
