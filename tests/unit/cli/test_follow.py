"""When does following a Job end, and with what report?"""

import pytest
from nvcre_cli.follow import Watched
from nvcre_cli.manifest import parse_manifest
from nvcre_cli.report import Gathered

DOCUMENT = parse_manifest("apiVersion: nvcre.nvidia.com/v1alpha1\nkind: Job\nmetadata: {name: j}\n", where="m").jobs[0]
HOUR = 3600.0


def seen(**conditions: str) -> Gathered:
    entries = [{"type": kind, "status": status, "reason": kind, "message": "m"} for kind, status in conditions.items()]
    return Gathered({"metadata": {"name": "j"}, "spec": {}, "status": {"conditions": entries}})


def ends(looks: list[tuple[float, Gathered]], *, timeout_s: float = HOUR):
    """The moment and the report of the first look that ended it."""
    watched = Watched(DOCUMENT)
    for now, gathered in looks:
        watched.look(gathered, now)
        report = watched.end(now, 0.0, timeout_s)
        if report is not None:
            return now, str(report.result), report.note
    return None


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([(1.0, seen(InProgress="True"))], None),
        ([(1.0, seen(InProgress="True")), (2.0, seen(Succeeded="True"))], (2.0, "PASSED", "")),
        (
            [
                (1.0, seen(Failed="True", Attributed="Unknown")),
                (9.0, seen(Failed="True", Attributed="Unknown")),
                (9.5, seen(Failed="True", Attributed="False")),
            ],
            (9.5, "FAILED", ""),
        ),
        (
            [(t, seen(InProgress="True", HardwareFailed="True", Attributed="True")) for t in (5.0, 64.0, 65.0)],
            (65.0, "FAILED", "the workload hung on for 1m00s after the hardware failed; Job deleted"),
        ),
        (
            [(5.0, seen(InProgress="True", HardwareFailed="True")), (20.0, seen(Failed="True", Attributed="True"))],
            (20.0, "FAILED", ""),
        ),
        (
            [(3599.0, seen(InProgress="True")), (3600.0, seen(InProgress="True"))],
            (3600.0, "FAILED", "not finished within 1h00m; Job deleted"),
        ),
    ],
)
def test_a_job_is_followed_to_its_end_or_to_the_end_of_patience(looks, expected):
    assert ends(looks) == expected
