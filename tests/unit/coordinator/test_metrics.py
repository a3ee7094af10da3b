"""Which series a measurement has in each part of its life (spec/reference-behaviour.md 7.1)."""

from datetime import UTC, datetime

from nvcre_coordinator.api.conditions import Condition, ConditionStatus
from nvcre_coordinator.api.measurement import GoodputMeasurementStatus, PendingInterruption
from nvcre_coordinator.metrics import JobMetrics
from prometheus_client import CollectorRegistry

NOW = datetime(2026, 12, 2, tzinfo=UTC)
LABELS = ("default", "train-goodput", "train", "")
FIGURES = {
    "result": "0.912345",
    "avg_tflops_per_gpu": "400.000000",
    "avg_step_time_sec": "5.000000",
    "reschedule_time_sec": "1.000000",
    "resume_time_sec": "5.123456",
    "checkpoint_save_time_sec": "3.000000",
    "lost_work_time_sec": "0.000000",
    "training_time_sec": "600.000000",
    "warmup_time_sec": "25.000000",
    "non_warmup_time_sec": "500.000000",
}
LAST_STEPS = {"nvcre_goodput_avg_tflops_per_gpu", "nvcre_goodput_avg_step_time_seconds"}
COMPLETE = Condition(
    type="Complete", status=ConditionStatus.TRUE, reason="JobSucceeded", message="", last_transition_time=NOW
)


def series(registry: CollectorRegistry) -> dict[str, float]:
    found = [sample for metric in registry.collect() for sample in metric.samples]
    return {sample.name: sample.value for sample in found if sample.name.startswith("nvcre_goodput")}


def test_each_figure_of_a_running_measurement_has_a_series_and_what_is_unknown_has_none() -> None:
    metrics = JobMetrics(registry := CollectorRegistry())
    metrics.set_goodput(LABELS, GoodputMeasurementStatus(**FIGURES))
    assert len(series(registry)) == len(FIGURES)
    assert series(registry)["nvcre_goodput_resume_time_seconds"] == 5.123456
    metrics.set_goodput(LABELS, GoodputMeasurementStatus(result="0.500000"))
    assert series(registry) == {"nvcre_goodput_ratio": 0.5}


def test_means_of_the_last_steps_go_with_a_restart_and_all_but_the_ratio_with_the_end() -> None:
    metrics = JobMetrics(registry := CollectorRegistry())
    status = GoodputMeasurementStatus(**FIGURES)
    metrics.set_goodput(LABELS, status)
    everything = set(series(registry))
    metrics.set_goodput(LABELS, GoodputMeasurementStatus(**FIGURES, pending_interruption=PendingInterruption()))
    assert everything - set(series(registry)) == LAST_STEPS
    metrics.set_goodput(LABELS, status)
    assert set(series(registry)) == everything
    metrics.set_goodput(LABELS, GoodputMeasurementStatus(**FIGURES, conditions=(COMPLETE,)))
    assert series(registry) == {"nvcre_goodput_ratio": 0.912345}


def test_a_measurement_that_is_gone_takes_its_series_with_it_and_no_other() -> None:
    metrics = JobMetrics(registry := CollectorRegistry())
    other = ("default", "other", "other", "")
    metrics.set_goodput(LABELS, GoodputMeasurementStatus(**FIGURES))
    metrics.set_goodput(other, GoodputMeasurementStatus(result="0.100000"))
    metrics.drop_goodput("default", "train-goodput")
    assert series(registry) == {"nvcre_goodput_ratio": 0.1}
