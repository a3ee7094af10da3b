"""Which log goes into status.failureLog, and what stands there when there is none (spec/reference-behaviour.md 2.9)."""

from __future__ import annotations

from collections.abc import Mapping

from nvcre_coordinator.api.job import FailureLog
from nvcre_coordinator.core.first_exit import OOM_KILLED
from nvcre_coordinator.core.limits import tail
from nvcre_coordinator.core.pods import PodRecord, last_attempt

POD_NOT_FOUND = "PodNotFound"
NO_TERMINATED_CONTAINER = "NoTerminatedContainer"


def build(culprit: PodRecord | None, pods: tuple[PodRecord, ...], tails: Mapping[str, str]) -> FailureLog:
    """OOMKilled before the first crash, before any pod that failed; the tail only where it could be read."""
    killed = [pod for pod in last_attempt(pods) if pod.exit is not None and pod.exit.reason == OOM_KILLED]
    if killed and (culprit is None or culprit.exit is None or culprit.exit.reason != OOM_KILLED):
        culprit = min(killed, key=lambda pod: pod.name)
    if culprit is None or culprit.exit is None:
        if not pods:
            return FailureLog("", "", 0, POD_NOT_FOUND, "No pod of the workload was seen.")
        return FailureLog(
            "", "", 0, NO_TERMINATED_CONTAINER, "No container of the workload's pods ended with an error."
        )
    text = tails.get(culprit.uid)
    return FailureLog(
        pod_name=culprit.name,
        node_name=culprit.node,
        exit_code=culprit.exit.code,
        reason=culprit.exit.reason or None,
        tail=tail(text) if text else None,
    )
