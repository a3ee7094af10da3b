"""`nvcre report`: reads one Job's run from any cluster."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from http import HTTPStatus
from pathlib import Path

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.credentials import ConfigError
from nvcre_kube.resources import JOBS

from nvcre_cli.fetch import gather
from nvcre_cli.problems import Problem, UsageProblem
from nvcre_cli.report import JobReport, build

MAX_LISTED = 8


async def report_on(
    kubeconfig: Path | None, namespace: str | None, name: str, *, context: str | None = None
) -> JobReport:
    """Without `namespace` the context's. Raises UsageProblem when there is no such Job or no way to ask."""
    try:
        client = await KubeClient.from_kubeconfig(kubeconfig, context)
    except ConfigError as error:
        raise UsageProblem(str(error)) from None
    async with client:
        try:
            return await _report_on(client, namespace or client.namespace, name)
        except CONNECTION_ERRORS as error:
            raise Problem(
                f"the API server {client.server} does not answer: {error}; --kubeconfig and --context name another one"
            ) from None


async def _report_on(client: KubeClient, namespace: str, name: str) -> JobReport:
    try:
        return build(await gather(client, namespace, name))
    except ApiError as error:
        if not error.not_found:
            raise Problem(f"Job {namespace}/{name}: {refusal(error)}") from None
        missing = error.message
    try:
        jobs = [(job["metadata"].get("namespace", ""), job["metadata"]["name"]) for job in await client.list(JOBS)]
    except ApiError as error:
        if error.not_found:
            raise UsageProblem(
                f"the cluster {client.server} has no {JOBS.plural}.{JOBS.group}; is nvcre installed there?"
            ) from None
        raise UsageProblem(f"no Job {name} in namespace {namespace}: {missing}") from None
    raise UsageProblem(f"no Job {name} in namespace {namespace}; {there_are(jobs, namespace, name)}")


def refusal(error: ApiError) -> str:
    """What the API server says, and what a person can do about it."""
    match error.status:
        case HTTPStatus.UNAUTHORIZED:
            remedy = "; renew the credentials of the kubeconfig, or name another --context"
        case HTTPStatus.FORBIDDEN:
            remedy = "; a report reads jobs, measurements and nodehealths of nvcre, and pods, events and configmaps"
        case _:
            remedy = ""
    return f"the API server answers {error}{remedy}"


def there_are(jobs: Sequence[tuple[str, str]], namespace: str, wanted: str) -> str:
    """(namespace, name) of every Job, the most similar ones first, with what would find them."""
    if not jobs:
        return "the cluster has no Job of nvcre"
    likely = sorted(jobs, key=lambda job: (-SequenceMatcher(None, job[1], wanted).ratio(), job[0] != namespace, job))
    listed = [name if where == namespace else f"{name} (-n {where})" for where, name in likely[:MAX_LISTED]]
    more = f" and {len(jobs) - MAX_LISTED} more" if len(jobs) > MAX_LISTED else ""
    return f"there are {', '.join(listed)}{more}"
