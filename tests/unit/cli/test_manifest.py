"""A manifest is read or refused with file, place and reason."""

from pathlib import Path

import pytest
from nvcre_cli.durations import parse_timeout, show_duration
from nvcre_cli.follow import refusal
from nvcre_cli.manifest import parse_manifest, read_manifest
from nvcre_cli.problems import UsageProblem
from nvcre_kube.client import ApiError

EXAMPLES = Path(__file__).parents[3] / "examples"
JOB = "apiVersion: nvcre.nvidia.com/v1alpha1\nkind: Job\nmetadata: {name: j}\n"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_a_manifest_with_a_job(path):
    assert len(read_manifest(path).jobs) == 1


def test_several_documents_keep_their_order_and_namespaces():
    manifest = parse_manifest(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: team}\n---\n---\n" + JOB, where="m.yaml"
    )
    assert [document.title for document in manifest.documents] == ["ConfigMap team/c", "Job default/j"]
    assert manifest.namespaces == ("team", "default")


def test_a_date_stays_text():
    manifest = parse_manifest(JOB + "spec: {layout: 2006-01-02T15:04:05Z}\n", where="m.yaml")
    assert manifest.jobs[0].content["spec"]["layout"] == "2006-01-02T15:04:05Z"


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [1,\nb: 2", "m.yaml:3:1: not YAML"),
        ("\tx: 1", "m.yaml:1:1: not YAML"),
        ("\x00\x01", "m.yaml: not YAML"),
        (JOB + "spec: {x: !!int six}", "m.yaml:4:11: not YAML: invalid literal for int()"),
        (JOB + "spec: {x: !!bool perhaps}", "m.yaml:4:11: not YAML"),
        (JOB + "spec: {x: !!binary aGk=}", "m.yaml:4:11: not YAML: tag:yaml.org,2002:binary has no place in JSON"),
        (JOB + "spec: {x: !!timestamp 2001-01-01}", "timestamp has no place in JSON; write text in quotes"),
        (JOB + "spec: {x: " + "1" * 5000 + "}", "m.yaml:4:11: not YAML: Exceeds the limit"),
        (JOB + "spec: {x: .nan}", "nan is no number that JSON can hold"),
        (JOB + "spec: {x: &a [*a]}", "more than 200000 values"),
        (JOB + "spec: {x: &a " + "t" * 100_000 + ", y: [" + "*a, " * 200 + "]}", "more than 16 MiB of text"),
        (JOB + "spec: " + "[" * 3000 + "]" * 3000, "m.yaml:4:"),
        (JOB + "kind: Job", "m.yaml:4:1: not YAML: the key 'kind' is there twice"),
        (JOB + "---\n" + JOB, "m.yaml: Job default/j is in it twice; give each a name of its own"),
        ("", "m.yaml: no Job of nvcre.nvidia.com/v1alpha1 in it"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}", "m.yaml: no Job"),
        ("[1]", "m.yaml: document 1 is not an object"),
        ("kind: Job", "m.yaml: document 1: apiVersion is missing"),
        ("nodes: 4\nfaults: []", "apiVersion is missing; a scenario is given with --scenario, beside a manifest"),
        ("apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}", "Job of batch/v1 cannot be applied by this command"),
        (JOB.replace("{name: j}", "{}"), "m.yaml: document 1: metadata.name is missing"),
        (JOB + "---\n" + JOB.replace("{name: j}", "{name: 3}"), "m.yaml: document 2: metadata.name is missing"),
        (JOB + "spec: {1: x}", "the key 1 is not text; quote it"),
        (JOB + "spec:\n" + "".join(f"  {line}\n" for line in BOMB.splitlines()), "more than 200000 values"),
    ],
)
def test_a_bad_manifest_is_refused_with_its_place(text, complaint):
    with pytest.raises(UsageProblem) as refused:
        parse_manifest(text, where="m.yaml")
    assert complaint in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageProblem, match=r"gone\.yaml: No such file"):
        read_manifest(tmp_path / "gone.yaml")


def test_the_servers_refusal_is_shown_as_field_and_rule():
    document = parse_manifest(JOB, where="m.yaml").jobs[0]
    causes = [{"field": "spec.workload", "message": "Required value", "reason": "FieldValueRequired"}]
    unchecked = "Invalid value: null: some validation rules were not checked because the object was invalid"
    causes.append({"field": "<nil>", "message": unchecked, "reason": "FieldValueInvalid"})
    error = ApiError(422, "Invalid", "long text", {"details": {"causes": causes}})
    assert refusal(document, error) == "Job default/j is refused: Invalid\n  spec.workload: Required value"
    typo = 'strict decoding error: unknown field "spec.bandwidthMeasurment", unknown field "spec.checkpoint.restarts"'
    assert refusal(document, ApiError(400, "BadRequest", typo)).splitlines()[1:] == [
        "  spec.bandwidthMeasurment: no such field; did you mean bandwidthMeasurement?",
        "  spec.checkpoint.restarts: no such field; did you mean maxRestarts?",
    ]
    assert refusal(document, ApiError(403, "Forbidden", "no")) == "Job default/j is refused: Forbidden\n  no"


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("5m", 300), ("1h", 3600), ("1h30m", 5400), ("0.5s", 0.5)])
def test_durations_are_read(text, seconds):
    assert parse_timeout(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "-1s", "0s", "1h30", "5d"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UsageProblem):
        parse_timeout(text)


@pytest.mark.parametrize(("seconds", "text"), [(4.2, "4s"), (75, "1m15s"), (3700, "1h01m")])
def test_durations_are_shown(seconds, text):
    assert show_duration(seconds) == text
