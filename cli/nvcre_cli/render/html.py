"""Reports as one HTML page that needs nothing beside it: no script, no font, no picture from elsewhere.

Everything that a pod or a node may have written is escaped here; the drawings are charts.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from html import escape
from importlib import resources

from nvcre_kube.resources import JsonObject

from nvcre_cli.render import alike, charts
from nvcre_cli.render.documents import overall
from nvcre_cli.render.sizes import show_size
from nvcre_cli.render.text import against, show_component, show_evidence, show_incident
from nvcre_cli.report import JobReport, moment
from nvcre_cli.terminal import printable


def as_page(reports: Sequence[JobReport], *, scenario: str | None = None) -> str:
    styles = resources.files(__package__).joinpath("report.css").read_text("utf-8")
    result = str(overall(reports))
    names = ", ".join(f"{report.namespace}/{report.name}" for report in reports)
    about = f"<p>Scenario {_text(scenario)}</p>" if scenario else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(f'{result} {names}')}</title><style>{styles}</style></head><body>"
        f"<main>{about}{''.join(map(_job, reports))}</main></body></html>\n"
    )


def _job(report: JobReport) -> str:
    sections = [
        _verdict(report),
        _section("Failed nodes", _folded(_failed_rows, report.failed_nodes, alike.failed_nodes(report.failed_nodes))),
        _section("Bandwidth", _bandwidth(report)),
        *(_section(f"Goodput {goodput['name']}", _goodput(goodput, report)) for goodput in report.goodput),
        _section("Probes after the run", _folded(_probe_rows, report.probes, alike.probes(report.probes))),
        _section("What the agents saw", _folded(_incident_rows, report.incidents, alike.incidents(report.incidents))),
        _section("Parts of logs that could not be read", _rows(report.log_gaps, ("pod", "reason", "after", "before"))),
        _section("Nodes", _folded(_node_rows, report.nodes, alike.nodes(report.nodes))),
        _section("Warnings", _rows(report.warnings, ("reason", "about", "message"))),
        _section("Conditions", _rows(report.conditions, ("type", "status", "reason", "message"))),
    ]
    return f"<article>{''.join(sections)}</article>"


def _verdict(report: JobReport) -> str:
    said = against(report) or [report.headline]
    said += [text for text in (report.note, report.attribution) if text and text not in said]
    if report.simulated:
        said.append("simulated: the GPUs, the fabric and the faults come from a scenario")
    result = str(report.result)
    title = f'<h1><span class="result {result}">{result}</span> {_text(f"{report.namespace}/{report.name}")}</h1>'
    return f"<header>{title}{''.join(f'<p>{_text(one)}</p>' for one in said if one)}</header>"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{body}</section>" if body else ""


def _failed_rows(failed: Sequence[JsonObject]) -> str:
    rows = [
        (
            node["name"],
            node["reason"],
            show_component(node.get("component")),
            node.get("message", ""),
            show_evidence(node.get("evidence") or ()),
        )
        for node in failed
    ]
    return _table(("node", "reason", "component", "why", "evidence"), rows)


def _bandwidth(report: JobReport) -> str:
    if not report.bandwidth:
        return ""
    rows = sorted((int(row["sizeBytes"]), float(row["algBW"]), float(row["busBW"])) for row in report.bandwidth)
    required = "".join(f"<p>Required: {_text(key)}: {_text(rule)}</p>" for key, rule in report.thresholds.items())
    cells = [(show_size(size), f"{algbw:.2f}", f"{busbw:.2f}") for size, algbw, busbw in rows]
    table = _table(("size", "algbw GB/s", "busbw GB/s"), cells)
    return f"{required}{charts.bandwidth(rows)}<details><summary>Figures</summary>{table}</details>"


def _goodput(goodput: JsonObject, report: JobReport) -> str:
    known = (
        ("Goodput", goodput.get("ratio"), ".4f"),
        ("Up to step", goodput.get("highestStep"), "d"),
        ("Mean step time, s", goodput.get("avgStepTimeSec"), ".3f"),
        ("TFLOP/s per GPU", goodput.get("avgTFLOPSPerGPU"), ".1f"),
        ("Interruptions", goodput.get("interruptionCount"), "d"),
    )
    parts = [f"<p>{', '.join(f'{name}: {value:{form}}' for name, value, form in known if value is not None)}</p>"]
    if goodput["breakdownSec"]:
        parts.append(charts.breakdown(goodput["breakdownSec"]))
    interruptions = goodput["interruptions"]
    if goodput["stepTimes"]:
        points = [(int(point["step"]), float(point["seconds"])) for point in goodput["stepTimes"]]
        after = [int(past["step"]) for past in interruptions if past.get("step") is not None]
        parts.append(charts.step_times(points, after))
    parts.append(_time_line(goodput, report))
    columns = ("at", "reason", "step", "lostWorkSec", "rescheduleSec", "resumeSec", "resumedAt")
    parts.append(_rows(interruptions, columns))
    return "".join(parts)


def _time_line(goodput: JsonObject, report: JobReport) -> str:
    begin, end = moment(goodput.get("startTime")), moment(goodput.get("completionTime"))
    spans = [
        charts.Span(at, moment(past.get("resumedAt")) or end, "interruption", f"{past['reason']} at {past['at']}")
        for past in goodput["interruptions"]
        if (at := moment(past.get("at"))) is not None
    ]
    spans += [
        charts.Span(seen, None, "incident", f"{incident['node']}: {show_incident(incident)}")
        for incident in report.incidents
        if (seen := moment(incident.get("firstSeen"))) is not None
    ]
    times = [time for span in spans for time in (span.begin, span.end) if time is not None]
    begins = [time for time in (begin, *times) if time is not None]
    last: datetime | None = max((time for time in (end, *times) if time is not None), default=None)
    return charts.time_line(min(begins), last, spans) if begins and last is not None else ""


def _folded(
    show: Callable[[Sequence[JsonObject]], str], every: Sequence[JsonObject], folded: Sequence[JsonObject]
) -> str:
    """What differs, open; where rows were taken together, all of them behind a click."""
    if len(folded) == len(every):
        return show(every)
    return f"{show(folded)}<details><summary>All {len(every)}</summary>{show(every)}</details>"


def _node_rows(nodes: Sequence[JsonObject]) -> str:
    return _rows(nodes, ("name", "verdict", "gpus", "product", "driver", "message"))


def _probe_rows(probes: Sequence[JsonObject]) -> str:
    rows = [
        (
            probe["node"],
            probe.get("kind", ""),
            probe.get("busBandwidthGBps") or "-",
            probe.get("verdict") or probe.get("state", ""),
            probe.get("comparison") or probe.get("message") or "",
        )
        for probe in probes
    ]
    return _table(("node", "probe", "busbw GB/s", "verdict", "comparison"), rows)


def _incident_rows(incidents: Sequence[JsonObject]) -> str:
    rows = [
        (
            incident.get("firstSeen", ""),
            incident["node"],
            show_component(incident.get("component")),
            show_incident(incident),
            incident.get("faultClass", ""),
            incident.get("count", 1),
            ", ".join(incident.get("sources") or ()),
        )
        for incident in incidents
    ]
    return _table(("first seen", "node", "where", "what", "class", "count", "seen by"), rows)


def _rows(objects: Iterable[JsonObject], columns: Sequence[str]) -> str:
    return _table(columns, [[one.get(column, "") for column in columns] for one in objects])


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _text(value: object) -> str:
    return escape(printable(str(value)))
