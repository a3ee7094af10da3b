"""Prometheus metrics of the job side (spec/reference-behaviour.md 7.1).  The fleet side registers its own.

Labels `workflow` is empty for a stand-alone Job.  A deleted Job takes its series with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from nvcre_coordinator.api.measurement import GoodputMeasurementStatus

_JOB = ("namespace", "job", "workflow")
_BANDWIDTH = ("namespace", "measurement", "job", "workflow", "nccl_test", "message_size_bytes")

JobLabels = tuple[str, str, str]

_GOODPUT = {
    "nvcre_goodput_ratio": ("result", "Goodput, 0 to 1"),
    "nvcre_goodput_avg_tflops_per_gpu": ("avg_tflops_per_gpu", "TFLOP/s of a GPU, mean over the last steps"),
    "nvcre_goodput_avg_step_time_seconds": ("avg_step_time_sec", "Time of a step, mean over the last steps"),
    "nvcre_goodput_reschedule_time_seconds": ("reschedule_time_sec", "From interruptions to the next start"),
    "nvcre_goodput_resume_time_seconds": ("resume_time_sec", "From starts to the first step after them"),
    "nvcre_goodput_checkpoint_save_time_seconds": ("checkpoint_save_time_sec", "Spent on saving checkpoints"),
    "nvcre_goodput_lost_work_time_seconds": (
        "lost_work_time_sec",
        "Work lost since the checkpoints before interruptions",
    ),
    "nvcre_goodput_training_time_seconds": ("training_time_sec", "Since the training began"),
    "nvcre_goodput_warmup_time_seconds": ("warmup_time_sec", "Of the first steps"),
    "nvcre_goodput_non_warmup_time_seconds": ("non_warmup_time_sec", "Of the steps after the warm-up"),
}
"""Metric -> field of GoodputMeasurement.status."""
_OF_LAST_STEPS = frozenset({"avg_tflops_per_gpu", "avg_step_time_sec"})


class JobMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.job_status = Gauge(
            "nvcre_job_status",
            "1 for the current state of the Job, 0 for the others",
            (*_JOB, "status"),
            registry=registry,
        )
        self.hardware_failed_jobs = Counter(
            "nvcre_hardware_failed_jobs_total", "Jobs with at least one hardware failure", _JOB, registry=registry
        )
        self.job_failed_nodes = Gauge(
            "nvcre_job_failed_nodes", "Entries of the Job's failedNodes", _JOB, registry=registry
        )
        self.hardware_failures_detected = Counter(
            "nvcre_hardware_failures_detected_total",
            "Nodes with a hardware failure in a Job, each counted once",
            (*_JOB, "node"),
            registry=registry,
        )
        self.nodes_evaluated = Counter(
            "nvcre_nodes_evaluated_total", "Nodes looked at by the failure detectors", _JOB, registry=registry
        )
        self.node_health_check_duration = Histogram(
            "nvcre_node_health_check_duration_seconds",
            "Time of one look at all nodes of a Job",
            _JOB,
            buckets=[0.001 * 2**k for k in range(15)],
            registry=registry,
        )
        self.reconciles = Counter(
            "nvcre_reconcile_total", "Reconciles of Jobs by result", (*_JOB, "result"), registry=registry
        )
        self.reconcile_duration = Histogram(
            "nvcre_reconcile_duration_seconds",
            "Time of one reconcile of a Job",
            _JOB,
            buckets=[0.01 * 2**k for k in range(12)],
            registry=registry,
        )
        self.workloads_created = Counter("nvcre_workload_created_total", "Workloads created", _JOB, registry=registry)
        self.nccl_algbw = Gauge(
            "nvcre_nccl_algbw_gbs", "Algorithm bandwidth by message size, GB/s", _BANDWIDTH, registry=registry
        )
        self.nccl_busbw = Gauge(
            "nvcre_nccl_busbw_gbs", "Bus bandwidth by message size, GB/s", _BANDWIDTH, registry=registry
        )
        self._goodput = {
            field: Gauge(name, text, ("namespace", "measurement", "job", "workflow"), registry=registry)
            for name, (field, text) in _GOODPUT.items()
        }
        self._of_jobs = (
            self.job_status,
            self.job_failed_nodes,
            self.hardware_failed_jobs,
            self.hardware_failures_detected,
            self.nodes_evaluated,
            self.node_health_check_duration,
            self.reconciles,
            self.reconcile_duration,
            self.workloads_created,
        )

    def set_job(self, labels: JobLabels, state: str, failed_nodes: int) -> None:
        """`state` is in_progress, succeeded or failed."""
        for status in ("in_progress", "succeeded", "failed"):
            self.job_status.labels(*labels, status).set(1 if status == state else 0)
        self.job_failed_nodes.labels(*labels).set(failed_nodes)

    def drop_job(self, namespace: str, job: str) -> None:
        for metric in self._of_jobs:
            metric.remove_by_labels({"namespace": namespace, "job": job})

    def set_bandwidth(self, labels: tuple[str, str, str, str, str], rows: Iterable[tuple[int, float, float]]) -> None:
        """`labels`: namespace, measurement, job, workflow, nccl_test; rows: (size, algbw, busbw)."""
        for size, algbw, busbw in rows:
            self.nccl_algbw.labels(*labels, str(size)).set(algbw)
            self.nccl_busbw.labels(*labels, str(size)).set(busbw)

    def drop_bandwidth(self, namespace: str, measurement: str) -> None:
        for metric in (self.nccl_algbw, self.nccl_busbw):
            metric.remove_by_labels({"namespace": namespace, "measurement": measurement})

    def set_goodput(self, labels: tuple[str, str, str, str], status: GoodputMeasurementStatus) -> None:
        """`labels`: namespace, measurement, job, workflow.  What is not known has no series.

        Of a measurement that is complete only the ratio stays.  Between a restart and the first step after it the means
        over the last steps are of a run that is gone.
        """
        between_runs = status.pending_interruption is not None
        for field, gauge in self._goodput.items():
            value = getattr(status, field)
            over = status.complete and field != "result"
            if value is None or over or (between_runs and field in _OF_LAST_STEPS):
                gauge.remove_by_labels({"namespace": labels[0], "measurement": labels[1]})
            else:
                gauge.labels(*labels).set(float(value))

    def drop_goodput(self, namespace: str, measurement: str) -> None:
        for gauge in self._goodput.values():
            gauge.remove_by_labels({"namespace": namespace, "measurement": measurement})
