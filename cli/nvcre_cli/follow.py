"""Applies a manifest and follows its Jobs to their end, to the timeout, or to the point where waiting is of no use.

The shell around `outcome`: reads, asks it, shows progress, deletes a Job that hangs on. Gives back reports.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.resources import JOBS

from nvcre_cli.crd_fields import unknown_fields
from nvcre_cli.durations import show_duration
from nvcre_cli.fetch import gather
from nvcre_cli.manifest import Document, Manifest
from nvcre_cli.outcome import HANGS_ON_FOR_S, finished, hangs_on, is_true, terminal
from nvcre_cli.problems import Problem, UsageProblem
from nvcre_cli.progress import LineProgress, LiveProgress
from nvcre_cli.report import Gathered, JobReport, build

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.3
RULES_NOT_CHECKED = "some validation rules were not checked"  # about no field, and only beside causes that are


async def admit(client: KubeClient, manifest: Manifest) -> None:
    """Would the API server take it?  Changes nothing. Raises UsageProblem with field and rule."""
    for document in manifest.documents:
        try:
            await client.create(document.resource, document.content, document.namespace, dry_run=True)
        except ApiError as error:
            if not error.already_exists:
                raise UsageProblem(refusal(document, error)) from None


async def apply(client: KubeClient, manifest: Manifest) -> None:
    """Creates every object, or merges it into the one that is there. Raises UsageProblem with field and rule."""
    for document in manifest.documents:
        try:
            await client.create(document.resource, document.content, document.namespace)
        except ApiError as error:
            if not error.already_exists:
                raise UsageProblem(refusal(document, error)) from None
            try:
                await client.merge_patch(document.resource, document.name, document.content, document.namespace)
            except ApiError as refused:
                raise UsageProblem(refusal(document, refused)) from None


def refusal(document: Document, error: ApiError) -> str:
    """One line a broken rule: the field and the rule, as the API server's Status has them."""
    causes = [cause for cause in error.causes if RULES_NOT_CHECKED not in cause.get("message", "")] or error.causes
    lines = [f"{document.title} is refused: {error.reason or error.status}"]
    lines += [f"  {cause.get('field') or '(object)'}: {cause.get('message', '')}" for cause in causes]
    if not error.causes:
        unknown = [f"  {line}" for line in unknown_fields(document.content["kind"], error.message)]
        lines += unknown or [f"  {error.message}"]
    return "\n".join(lines)


@dataclass(slots=True)
class Watched:
    """How long a Job has been in the states that have a patience of their own."""

    document: Document
    seen: Gathered | None = None
    terminal_since: float | None = None
    hardware_failed_since: float | None = None
    report: JobReport | None = field(default=None)

    def look(self, seen: Gathered, now: float) -> None:
        self.seen = seen
        if terminal(seen.job):
            self.terminal_since = self.terminal_since or now
        if is_true(seen.job, "HardwareFailed"):
            self.hardware_failed_since = self.hardware_failed_since or now

    def end(self, now: float, began: float, timeout_s: float) -> JobReport | None:
        """The report, when there is nothing more to wait for."""
        if self.seen is None:
            return None
        if finished(self.seen.job, self.seen.measurements, terminal_for_s=now - (self.terminal_since or now)):
            return build(self.seen)
        if hangs_on(self.seen.job, hardware_failed_for_s=now - (self.hardware_failed_since or now)):
            note = f"the workload hung on for {show_duration(HANGS_ON_FOR_S)} after the hardware failed; Job deleted"
            return build(self.seen, note=note, gave_up=True)
        if now - began >= timeout_s:
            note = f"not finished within {show_duration(timeout_s)}; Job deleted"
            return build(self.seen, note=note, gave_up=True)
        return None


async def follow(
    client: KubeClient, jobs: Sequence[Document], progress: LiveProgress | LineProgress, *, timeout_s: float
) -> list[JobReport]:
    """One report a Job, in the manifest's order."""
    began = time.monotonic()
    watched = [Watched(document) for document in jobs]
    while True:
        for one in watched:
            if one.report is None:
                await _step(client, one, began, timeout_s)
        progress.show([one.seen for one in watched if one.seen is not None])
        reports = [one.report for one in watched if one.report is not None]
        if len(reports) == len(watched):
            return reports
        await asyncio.sleep(LOOK_EVERY_S)


async def _step(client: KubeClient, one: Watched, began: float, timeout_s: float) -> None:
    namespace = one.document.namespace or "default"
    try:
        one.look(await gather(client, namespace, one.document.name), time.monotonic())
    except ApiError as error:
        if error.not_found:
            raise Problem(f"{one.document.title} was deleted by somebody else while we followed it") from None
        raise Problem(f"{one.document.title}: the API server answers {error}") from None
    except CONNECTION_ERRORS as error:
        # Looked at again soon; if the API server is gone for good, whoever watches its process says so.
        log.warning("cannot_read_job job=%s error=%r", one.document.title, error)
    one.report = one.end(time.monotonic(), began, timeout_s)
    if one.report is not None and one.report.note:
        await _delete(client, namespace, one.document.name)


async def _delete(client: KubeClient, namespace: str, name: str) -> None:
    try:
        await client.delete(JOBS, name, namespace, propagation="Background")
    except ApiError as error:
        if not error.not_found:
            raise Problem(f"Job {namespace}/{name} cannot be deleted: {error}") from None
    except CONNECTION_ERRORS as error:
        raise Problem(f"Job {namespace}/{name} cannot be deleted: {error}") from None
