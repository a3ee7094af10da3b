"""Reports as JUnit XML, for CI systems: a suite a run, a test case a Job.

A Job that failed is a failure; one that still runs or never ran is an error, because it says nothing about the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from nvcre_cli.outcome import Result
from nvcre_cli.render import alike
from nvcre_cli.report import JobReport
from nvcre_cli.terminal import printable


def as_junit(reports: Sequence[JobReport]) -> str:
    root = ET.Element("testsuites")
    failures = sum(_is_failure(report) for report in reports)
    errors = sum(report.result is not Result.PASSED for report in reports) - failures
    counts = {"tests": str(len(reports)), "failures": str(failures), "errors": str(errors)}
    suite = ET.SubElement(root, "testsuite", {"name": "nvcre", **counts})
    for report in reports:
        case = ET.SubElement(suite, "testcase", classname=printable(report.namespace), name=printable(report.name))
        if report.result is not Result.PASSED:
            kind = "failure" if _is_failure(report) else "error"
            told = ET.SubElement(case, kind, type=str(report.result), message=printable(report.headline))
            told.text = printable("\n".join(_blamed(report)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _is_failure(report: JobReport) -> bool:
    return report.result is Result.FAILED and not report.never_ran


def _blamed(report: JobReport) -> list[str]:
    failed = alike.failed_nodes(report.failed_nodes)
    nodes = [f"{node['name']}: {node['reason']}: {node.get('message', '')}" for node in failed]
    return [*nodes, *([report.attribution] if report.attribution else [])]
