"""`nvcre report`: reads one Job's run from any cluster."""

from __future__ import annotations

from pathlib import Path

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, ConfigError, KubeClient

from nvcre_cli.fetch import gather
from nvcre_cli.problems import Problem, UsageProblem
from nvcre_cli.report import JobReport, build


async def report_on(kubeconfig: Path | None, namespace: str, name: str) -> JobReport:
    """Raises UsageProblem when there is no such Job or no way to ask."""
    try:
        async with await KubeClient.from_kubeconfig(kubeconfig) as client:
            return build(await gather(client, namespace, name))
    except ConfigError as error:
        raise UsageProblem(str(error)) from None
    except ApiError as error:
        if error.not_found:
            raise UsageProblem(f"no Job {name} in namespace {namespace}: {error.message}") from None
        raise Problem(f"Job {namespace}/{name}: the API server answers {error}") from None
    except CONNECTION_ERRORS as error:
        raise Problem(f"the API server does not answer: {error}") from None
