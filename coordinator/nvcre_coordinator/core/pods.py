"""What is remembered of a Job's pods, as they are observed, because pods vanish before a Job has ended.

A finished JobSet deletes its other Jobs and a failed Job its active pods; rank, node, times, exit and the telling log
line therefore live in the ConfigMap `<job>-pods` (key pods.json).  This module folds observations into records and
(de)serialises them; it reads no pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from datetime import datetime, timedelta
from typing import Annotated, TypeAlias

import msgspec

from nvcre_coordinator.api import names
from nvcre_coordinator.api.workload import ContainerStateTerminated, Pod
from nvcre_coordinator.core.failure_lines import LogFinding

FINISHED_PHASES = frozenset({"Succeeded", "Failed"})
MAX_AHEAD_S = 10 * 365 * 86_400
MAX_RECORDED_BYTES = 900 * 1024  # a ConfigMap holds 1 MiB

# A ConfigMap has no schema: what a person writes into it must not come to a comparison or a status that refuses it.
Moment: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class Exit(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the container that tells most about a pod ended."""

    code: Int32
    reason: str = ""
    container: str = ""
    finished_at: Moment | None = None


class PodRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    uid: str
    node: str = ""
    replicated_job: str = ""
    rank: Int32 | None = None  # completion index
    restart_attempt: Int32 = 0
    phase: str = "Pending"
    created_at: Moment | None = None
    gpus: bool = False  # has GPUs of its own
    started_at: Moment | None = None
    clock_ahead_s: Int32 | None = None  # of its node, by so much at least: its kubelet stamped it, and we saw that
    exit: Exit | None = None
    log: LogFinding | None = None  # read when the container terminated
    told_to_end: Moment | None = None  # when its deletion was asked for, if that was before it ended
    over: bool = False  # ran in an attempt that was given up: restarted from a checkpoint, or preempted

    @property
    def title(self) -> str:
        """What sentences call it."""
        return f"rank {self.rank} (pod {self.name})" if self.rank is not None else f"pod {self.name}"

    @property
    def clock_ahead(self) -> timedelta | None:
        return None if self.clock_ahead_s is None else timedelta(seconds=self.clock_ahead_s)

    @property
    def launcher(self) -> bool:
        return self.replicated_job == names.LAUNCHER

    @property
    def finished(self) -> bool:
        return self.phase in FINISHED_PHASES

    @property
    def failed(self) -> bool:
        """Ended badly: a non-zero exit, or a pod that failed without one (Evicted, NodeLost)."""
        return self.exit.code != 0 if self.exit is not None else self.phase == "Failed"

    @property
    def log_wanted(self) -> bool:
        return self.failed and self.exit is not None and self.log is None


class RunRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything remembered of a run: pods by uid, and the boot id each node had when the run came to it."""

    pods: dict[str, PodRecord] = {}
    boot_ids: dict[str, str] = {}

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted({pod.node for pod in self.pods.values() if pod.node}))


def observe(pod: Pod) -> PodRecord:
    meta = pod.metadata
    index = meta.labels.get(names.LABEL_COMPLETION_INDEX) or meta.annotations.get(names.ANNOTATION_COMPLETION_INDEX)
    attempt = meta.labels.get(names.LABEL_RESTART_ATTEMPT, "0")
    return PodRecord(
        name=meta.name,
        uid=meta.uid,
        node=pod.spec.node_name or "",
        replicated_job=meta.labels.get(names.LABEL_REPLICATED_JOB, ""),
        rank=_number(index),
        restart_attempt=_number(attempt) or 0,
        phase=pod.status.phase,
        created_at=meta.creation_timestamp,
        gpus=pod.spec.asks_for(names.GPU_RESOURCE),
        started_at=_started_at(pod),
        exit=_exit(pod),
        told_to_end=_told_to_end(pod),
    )


def seen_at(record: PodRecord, now: datetime) -> PodRecord:
    """With what its kubelet's last stamp proves of the node's clock: it cannot be from after we saw it."""
    stamp = record.exit.finished_at if record.exit is not None and record.exit.finished_at else record.started_at
    if stamp is None or stamp.tzinfo is None:
        return record
    ahead_s = (stamp - now) // timedelta(seconds=1)
    return msgspec.structs.replace(record, clock_ahead_s=max(-MAX_AHEAD_S, min(MAX_AHEAD_S, ahead_s)))


def fold(known: PodRecord | None, seen: PodRecord) -> PodRecord:
    """The newer observation, without losing what an earlier one knew (a failed exit, the log, the node)."""
    if known is None:
        return seen
    exited = seen.exit if seen.exit is not None and (seen.failed or not known.failed) else known.exit
    return msgspec.structs.replace(
        seen,
        node=seen.node or known.node,
        phase=known.phase if known.finished and not seen.finished else seen.phase,
        exit=exited,
        clock_ahead_s=_ahead(known, seen, of_one_stamp=known.exit == exited),
        log=seen.log or known.log,
        told_to_end=known.told_to_end or (None if known.failed else seen.told_to_end),
        over=seen.over or known.over,
    )


def remember(run: RunRecord, seen: Iterable[PodRecord], boot_ids: Mapping[str, str]) -> RunRecord:
    pods = dict(run.pods)
    for record in seen:
        pods[record.uid] = fold(pods.get(record.uid), record)
    nodes = {record.node for record in pods.values() if record.node}
    known = {node: boot_id for node, boot_id in boot_ids.items() if node in nodes and boot_id}
    return RunRecord(pods=pods, boot_ids={**known, **run.boot_ids})


def with_log(run: RunRecord, uid: str, finding: LogFinding) -> RunRecord:
    record = run.pods.get(uid)
    if record is None:
        return run
    return msgspec.structs.replace(run, pods={**run.pods, uid: msgspec.structs.replace(record, log=finding)})


def last_attempt(pods: Iterable[PodRecord]) -> tuple[PodRecord, ...]:
    """A JobSet that restarts makes every pod anew: what happened before is the story of another run."""
    known = tuple(pods)
    last = max((pod.restart_attempt for pod in known), default=0)
    return tuple(pod for pod in known if pod.restart_attempt == last)


def end_attempt(run: RunRecord, *, kept: Set[str], dropped: Set[str]) -> RunRecord:
    """The attempt is given up: nothing that its pods did or do from here is a cause of what the next one does.

    `kept` and `dropped` are the uids of the pods that the API server still has: a dropped one may come by once more and
    is marked, one that is gone will not and is forgotten.  The boot ids start anew with the next attempt.
    """
    pods = {
        uid: pod if uid in kept else msgspec.structs.replace(pod, over=True)
        for uid, pod in run.pods.items()
        if uid in kept or uid in dropped
    }
    return RunRecord(pods=pods)


def with_gpus(pods: Iterable[PodRecord]) -> tuple[PodRecord, ...]:
    """The placed pods of the last attempt that ask for GPUs; where none does, workers came by theirs in other ways.

    Else what loads a data set beforehand would count as a worker.
    """
    placed = tuple(pod for pod in last_attempt(pods) if pod.node)
    return tuple(pod for pod in placed if pod.gpus) or tuple(pod for pod in placed if not pod.launcher)


def without_gpus(pods: Iterable[PodRecord]) -> frozenset[str]:
    """Nodes where the run has nothing but launchers without GPUs."""
    seen = tuple(pod for pod in pods if pod.node)
    return frozenset(pod.node for pod in seen) - {pod.node for pod in seen if pod.gpus or not pod.launcher}


def lasting(run: RunRecord) -> RunRecord:
    """What must be written down: where pods were placed, and how those that failed ended.

    Nobody asks whether a pod that is gone had begun to run, or had ended well; so a run that ends well is written once.
    """
    pods = {
        uid: msgspec.structs.replace(pod, started_at=None)
        if pod.failed
        else msgspec.structs.replace(pod, phase="Pending", exit=None, started_at=None, clock_ahead_s=None)
        for uid, pod in run.pods.items()
        if pod.node or pod.failed
    }
    return RunRecord(pods=pods, boot_ids=run.boot_ids)


def encode(run: RunRecord) -> str:
    """JSON for the ConfigMap; pods that did not fail lose out first when there are too many to fit."""
    text = msgspec.json.encode(run, order="sorted")
    if len(text) <= MAX_RECORDED_BYTES:
        return text.decode()
    ordered = sorted(run.pods.values(), key=lambda pod: (not pod.failed, pod.name))
    room = MAX_RECORDED_BYTES - len(msgspec.json.encode(run.boot_ids)) - 64
    kept: dict[str, PodRecord] = {}
    for pod in ordered:
        room -= len(msgspec.json.encode(pod)) + len(pod.uid) + 8
        if room < 0:
            break
        kept[pod.uid] = pod
    return msgspec.json.encode(RunRecord(pods=kept, boot_ids=run.boot_ids), order="sorted").decode()


def decode(text: str) -> RunRecord:
    """Raises msgspec.MsgspecError for what is not a record of ours."""
    return msgspec.json.decode(text.encode(errors="replace"), type=RunRecord)


def _ahead(known: PodRecord, seen: PodRecord, *, of_one_stamp: bool) -> int | None:
    """The sooner a stamp was seen, the more it proves; a newer stamp stands alone, the clock may have been set."""
    told = [each.clock_ahead_s for each in ((known, seen) if of_one_stamp else (seen,))]
    return max((ahead for ahead in told if ahead is not None), default=known.clock_ahead_s)


def _started_at(pod: Pod) -> datetime | None:
    running = (container.state.running for container in pod.containers)
    return max((state.started_at for state in running if state is not None and state.started_at), default=None)


def _number(label: str | None) -> int | None:
    """Anybody may write a label; what is no number of ours is none."""
    return int(label) if label is not None and label.isascii() and label.isdecimal() and len(label) <= 9 else None


def _told_to_end(pod: Pod) -> datetime | None:
    meta = pod.metadata
    if meta.deletion_timestamp is None or any(container.state.terminated for container in pod.containers):
        return None
    try:
        return meta.deletion_timestamp - timedelta(seconds=meta.deletion_grace_period_seconds or 0)
    except OverflowError:  # any int64 may be asked for
        return meta.deletion_timestamp


def _exit(pod: Pod) -> Exit | None:
    """Of the containers that ended: OOMKilled first, else non-zero; a restarted one counts by its last end."""
    ended = [
        (container.name, state)
        for container in pod.containers
        for state in (container.state.terminated or container.last_state.terminated,)
        if state is not None
    ]
    if not ended:
        return None
    name, state = min(ended, key=lambda item: _telling(item[1]))
    return Exit(
        code=state.exit_code if state.exit_code or not state.signal else 128 + state.signal,
        reason=state.reason or "",
        container=name,
        finished_at=state.finished_at,
    )


def _telling(state: ContainerStateTerminated) -> tuple[bool, bool, str]:
    finished = state.finished_at.isoformat() if state.finished_at else ""
    return state.reason != "OOMKilled", state.exit_code == 0 and not state.signal, finished
