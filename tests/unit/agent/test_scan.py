"""What `nvcre-agent scan` makes of what it saw: nothing that was not looked at is healthy."""

from dataclasses import replace

import pytest
from nvcre_agent.nvml.snapshot import GpuIdentity, GpuSnapshot, Inventory, PciAddress, Snapshot, Unread
from nvcre_agent.scan import NotSeen, Seen, Verdict, judge

COUNTS = {"records": 1, "skipped": 0, "overruns": 0, "gaps": 0}
GPUS = tuple(GpuIdentity(n, f"GPU-{n}", PciAddress(0, 0x1B + n, 0), "H100", str(n)) for n in range(2))
GOOD = tuple(GpuSnapshot(gpu, access=None, recovery_action=0) for gpu in GPUS)


def seen(*gpus: GpuSnapshot, unidentified: tuple[Unread, ...] = (), blind: tuple[NotSeen, ...] = ()) -> Seen:
    snapshot = Snapshot(0.0, 0, len(gpus), gpus, unidentified)
    inventory = Inventory(tuple(gpu.identity for gpu in gpus), "570", "12.8")
    return Seen(inventory, snapshot, (), blind, COUNTS)


def test_everything_looked_at_and_nothing_wrong_is_healthy() -> None:
    report = judge(seen(*GOOD))
    assert (report.verdict, [gpu.verdict for gpu in report.gpus]) == (Verdict.HEALTHY, [Verdict.HEALTHY] * 2)


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (GpuSnapshot.unanswered(GPUS[1], Unread.FAILED), "Failed"),
        (GpuSnapshot.unanswered(GPUS[1], Unread.NO_PERMISSION), "NoPermission"),
        (replace(GOOD[1], recovery_action=Unread.NO_PERMISSION), "Unread"),
    ],
)
def test_a_gpu_with_an_unread_value_is_blind_and_the_others_are_not(gpu: GpuSnapshot, reason: str) -> None:
    report = judge(seen(GOOD[0], gpu))
    assert (report.verdict, [one.verdict for one in report.gpus]) == (Verdict.BLIND, [Verdict.HEALTHY, Verdict.BLIND])
    [missing] = report.not_seen
    assert (missing.reason, missing.gpu) == (reason, "GPU-1")
    assert "recovery_action" in missing.message


def test_a_value_that_the_gpu_does_not_have_is_not_missed() -> None:
    assert judge(seen(GOOD[0], replace(GOOD[1], recovery_action=Unread.NOT_SUPPORTED))).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    ("unidentified", "verdict"),
    [(Unread.LOST, Verdict.SUSPECT), (Unread.RESET_REQUIRED, Verdict.SUSPECT), (Unread.FAILED, Verdict.BLIND)],
)
def test_a_device_without_identity_is_suspect_or_not_looked_at(unidentified: Unread, verdict: Verdict) -> None:
    assert judge(seen(*GOOD, unidentified=(unidentified,))).verdict is verdict


def test_no_gpu_at_all_is_no_health() -> None:
    report = judge(seen())
    assert (report.verdict, [one.reason for one in report.not_seen]) == (Verdict.BLIND, ["NoGpu"])


def test_with_a_blind_source_no_gpu_is_healthy() -> None:
    report = judge(seen(*GOOD, blind=(NotSeen("kernel-log", "NoPermission", "run as root"),)))
    assert (report.verdict, {gpu.verdict for gpu in report.gpus}) == (Verdict.BLIND, {Verdict.BLIND})
