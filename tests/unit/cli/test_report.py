"""What a report says, in text and in JSON."""

import io
import json

import pytest
from nvcre_cli.demo import differences
from nvcre_cli.progress import LineProgress, job_line
from nvcre_cli.render.documents import as_document, exit_code, overall
from nvcre_cli.render.sizes import show_size
from nvcre_cli.render.text import print_report, show_component
from nvcre_cli.report import NOT_TAKEN_UP, Gathered, build, natural
from nvcre_local.scenario import Expectation, ExpectedNode
from rich.console import Console

JOB = {
    "metadata": {"name": "j", "namespace": "default", "uid": "u-1", "creationTimestamp": "2026-03-01T10:00:00Z"},
    "spec": {"thresholds": {"busBandwidthGBps": "value >= 300.0"}},
    "status": {
        "conditions": [
            {"type": "Failed", "status": "True", "reason": "WorkloadFailed", "message": "container exited with 3"},
            {"type": "HardwareFailed", "status": "True", "reason": "HardwareFailureDetected", "message": "[node-3]"},
            {"type": "Attributed", "status": "True", "reason": "NodesNamed", "message": "1 node named"},
        ],
        "failedNodes": [
            {
                "name": "node-3",
                "reason": "HardwareFailureDetected",
                "message": "GPU 5 has fallen off the bus [Xid 79]",
                "component": {"kind": "GPU", "index": 5, "uuid": "GPU-1", "pciBusId": "0000:ab:00"},
                "evidence": [{"source": "nvml", "code": 79, "message": "fallen off", "time": "2026-03-01T10:00:09Z"}],
            }
        ],
    },
}
MEASUREMENT = {
    "kind": "BandwidthMeasurement",
    "spec": {"testType": "all_reduce", "jobRef": {"name": "j"}},
    "status": {"results": [{"sizeBytes": 8388608, "algBW": "122.01", "busBW": "213.52", "samples": 1}]},
}


def health(name, verdict="Healthy", **status):
    return {"metadata": {"name": name}, "status": {"verdict": verdict, "simulated": True, **status}}


HEALTHS = [
    health(
        "node-3",
        "Faulty",
        message="Xid 79",
        incidents=[
            {"kind": "Xid", "code": 79, "firstSeen": "2026-03-01T10:00:09Z", "lastSeen": "2026-03-01T10:00:09Z"}
        ],
        closedIncidents=[{"kind": "Xid", "code": 31, "lastSeen": "2026-02-01T10:00:00Z"}],
        probes=[{"probeID": "other", "jobUID": "u-0"}],
    ),
    health("node-9"),
    health(
        "node-10", probes=[{"kind": "NVLinkAllReduce", "jobUID": "u-1", "verdict": "Pass", "busBandwidthGBps": "370.1"}]
    ),
]
PODS = [{"spec": {"nodeName": "node-3"}, "status": {"phase": "Failed"}}]


@pytest.fixture
def report():
    return build(Gathered(JOB, [MEASUREMENT], PODS, HEALTHS))


def printed(report) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=200), report)
    return out.getvalue()


def test_the_report_names_node_component_reason_and_evidence(report):
    text = printed(report)
    for words in ("FAILED", "node-3", "HardwareFailureDetected", "GPU 5", "GPU-1", "0000:ab:00", "nvml 79: fallen off"):
        assert words in text
    assert "8 MiB" in text
    assert "213.52" in text


def test_everything_simulated_says_so(report):
    assert report.simulated
    assert "simulated" in printed(report)
    assert json.loads(as_document([report], scenario="s"))["simulated"] is True


def test_only_nodes_of_the_run_and_their_incidents_around_it_are_shown(report):
    assert [node["name"] for node in report.nodes] == ["node-3", "node-10"]
    assert [(incident["node"], incident["code"]) for incident in report.incidents] == [("node-3", 79)]


def test_nodes_whose_pods_are_gone_belong_to_the_run_too():
    gathered = Gathered(JOB, (), PODS, HEALTHS, frozenset({"node-9"}))
    assert [node["name"] for node in build(gathered).nodes] == ["node-3", "node-9", "node-10"]


def test_only_probes_made_for_this_run_are_shown(report):
    assert [(probe["node"], probe["verdict"]) for probe in report.probes] == [("node-10", "Pass")]


def test_json_is_one_document_with_the_apis_own_words(report):
    document = json.loads(as_document([report], scenario="xid79"))
    assert (document["result"], document["scenario"]) == ("FAILED", "xid79")
    job = document["jobs"][0]
    assert job["failedNodes"] == JOB["status"]["failedNodes"]
    assert job["bandwidth"] == MEASUREMENT["status"]["results"]


def test_the_same_warning_of_many_pods_is_shown_once():
    events = [
        {"reason": "FailedScheduling", "message": "no GPU left", "involvedObject": {"kind": "Pod", "name": f"p-{n}"}}
        for n in range(4)
    ]
    events.append({"reason": "WorkloadFailed", "message": "container exited with 3"})  # a condition says it already
    report = build(Gathered(JOB, warnings=events))
    assert report.warnings == [
        {"reason": "FailedScheduling", "message": "no GPU left", "about": "Pod/p-0", "objects": 4}
    ]
    assert "Pod/p-0 and 3 more" in printed(report)


def test_giving_up_is_never_a_pass():
    running = {"metadata": {"name": "j"}, "spec": {}, "status": {}}
    report = build(Gathered(running), note="not finished within 1h00m; Job deleted", gave_up=True)
    assert (str(report.result), report.headline) == ("FAILED", "not finished within 1h00m; Job deleted")


def job_with(*conditions, **spec):
    fields = ("type", "status", "reason", "message")
    found = [dict(zip(fields, one, strict=True)) for one in conditions]
    return {"metadata": {"name": "j"}, "spec": spec, "status": {"conditions": found}}


ENDED = (("InProgress", "False", "NotApplicable", "Not the current state"), ("Succeeded", "True", "R", "completed"))


@pytest.mark.parametrize(
    ("job", "headline"),
    [
        (job_with(("InProgress", "True", "R", "is held up: no runtime")), "is held up: no runtime"),
        (job_with(*ENDED, ("Attributed", "Unknown", "Pending", "waiting for values"), thresholds={"k": "true"}),
         "waiting for values"),
        (job_with(*ENDED, thresholds={"k": "true"}), "completed"),
        (job_with(), NOT_TAKEN_UP),
    ],
)  # fmt: skip
def test_a_run_that_goes_on_says_what_it_waits_for(job, headline):
    report = build(Gathered(job))
    assert (str(report.result), report.headline) == ("RUNNING", headline)


def test_the_broken_hardware_is_told_before_the_failure_that_followed_from_it(report):
    assert report.headline == "HardwareFailureDetected: [node-3]"
    text = printed(report)
    assert text.index("HardwareFailed: ") < text.index("Failed: WorkloadFailed")


PASSED = job_with(("Succeeded", "True", "R", "m"))
REFUSED = job_with(("Failed", "True", "WorkloadCreationError", "Workload was not created: spec.thresholds: ..."))
RUNNING = job_with(("InProgress", "True", "R", "m"))


@pytest.mark.parametrize(
    ("jobs", "code"),
    [([PASSED], 0), ([JOB], 1), ([RUNNING], 1), ([REFUSED], 2), ([PASSED, REFUSED], 2), ([JOB, REFUSED], 1)],
)
def test_only_a_verdict_about_a_run_ends_with_1(jobs, code):
    assert exit_code([build(Gathered(job)) for job in jobs]) == code


def test_one_failed_job_fails_the_run(report):
    passed = build(
        Gathered({"metadata": {"name": "p"}, "status": {"conditions": [{"type": "Succeeded", "status": "True"}]}})
    )
    assert overall([passed]) == "PASSED"
    assert overall([passed, report]) == "FAILED"


def test_markup_in_foreign_text_is_printed_as_it_is():
    job = {
        "metadata": {"name": "j"},
        "status": {"failedNodes": [{"name": "n", "reason": "R", "message": "[bold]x[/nope]"}]},
    }
    assert "[bold]x[/nope]" in printed(build(Gathered(job)))


def test_a_gpu_is_shown_with_index_uuid_and_pci():
    assert show_component({"kind": "GPU", "index": 0, "uuid": "GPU-1", "pciBusId": "p"}) == "GPU 0  GPU-1  p"
    assert show_component(None) == ""


@pytest.mark.parametrize(("size", "text"), [(8, "8 B"), (8 << 20, "8 MiB"), (8 << 30, "8 GiB"), (1536, "1.5 KiB")])
def test_sizes(size, text):
    assert show_size(size) == text


def test_nodes_are_sorted_as_people_count():
    assert sorted(["node-10", "node-9", "a"], key=natural) == ["a", "node-9", "node-10"]


def test_without_a_terminal_a_thing_is_said_once():
    out = io.StringIO()
    progress = LineProgress(Console(file=out, width=200))
    for _ in range(3):
        progress.show([Gathered(JOB, node_healths=[health("node-0")])])
    assert [line.split(" ", 1)[1] for line in out.getvalue().splitlines()] == [
        "job j: HardwareFailed (HardwareFailureDetected) [node-3]",
        "node-0: Healthy",
    ]


def test_waiting_for_evidence_is_said():
    pending = {
        "metadata": {"name": "j"},
        "status": {
            "conditions": [
                {"type": "Failed", "status": "True", "reason": "WorkloadFailed", "message": "m"},
                {"type": "Attributed", "status": "Unknown", "reason": "Pending", "message": "waiting for node-1"},
            ]
        },
    }
    assert job_line(Gathered(pending)) == "WorkloadFailed; gathering the evidence: waiting for node-1"


EXPECTED = Expectation(
    "FAILED", {}, (ExpectedNode("node-3", "HardwareFailureDetected", {"kind": "GPU", "index": 5}, (79,)),)
)


def test_the_demo_is_content_only_with_the_right_gpu_and_nobody_else(report):
    assert differences([report], EXPECTED) == []
    node = report.failed_nodes[0]
    node = {**node, "component": {"kind": "GPU", "index": 4}, "evidence": []}
    other = build(
        Gathered({**JOB, "status": {**JOB["status"], "failedNodes": [node, {"name": "node-1", "reason": "x"}]}})
    )
    assert differences([other], EXPECTED) == [
        "node-1 is blamed, and is healthy",
        "node-3: component index is 4, not 5",
        "node-3: no evidence of Xid 79",
    ]
    assert differences([], EXPECTED) == ["node-3 is not blamed"]


def test_nodes_that_are_alike_are_told_in_one_line_while_they_run():
    out = io.StringIO()
    progress = LineProgress(Console(file=out, width=200))
    progress.show([Gathered(JOB, node_healths=[health(f"node-{n}") for n in range(500)])])
    progress.show(
        [Gathered(JOB, node_healths=[health(f"node-{n}", "Faulty" if n == 7 else "Healthy") for n in range(500)])]
    )
    assert [line.split(" ", 1)[1] for line in out.getvalue().splitlines()[1:]] == [
        "node-0, node-1, node-2 and 497 more: Healthy",
        "node-7: Faulty",
    ]
