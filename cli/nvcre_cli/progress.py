"""What is happening, while it happens: a status line per Job and per node on a terminal, else a line per change.

Shows what `follow` observed; asks and decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from nvcre_kube.resources import JsonObject
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nvcre_cli.durations import show_duration
from nvcre_cli.outcome import condition, failure, terminal
from nvcre_cli.render import alike
from nvcre_cli.render.sizes import show_size
from nvcre_cli.render.text import VERDICT_COLOURS
from nvcre_cli.report import Gathered, natural, warnings

MAX_LIVE_WARNINGS = 3


def job_line(seen: Gathered) -> str:
    """One Job in a few words."""
    job = seen.job
    against = failure(job)
    if condition(job, "Attributed").get("status") == "Unknown" and (against is not None or terminal(job)):
        return f"{against['reason'] if against else 'ended'}; gathering the evidence: {_why_pending(job)}".rstrip(": ")
    if against is not None:
        return f"{against['type']} ({against['reason']}) {against.get('message', '')}"
    for kind in ("Succeeded", "InProgress"):
        entry = condition(job, kind)
        if entry.get("status") == "True":
            return f"{entry['reason']}{_last_row(seen)}"
    return "submitted"


def _why_pending(job: JsonObject) -> str:
    return str(condition(job, "Attributed").get("message", ""))


def _last_row(seen: Gathered) -> str:
    rows = [row for m in seen.measurements for row in (m.get("status") or {}).get("results") or ()]
    if not rows:
        return ""
    row = max(rows, key=lambda row: int(row.get("sizeBytes", 0)))
    return f"; {show_size(int(row['sizeBytes']))} at {row.get('busBW')} GB/s busbw"


def node_line(health: JsonObject) -> str:
    status = health.get("status") or {}
    return f"{status.get('verdict', 'Unknown')} {status.get('message', '')}".rstrip()


class Progress(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def step(self, text: str) -> None: ...
    def show(self, seen: Sequence[Gathered]) -> None: ...


class LineProgress:
    """For pipes and logs: says a thing once, when it changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def step(self, text: str) -> None:
        self._console.print(
            f"{time.strftime('%H:%M:%S')} {text}", markup=False, emoji=False, highlight=False, soft_wrap=True
        )

    def show(self, seen: Sequence[Gathered]) -> None:
        for one in seen:
            self._say(f"job {one.job['metadata']['name']}", job_line(one))
            for warning in warnings(one):
                self._say(f"{warning['about']} {warning['reason']}", warning["message"])
        changed: dict[str, list[str]] = {}
        for health in _in_order(seen):
            name, text = health["metadata"]["name"], node_line(health)
            if self._is_new(name, text):
                changed.setdefault(text, []).append(name)
        for text, nodes in changed.items():
            self.step(f"{alike.names(nodes)}: {text}")

    def _say(self, subject: str, text: str) -> None:
        if self._is_new(subject, text):
            self.step(f"{subject}: {text}")

    def _is_new(self, subject: str, text: str) -> bool:
        before = self._said.get(subject)
        self._said[subject] = text
        return before != text


class LiveProgress:
    """For a terminal: a table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def step(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))

    def show(self, seen: Sequence[Gathered]) -> None:
        table = Table.grid(padding=(0, 2))
        elapsed = show_duration(time.monotonic() - self._began)
        for one in seen:
            name = one.job["metadata"]["name"]
            table.add_row(Text(f"job {name}", style="bold"), elapsed, Text(job_line(one)))
            for warning in warnings(one)[:MAX_LIVE_WARNINGS]:
                table.add_row("", Text(warning["reason"], style="yellow"), Text(warning["message"], style="yellow"))
        pods = {(p.get("spec") or {}).get("nodeName"): p for one in seen for p in one.pods}
        rows = [
            {
                "name": (name := health["metadata"]["name"]),
                "pod": ((pods.get(name) or {}).get("status") or {}).get("phase", ""),
                "line": node_line(health),
            }
            for health in _in_order(seen)
        ]
        for row in alike.nodes(rows, shown=("pod", "line")):
            verdict, _, message = row["line"].partition(" ")
            state = Text.assemble((verdict, VERDICT_COLOURS.get(verdict, "yellow")), f" {message}")
            table.add_row(row["name"], Text(f"pod {row['pod']}" if row["pod"] else "", style="dim"), state)
        self._live.update(table)


def _in_order(seen: Sequence[Gathered]) -> list[JsonObject]:
    return sorted(seen[0].node_healths, key=lambda h: natural(h["metadata"]["name"])) if seen else []


def progress_for(console: Console) -> LiveProgress | LineProgress:
    return LiveProgress(console) if console.is_terminal else LineProgress(console)
