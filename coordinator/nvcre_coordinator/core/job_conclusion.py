"""After the end of a Job: are the thresholds met, and which nodes are to blame?

The terminal condition is written at once; `Attributed` says Unknown/Pending until the agents of the run have confirmed
everything up to its end (at most 15 s; up to 30 s while a silent agent's node Lease cannot be judged yet) and, after a
violated threshold, the ordered probes have ended (at most 5 minutes) and, where they name nobody and the Job asks for
it, pairs of its nodes were tested (core/pair_search.py).  Then failedNodes is written once.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import msgspec

from nvcre_coordinator.api import names
from nvcre_coordinator.api.conditions import Condition, ConditionStatus, ConditionType, Reason, find, is_true
from nvcre_coordinator.api.job import FailedNode, FailedNodeReason, Job, JobStatus, SlowNodeSearch
from nvcre_coordinator.core import failure_log, limits, pair_job, pair_search, thresholds
from nvcre_coordinator.core.attribution import AgentState, Attribution, FailedRun, attribute_failure
from nvcre_coordinator.core.conditions import Conditions, Stamp, put
from nvcre_coordinator.core.durations import go_duration, parse_go_duration
from nvcre_coordinator.core.goodput_status import KEYS as GOODPUT_KEYS
from nvcre_coordinator.core.naming import label_value
from nvcre_coordinator.core.observed import Action, Decision, Gone, Measured, Observed
from nvcre_coordinator.core.slow_nodes import attribute_slowness
from nvcre_coordinator.core.slow_pairs import attribute_pairs

CONFIRMATION_LIMIT = timedelta(seconds=15)
LEASE_LIMIT = timedelta(seconds=30)
STALL_LOGS_LIMIT = timedelta(seconds=45)  # controllers/stall_logs.py gives up earlier
PROBE_LIMIT = timedelta(minutes=5)
SETTLE = timedelta(seconds=2)  # exits of one collective have one-second resolution and arrive one by one
POLL = timedelta(seconds=15)
CONFIRMATION_POLL = timedelta(seconds=1)
DEFAULT_MEASUREMENT_TIMEOUT = timedelta(minutes=5)
PROBING = "Waiting for the probes of the run's nodes"
PAIRING = "Waiting for Jobs that test pairs of nodes"


def ended_at(status: JobStatus) -> datetime | None:
    """When the terminal condition was written."""
    for kind in (ConditionType.SUCCEEDED, ConditionType.FAILED):
        condition = find(status.conditions, kind)
        if condition is not None and condition.status is ConditionStatus.TRUE:
            return condition.last_transition_time
    return None


def failed(status: JobStatus) -> bool:
    return is_true(status.conditions, ConditionType.FAILED)


def stalled(status: JobStatus) -> bool:
    """Its pods still ran when it ended: who stopped first is in their logs."""
    failed = find(status.conditions, ConditionType.FAILED)
    return failed is not None and failed.status is ConditionStatus.TRUE and failed.reason == Reason.WORKLOAD_STALLED


def concluded(status: JobStatus) -> bool:
    condition = find(status.conditions, ConditionType.ATTRIBUTED)
    return condition is not None and condition.status is not ConditionStatus.UNKNOWN


def pairing(status: JobStatus) -> bool:
    """Waiting for the Jobs of pairs."""
    condition = find(status.conditions, ConditionType.ATTRIBUTED)
    return condition is not None and condition.reason == Reason.PENDING and condition.message.startswith(PAIRING)


def wants_probes(job: Job) -> bool:
    """A run that ended well and either has a threshold on its nodes, or was too slow with no hardware to explain it."""
    if concluded(job.status) or not is_true(job.status.conditions, ConditionType.SUCCEEDED):
        return False
    if find(job.status.conditions, ConditionType.VALIDATION_FAILED) is None:
        return _on_nodes(job)
    return _unexplained(job) and _may_probe(job)


def wants_pairs(job: Job, measured: Measured) -> bool:
    """A run whose bus bandwidth was too low: pairs are judged by that."""
    bandwidth = measured.values.get(thresholds.BUS_BANDWIDTH)
    demanded = job.spec.thresholds.get(thresholds.BUS_BANDWIDTH)
    if job.spec.slow_node_search is not SlowNodeSearch.NODE_PAIRS or bandwidth is None or demanded is None:
        return False
    if concluded(job.status) or not _unexplained(job) or job.searching_job is not None:  # no pairs of pairs
        return False
    return bool(thresholds.evaluate({thresholds.BUS_BANDWIDTH: demanded}, {thresholds.BUS_BANDWIDTH: bandwidth}))


def _on_nodes(job: Job) -> bool:
    return thresholds.MIN_NODE_BUS_BANDWIDTH in job.spec.thresholds


def _may_probe(job: Job) -> bool:
    return _on_nodes(job) or job.spec.slow_node_search is not SlowNodeSearch.OFF


def run_took(status: JobStatus) -> timedelta:
    end = ended_at(status)
    return end - status.workload_start_time if end is not None and status.workload_start_time else timedelta(0)


def _unexplained(job: Job) -> bool:
    """A violated threshold, and no hardware evidence."""
    validation = find(job.status.conditions, ConditionType.VALIDATION_FAILED)
    return validation is not None and validation.reason == Reason.THRESHOLD_VIOLATED and not _hardware(job.status)


def conclude(seen: Observed, status: JobStatus, stamp: Stamp) -> Decision:
    """`status` is terminal."""
    end = ended_at(status)
    if end is None or concluded(status):
        return Decision(status)
    if status.workload_ref is None:
        return _nothing(status, "No workload was created", stamp)
    status, patience = _judge_thresholds(seen, status, end, stamp.now)
    unconfirmed, confirmation = _confirmation(seen, status, end, stamp.now)
    waits = [wait for wait in (patience, confirmation, _settling(status, end, seen, stamp.now)) if wait is not None]
    if waits:
        return _pending(status, _waiting_for(seen, patience, unconfirmed), min(waits), unconfirmed, stamp)
    if is_true(status.conditions, ConditionType.FAILED):
        return _conclude_failure(seen, status, end, stamp)
    return _conclude_success(seen, status, stamp)


def _conclude_success(seen: Observed, status: JobStatus, stamp: Stamp) -> Decision:
    validation = find(status.conditions, ConditionType.VALIDATION_FAILED)
    slow = validation is not None and validation.reason == Reason.THRESHOLD_VIOLATED
    if _hardware(status):
        message = f"Hardware evidence names {', '.join(entry.name for entry in _hardware(status))}"
        if slow:
            why = "no more pairs are run" if pairing(status) else "no node was probed"
            message += (
                f"; whether it also explains the violated threshold was not tested ({why}): "
                "run again without the named nodes"
            )
        return _done(status, Attribution((), True, Reason.NODES_NAMED, message), stamp)
    if validation is not None and slow:
        return _conclude_slowness(seen, status, validation, stamp)
    return _nothing(status, "The run ended well and its agents saw no hardware failure", stamp)


def _judge_thresholds(
    seen: Observed, status: JobStatus, end: datetime, now: datetime
) -> tuple[JobStatus, timedelta | None]:
    """ValidationFailed of a Job that succeeded, or how long to wait for values at most before looking again."""
    demanded = seen.job.spec.thresholds
    if not demanded or not is_true(status.conditions, ConditionType.SUCCEEDED):
        return status, None
    if find(status.conditions, ConditionType.VALIDATION_FAILED) is not None:
        return status, None
    outcome: tuple[thresholds.Violation, ...] | thresholds.Problem | timedelta | None = thresholds.check(demanded)
    if outcome is None:
        outcome = _missing_values(seen, end, now)
    if outcome is None:
        outcome = thresholds.evaluate(demanded, seen.measured.values)
    match outcome:
        case timedelta():
            return status, outcome
        case thresholds.Problem(reason=reason, message=message):
            failed = True
        case (first, *_):
            failed, reason, message = True, Reason.THRESHOLD_VIOLATED, first.message
        case _:
            failed, reason, message = False, Reason.THRESHOLDS_MET, "All performance thresholds satisfied"
    conditions = put(
        status.conditions,
        ConditionType.VALIDATION_FAILED,
        ConditionStatus.TRUE if failed else ConditionStatus.FALSE,
        reason=reason,
        message=message,
        stamp=Stamp(now, seen.job.metadata.generation),
    )
    return msgspec.structs.replace(status, conditions=conditions), None


def _missing_values(seen: Observed, end: datetime, now: datetime) -> timedelta | thresholds.Problem | None:
    """How long to wait for values, or that they will not come: at once where the measurement says so itself."""
    missing = sorted(set(seen.job.spec.thresholds) - set(seen.measured.values))
    if not missing:
        return None
    keys = f"[{', '.join(missing)}]"
    lost = {why for key, why in seen.measured.lost.items() if key in missing}
    if set(missing) <= set(seen.measured.lost):
        message = f"Measurement data not available for keys: {keys}: {'; '.join(sorted(lost))}"
        return thresholds.Problem(Reason.MEASUREMENT_TIMEOUT, message)
    limit, waited = measurement_timeout(seen.job), _passed(now, end)
    if waited <= limit:
        return min(POLL, limit - waited + timedelta(milliseconds=10))
    message = f"Measurement data not available within {go_duration(limit)} for keys: {keys}{_why_missing(seen)}"
    return thresholds.Problem(Reason.MEASUREMENT_TIMEOUT, message)


def _why_missing(seen: Observed) -> str:
    """What keeps the values away, as far as it is known; empty where they may simply come later."""
    missing = set(seen.job.spec.thresholds) - set(seen.measured.values)
    known = {**seen.measured.pending, **seen.measured.lost}
    whys = {known[key] for key in missing if key in known}
    bandwidth = sorted(missing & {thresholds.BUS_BANDWIDTH, thresholds.ALG_BANDWIDTH} - set(known))
    if bandwidth and seen.job.spec.bandwidth_measurement is None:
        whys.add(f"spec.bandwidthMeasurement is absent, so nothing measures {', '.join(bandwidth)}")
    goodput = sorted((missing & GOODPUT_KEYS) - set(known))
    if goodput and not seen.goodputs:
        whys.add(f"spec.goodputMeasurement is absent, so nothing measures {', '.join(goodput)}")
    return f": {'; '.join(sorted(whys))}" if whys else ""


def _passed(now: datetime, *since: datetime | None) -> timedelta:
    """Since the last of these.  By amount: a clock that was set back by a day does not make a Job wait for a day."""
    return min(abs(now - moment) for moment in since if moment is not None)


def measurement_timeout(job: Job) -> timedelta:
    """spec.measurementTimeout, 5 minutes when absent; the CRD's pattern keeps what is no duration out."""
    if job.spec.measurement_timeout is None:
        return DEFAULT_MEASUREMENT_TIMEOUT
    try:
        return parse_go_duration(job.spec.measurement_timeout)
    except ValueError:
        return DEFAULT_MEASUREMENT_TIMEOUT


def _confirmation(
    seen: Observed, status: JobStatus, end: datetime, now: datetime
) -> tuple[tuple[str, ...], timedelta | None]:
    """Nodes whose agents have not told everything up to the end, and how long to wait for them before a new look.

    The transition time is cut to the second, so the end is at most one second later.
    """
    through = end + timedelta(seconds=1)
    waited = _passed(now, end, seen.observing_since)  # after a restart the agents need time to come back
    # Where hardware evidence explains the end already, only agents that can still answer are worth waiting for.
    waited_for = {AgentState.CONNECTED} if _hardware(status) else {AgentState.CONNECTED, AgentState.SILENT}
    open_nodes = tuple(
        name
        for name, node in sorted(seen.nodes.items())
        if node.agent in waited_for
        and not node.rebooted()
        and (node.confirmed_through is None or node.confirmed_through < through)
    )
    left = CONFIRMATION_LIMIT - waited
    if open_nodes and left > timedelta(0):
        return open_nodes, min(left, CONFIRMATION_POLL)
    undecided = not _hardware(status) and any(
        node.agent is AgentState.SILENT and not node.rebooted() and node.lease_silent() is None
        for node in seen.nodes.values()
    )
    left = LEASE_LIMIT - waited
    if undecided and left > timedelta(0):
        return (), min(left, timedelta(seconds=2))
    return (), None


def _settling(status: JobStatus, end: datetime, seen: Observed, now: datetime) -> timedelta | None:
    """A failure is judged when its exits can have arrived and the logs of the failed pods were read."""
    if not is_true(status.conditions, ConditionType.FAILED) or _hardware(status):
        return None
    age = _passed(now, end)
    if age < SETTLE:
        return SETTLE - age
    waited = _passed(now, end, seen.observing_since)
    if stalled(status) and seen.log_ends is None and waited < STALL_LOGS_LIMIT:
        return CONFIRMATION_POLL
    unread = any(pod.log_wanted for pod in seen.pods)
    return CONFIRMATION_POLL if unread and age < CONFIRMATION_LIMIT else None


def _waiting_for(seen: Observed, patience: timedelta | None, unconfirmed: tuple[str, ...]) -> str:
    if patience is not None:
        return f"Waiting for measured values{_why_missing(seen)}"
    if unconfirmed:
        named = ", ".join(unconfirmed[:3]) + (f" and {len(unconfirmed) - 3} more" if len(unconfirmed) > 3 else "")
        return f"Waiting for the agents to confirm what they saw up to the end of the run: {named}"
    return "Gathering evidence"


def _conclude_failure(seen: Observed, status: JobStatus, end: datetime, stamp: Stamp) -> Decision:
    run = FailedRun(
        pods=seen.pods,
        end=end,
        group=seen.group,
        nodes=seen.nodes,
        deleted=_was_deleted(status),
        log_ends=seen.log_ends or {},
    )
    attribution = _accusing_nobody(seen.job, attribute_failure(run, status.failed_nodes))
    if status.failure_log is None:
        log = failure_log.build(attribution.culprit, seen.pods, seen.tails)
        status = msgspec.structs.replace(status, failure_log=log)
    return _done(status, attribution, stamp)


def _was_deleted(status: JobStatus) -> bool:
    """The workload of a terminal Job is not looked at any more; its Failed condition remembers why it failed."""
    failed, ref = find(status.conditions, ConditionType.FAILED), status.workload_ref
    return failed is not None and ref is not None and failed.message == Gone(f"{ref.kind}/{ref.name}").sentence


def _conclude_slowness(seen: Observed, status: JobStatus, validation: Condition, stamp: Stamp) -> Decision:
    waited = _passed(stamp.now, validation.last_transition_time)
    progress = seen.probes
    finished = (progress is not None and progress.done) or not _may_probe(seen.job)
    just_judged = (
        find(seen.job.status.conditions, ConditionType.VALIDATION_FAILED) is None
    )  # `pairs` is not looked for yet
    pairs_next = just_judged and seen.job.spec.slow_node_search is SlowNodeSearch.NODE_PAIRS
    if (not finished or pairs_next) and waited < PROBE_LIMIT:
        return _pending(status, PROBING, min(POLL, PROBE_LIMIT - waited), (), stamp)
    attribution = attribute_slowness(
        seen.group,
        progress.results if progress is not None else {},
        seen.healths,
        validation.message,
        stamp.now,
        finished=finished,
    )
    if not attribution.attributed and seen.pairs is not None:
        return _pair_nodes(seen, seen.pairs, status, validation, stamp)
    return _done(status, _accusing_nobody(seen.job, attribution), stamp)


def _pair_nodes(
    seen: Observed, search: pair_search.PairSearch, status: JobStatus, validation: Condition, stamp: Stamp
) -> Decision:
    if search.obstacle:
        message = f"Could not be narrowed: {search.obstacle}. {validation.message}"
        return _done(status, Attribution((), False, Reason.NOT_NARROWED, message), stamp)
    limit = PROBE_LIMIT + pair_job.search_limit(run_took(status), len(search.nodes))
    left = limit - _passed(stamp.now, validation.last_transition_time)
    step = pair_search.next_step(search, expired=left <= timedelta(0))
    if step.conclusion is not None:
        return _done(status, attribute_pairs(search, step.conclusion, validation.message, stamp.now), stamp)
    label = f"{names.LABEL_PAIR_OF}={label_value(seen.job.metadata.name)}"
    pending = _pending(status, f"{PAIRING}; they have the label {label}", left, (), stamp)
    return replace(pending, start_pairs=step.start, pair_gpu_jobs=search.gpu_jobs)


def _accusing_nobody(job: Job, attribution: Attribution) -> Attribution:
    """A pair that failed or was slow says nothing about either node; who searches with it does."""
    owner = job.searching_job
    if owner is None or not (attribution.entries or attribution.reason is Reason.NOT_NARROWED):
        return attribution
    message = f"A pair of nodes accuses neither of them; Job {owner.name} says who is to blame"
    return replace(attribution, entries=(), attributed=False, reason=Reason.NOT_NARROWED, message=message)


def _pending(status: JobStatus, message: str, wait: timedelta, unconfirmed: tuple[str, ...], stamp: Stamp) -> Decision:
    known = find(status.conditions, ConditionType.ATTRIBUTED)
    conditions = status.conditions
    lasting = message.startswith((PROBING, PAIRING))  # the others change too quickly to be told
    if known is None or (lasting and known.message != message):
        conditions = put(
            conditions,
            ConditionType.ATTRIBUTED,
            ConditionStatus.UNKNOWN,
            reason=Reason.PENDING,
            message=message,
            stamp=stamp,
        )
    actions = (Action.REQUEST_CONFIRMATIONS,) if unconfirmed else ()
    return Decision(msgspec.structs.replace(status, conditions=conditions), actions, wait, unconfirmed)


def _nothing(status: JobStatus, message: str, stamp: Stamp) -> Decision:
    return _done(status, Attribution((), True, Reason.NOTHING_TO_ATTRIBUTE, message), stamp)


def _done(status: JobStatus, attribution: Attribution, stamp: Stamp) -> Decision:
    conditions = attributed(status.conditions, attribution.attributed, attribution.reason, attribution.message, stamp)
    known = {(entry.name, entry.reason) for entry in status.failed_nodes}
    new = tuple(entry for entry in attribution.entries if (entry.name, entry.reason) not in known)
    entries = tuple(sorted((*status.failed_nodes, *new), key=lambda entry: (entry.name, entry.reason)))
    return Decision(msgspec.structs.replace(status, conditions=conditions, failed_nodes=entries))


def attributed(conditions: Conditions, verdict: bool, reason: Reason, message: str, stamp: Stamp) -> Conditions:
    return put(
        conditions,
        ConditionType.ATTRIBUTED,
        ConditionStatus.TRUE if verdict else ConditionStatus.FALSE,
        reason=reason,
        message=limits.clip(message, limits.CONDITION_MESSAGE_BYTES),
        stamp=stamp,
    )


def _hardware(status: JobStatus) -> tuple[FailedNode, ...]:
    return tuple(entry for entry in status.failed_nodes if entry.reason is FailedNodeReason.HARDWARE_FAILURE_DETECTED)
