"""A report as rich tables: result first, then the nodes to blame and why, then figures. Prints; decides nothing."""

from __future__ import annotations

from collections.abc import Iterable

from nvcre_kube.resources import JsonObject
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nvcre_cli.outcome import FAILURES, Result
from nvcre_cli.render import alike
from nvcre_cli.render.plots import WIDTH, bar, shares, spark
from nvcre_cli.render.sizes import show_size
from nvcre_cli.report import JobReport

COLOURS = {Result.PASSED: "green", Result.FAILED: "red", Result.RUNNING: "yellow"}
BESIDE_THE_BARS = 53  # columns of the figures and of the frame
NARROW = 80  # columns; below it the columns that name nobody are left out
VERDICT_COLOURS = {"Healthy": "green", "Suspect": "yellow", "Blind": "yellow", "Maintenance": "cyan", "Faulty": "red"}


def show_component(component: JsonObject | None) -> str:
    """`GPU 5  GPU-1234…  0000:ab:00`; empty where the node as a whole, or its program, is meant."""
    if not component:
        return ""
    head = str(component.get("kind", ""))
    if component.get("index") is not None:
        head += f" {component['index']}"
    return "  ".join(part for part in (head, component.get("uuid", ""), component.get("pciBusId", "")) if part)


def show_evidence(evidence: Iterable[JsonObject]) -> str:
    lines = []
    for item in evidence:
        code = f" {item['code']}" if item.get("code") is not None else ""
        lines.append(f"{str(item.get('time', ''))[11:19]} {item.get('source', '')}{code}: {item.get('message', '')}")
    return "\n".join(lines)


def show_incident(incident: JsonObject) -> str:
    """`Xid 79 GPU has fallen off the bus`."""
    code = f" {incident['code']}" if incident.get("code") else ""
    return f"{incident.get('kind', '')}{code} {incident.get('message', '')}".strip()


def against(report: JobReport) -> list[str]:
    """The conditions that make it a failure, the cause first."""
    found = [c for kind in FAILURES for c in report.conditions if c.get("type") == kind and c.get("status") == "True"]
    return [f"{c.get('type')}: {c.get('reason')}: {c.get('message', '')}" for c in found]


def print_report(console: Console, report: JobReport) -> None:
    console.print(_verdict(report))
    narrow = console.width < NARROW
    parts = [
        _failed_nodes(report),
        _probes(report, narrow=narrow),
        _bandwidth(report, console.width),
        _goodput(report),
        _interruptions(report),
        _log_gaps(report),
        _incidents(report, narrow=narrow),
        _warnings(report, narrow=narrow),
        _nodes(report, narrow=narrow),
        _conditions(report),
    ]
    for part in parts:
        if part is not None:
            title, part.title = part.title, None  # a title of the table would be folded to the table's width
            console.print(title, style="bold")
            console.print(part)


def _verdict(report: JobReport) -> Panel:
    lines = [
        Text.assemble((str(report.result), f"bold {COLOURS[report.result]}"), f"  {report.namespace}/{report.name}")
    ]
    said = against(report)
    lines += map(Text, said)
    if not said and report.headline:
        lines.append(Text(report.headline))
    if report.note and report.note != report.headline:
        lines.append(Text(report.note, style="yellow"))
    if report.attribution and report.result is Result.FAILED:
        lines.append(Text(report.attribution, style="bold"))
    if report.simulated:
        lines.append(Text("simulated: the GPUs, the fabric and the faults come from a scenario", style="magenta"))
    return Panel(Group(*lines), border_style=COLOURS[report.result])


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title, no_wrap=True), title_justify="left", title_style="bold", header_style="")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _plain(cells: Iterable[object]) -> list[Text]:
    """Foreign text as it is: rich would read markup in it, and an emoji in the PCI address 0000:ab:00."""
    return [Text(str(cell)) for cell in cells]


def _failed_nodes(report: JobReport) -> Table | None:
    """One block a node: what is written here is what somebody acts on, so nothing is squeezed."""
    if not report.failed_nodes:
        return None
    table = _table("Failed nodes", "node", "", "")
    table.show_header = False
    for node in alike.failed_nodes(report.failed_nodes):
        component = show_component(node.get("component"))
        rows = (
            ("reason", node["reason"]),
            ("component", component),
            ("why", node.get("message", "")),
            ("evidence", show_evidence(node.get("evidence") or ())),
        )
        filled = [(name, value) for name, value in rows if value]
        for position, (name, value) in enumerate(filled):
            last = position == len(filled) - 1
            title = Text(node["name"], style="bold red") if position == 0 else Text("")
            table.add_row(title, Text(name, style="dim"), Text(str(value)), end_section=last)
    return table


def _bandwidth(report: JobReport, width: int) -> Table | None:
    if not report.bandwidth:
        return None
    limits = ", ".join(f"{key}: {rule}" for key, rule in sorted(report.thresholds.items()))
    title = f"Bandwidth {report.test_type}".rstrip() + (f"  (required: {limits})" if limits else "")
    drawn = min(WIDTH, width - BESIDE_THE_BARS)
    table = _table(title, "size", "algbw GB/s", "busbw GB/s", "samples", *(["busbw"] if drawn > 0 else ()))
    rows = sorted(report.bandwidth, key=lambda row: int(row.get("sizeBytes", 0)))
    highest = max(float(row.get("busBW") or 0) for row in rows)
    for row in rows:
        size, busbw = show_size(int(row.get("sizeBytes", 0))), row.get("busBW", "")
        figures = (size, row.get("algBW", ""), busbw, row.get("samples", ""))
        table.add_row(*_plain(figures), *_plain([bar(float(busbw or 0), highest, drawn)] if drawn > 0 else ()))
    for column in table.columns[:4]:
        column.justify = "right"
    return table


def _goodput(report: JobReport) -> Table | None:
    if not report.goodput:
        return None
    table = _table("Goodput", "measurement", "", "")
    table.show_header = False
    for goodput in report.goodput:
        parts, points = goodput["breakdownSec"], [point["seconds"] for point in goodput["stepTimes"]]
        rows = (
            ("goodput", f"{goodput['ratio']:.4f}" if "ratio" in goodput else "not measured"),
            ("steps", _steps(goodput)),
            ("time", shares(parts)),
            ("", "  ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items())),
            ("step time", f"{spark(points)}  {min(points):.3f} to {max(points):.3f} s" if points else ""),
        )
        filled = [(name, value) for name, value in rows if value]
        for position, (name, value) in enumerate(filled):
            title = goodput["name"] if position == 0 else ""
            table.add_row(*_plain((title, name, value)), end_section=position == len(filled) - 1)
    return table


def _steps(goodput: JsonObject) -> str:
    known = (
        ("up to step", goodput.get("highestStep"), ""),
        ("mean step time", goodput.get("avgStepTimeSec"), " s"),
        ("TFLOP/s per GPU", goodput.get("avgTFLOPSPerGPU"), ""),
        ("interruptions", goodput.get("interruptionCount"), ""),
    )
    return ", ".join(f"{name} {value:g}{unit}" for name, value, unit in known if value is not None)


def _interruptions(report: JobReport) -> Table | None:
    found = [past for goodput in report.goodput for past in goodput["interruptions"]]
    if not found:
        return None
    table = _table("Interruptions", "at", "after step", "reason", "lost s", "reschedule s", "resume s", "going on at")
    for past in found:
        times = (past.get("lostWorkSec", ""), past.get("rescheduleSec", ""), past.get("resumeSec", ""))
        table.add_row(
            *_plain((past["at"], past.get("step", ""), past["reason"], *times, past.get("resumedAt", "not resumed")))
        )
    return table


def _log_gaps(report: JobReport) -> Table | None:
    if not report.log_gaps:
        return None
    table = _table("Parts of logs that could not be read", "pod", "reason", "after", "before")
    for gap in report.log_gaps:
        table.add_row(*_plain((gap["pod"], gap["reason"], gap.get("after", ""), gap.get("before", ""))))
    return table


def _probes(report: JobReport, *, narrow: bool) -> Table | None:
    if not report.probes:
        return None
    table = _table(
        "Probes after the run", "node", "probe", *(() if narrow else ("busbw GB/s",)), "verdict", "comparison"
    )
    for probe in alike.probes(report.probes):
        verdict = str(probe.get("verdict") or probe.get("state", ""))
        style = {"Pass": "green", "Slow": "red"}.get(verdict, "yellow")
        figure = str(probe.get("busBandwidthGBps") or "-")
        why = str(probe.get("comparison") or probe.get("message") or "")
        kind = str(probe.get("kind", ""))
        cells = (probe["node"], kind, *(() if narrow else (figure,)))
        table.add_row(*_plain(cells), Text(verdict, style=style), Text(why))
    return table


def _incidents(report: JobReport, *, narrow: bool) -> Table | None:
    if not report.incidents:
        return None
    beside = () if narrow else ("class", "count", "seen by")
    table = _table("What the agents saw", "time", "node", "where", "what", *beside)
    for incident in alike.incidents(report.incidents):
        component = incident.get("component") or {}
        where = f"{component.get('kind', '')} {component.get('index', '')}".strip()
        cells = (
            str(incident.get("firstSeen", ""))[11:19],
            incident["node"],
            where,
            show_incident(incident),
            incident.get("faultClass", ""),
            incident.get("count", 1),
            ", ".join(incident.get("sources") or ()),
        )
        table.add_row(*_plain(cells[: len(table.columns)]))
    return table


def _warnings(report: JobReport, *, narrow: bool) -> Table | None:
    if not report.warnings:
        return None
    table = _table("Warnings (events)", "reason", *(() if narrow else ("object",)), "message")
    for warning in report.warnings:
        more = f" and {warning['objects'] - 1} more" if warning["objects"] > 1 else ""
        about = () if narrow else (warning["about"] + more,)
        table.add_row(*_plain((warning["reason"], *about, warning["message"])))
    return table


def _nodes(report: JobReport, *, narrow: bool) -> Table | None:
    if not report.nodes:
        return None
    table = _table("Nodes", "node", "verdict", *(() if narrow else ("GPUs", "driver")), "message")
    for node in alike.nodes(report.nodes):
        verdict = Text(str(node["verdict"]), style=VERDICT_COLOURS.get(node["verdict"], "yellow"))
        gpus = f"{node['gpus']} x {node['product']}" if node["product"] else str(node["gpus"])
        beside = () if narrow else (gpus, node["driver"])
        table.add_row(Text(node["name"]), verdict, *_plain(beside), Text(str(node["message"])))
    return table


def _conditions(report: JobReport) -> Table | None:
    if not report.conditions:
        return None
    table = _table("Conditions", "condition", "status", "reason", "message")
    for entry in report.conditions:
        cells = (entry.get("type", ""), entry.get("status", ""), entry.get("reason", ""), entry.get("message", ""))
        table.add_row(*_plain(cells))
    return table
