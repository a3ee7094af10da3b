"""`nvcre parse`: what it prints and how it ends, for the nccl and training logs of the corpus and for no log at all."""

import gzip
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from nvcre_cli.parse import parse_logs
from nvcre_cli.problems import UsageProblem

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests/corpus"
NCCL = sorted(path.stem for path in CORPUS.glob("ns*.log"))
TRAINING = sorted(path.stem for path in CORPUS.glob("ts*.log"))
NOT_IN_THE_LOG = {"why", "exit_code", "step_time_tolerance"}


def as_json(
    capsys: pytest.CaptureFixture[str], log: Path, profile: str | None = None
) -> tuple[int, dict[str, Any], str]:
    code = parse_logs([log], profile, as_json=True)
    printed = capsys.readouterr()
    return code, json.loads(printed.out), printed.err


@pytest.mark.parametrize("case", NCCL)
def test_nccl_logs_of_the_corpus(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((CORPUS / f"{case}.expected.json").read_text())
    code, found, said = as_json(capsys, CORPUS / f"{case}.log")
    for test in expected["tests"]:
        if test["test_source"] in ("unknown", "inferred"):
            test["test"] = None
    for field in NOT_IN_THE_LOG:
        assert bool(found.pop(field, "")) == (field == "why")
        expected.pop(field, None)
    assert found == expected
    assert code == (0 if expected["ok"] else 1)
    assert "LogProfile nccl-bandwidth (a guess" in said


@pytest.mark.parametrize("case", TRAINING)
def test_training_logs_of_the_corpus(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((CORPUS / f"{case}.expected.json").read_text())
    code, found, said = as_json(capsys, CORPUS / f"{case}.log")
    for field in NOT_IN_THE_LOG:
        found.pop(field, None)
        expected.pop(field, None)
    assert found == expected
    assert code == 0
    assert "(a guess" in said


@pytest.mark.parametrize("name", ["megatron-training", str(ROOT / "daemonset/log-profiles/megatron-training.yaml")])
def test_a_profile_that_is_told_is_no_guess(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, found, said = as_json(capsys, CORPUS / "ts01-megatron-2026.log", name)
    assert (found["steps"]["records"], said) == (10, "")


def test_a_profile_of_one_s_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text(
        "apiVersion: nvcre.nvidia.com/v1alpha1\nkind: LogProfile\nmetadata: {name: mine}\nspec:\n"
        "  timestamp: {layout: '15:04:05'}\n  patterns:\n    trainingStep:\n"
        "      regex: '^done (?P<globalStep>[0-9]+) in (?P<stepTiming>[0-9]+)'\n      units: {stepTiming: ms}\n"
    )
    log = tmp_path / "run.log"
    log.write_text("done 1 in 1500\nnoise\ndone 2 in 500\n")
    _, found, _ = as_json(capsys, log, str(profile))
    assert [(record["line"], record["step"], record["time_s"]) for record in found["records"]] == [
        (1, 1, 1.5),
        (3, 2, 0.5),
    ]


def test_text_has_the_verdict_first_then_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_logs([CORPUS / "ns07-wrong-elements.log"], None, as_json=False) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("NOT OK ")
    assert "wrong results" in lines[0].lower()
    assert "nccl-bandwidth (a guess" in lines[1]
    (row,) = [line.split() for line in lines if line.strip().startswith("4 MiB")]
    assert row == ["4", "MiB", "85.82", "48.87", "85.53", "48", "85.05", "49.32", "86.30", "0"]


def test_text_of_a_training_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_logs([CORPUS / "ts04-hf-trainer-v4.log"], None, as_json=False) == 0
    text = capsys.readouterr().out
    assert text.startswith("OK ")
    for told in ("10 to 40 of 40", "2 s (tqdm elapsed)", "save start of step 40"):
        assert told in text


@pytest.mark.parametrize("case", ["ns01-allreduce-h100-clean", "ts01-megatron-2026"])
def test_a_line_that_is_too_long_is_told(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    log.write_bytes((CORPUS / f"{case}.log").read_bytes() + b"x" * (1 << 20) + b"x\n")
    assert parse_logs([log], None, as_json=False) == 0
    assert "1 line(s) longer than 1 MiB skipped" in capsys.readouterr().out


def test_one_log_that_is_not_ok_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    logs = [CORPUS / f"{case}.log" for case in ("ns07-wrong-elements", "ns01-allreduce-h100-clean")]
    assert parse_logs(logs, "nccl-bandwidth", as_json=True) == 1
    decoder, text = json.JSONDecoder(), capsys.readouterr().out
    first, end = decoder.raw_decode(text)
    second, _ = decoder.raw_decode(text[end:].lstrip())
    assert (first["ok"], second["ok"]) == (False, True)


def test_a_log_that_cannot_be_read_keeps_the_others_from_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    logs = [CORPUS / f"{case}.log" for case in ("nowhere", "ns07-wrong-elements", "ns01-allreduce-h100-clean")]
    assert parse_logs(logs, None, as_json=False) == 2
    out, err = capsys.readouterr()
    assert "nowhere.log: No such file" in err
    assert [line.split("  ")[0] for line in out.splitlines() if "OK  /" in line] == ["NOT OK", "OK"]


def test_a_log_without_anything_to_measure_is_not_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "empty.log"
    for content in ("", "hello\n", "\x00\xff\n"):
        log.write_text(content)
        code, found, _ = as_json(capsys, log)
        assert (code, found["ok"], found["tests"]) == (1, False, [])


@pytest.mark.parametrize(
    ("log", "profile", "told"),
    [
        ("nowhere.log", None, "nowhere.log: No such file or directory"),
        ("ns01-allreduce-h100-clean.log", "nowhere", "no built-in profile; nvcre profile list has their names"),
        ("ns01-allreduce-h100-clean.log", "daemonset/rbac.yaml", "daemonset/rbac.yaml: "),
    ],
)
def test_what_cannot_be_tried_says_why(log: str, profile: str | None, told: str) -> None:
    named = str(ROOT / profile) if profile and "/" in profile else profile
    with pytest.raises(UsageProblem) as problem:
        parse_logs([CORPUS / log], named, as_json=False)
    assert told in str(problem.value)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("{timestamp: {layout: '2006'}, patterns: {trainingStep: {regex: '(?P<x>'}}}", "does not compile as RE2"),
        ("{timestamp: {layout: '2006'}, patterns: {}}", "spec.patterns is empty, so nothing can be measured"),
        ("{timestamp: {layout: 'soon'}, patterns: {trainingStep: {regex: 'x'}}}", "spec.timestamp.layout"),
        ("{timestamp: {layout: 5}, patterns: {}}", "spec.timestamp.layout: Invalid value"),
    ],
)
def test_a_profile_that_cannot_be_used_names_the_field(spec: str, told: str, tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text(f"kind: LogProfile\nmetadata: {{name: mine}}\nspec: {spec}\n")
    with pytest.raises(UsageProblem) as problem:
        parse_logs([CORPUS / "ts01-megatron-2026.log"], str(profile), as_json=True)
    assert told in str(problem.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 20_000, "maximum nesting depth"),
        ("kind: ConfigMap\n", "not a LogProfile"),
        ("kind: LogProfile\nspec: 2026-13-45\n", "spec: Invalid value"),
        ("kind: LogProfile\nmetadata: [1]\nspec: {}\n", "spec.timestamp: Required value"),
        (
            "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]),
            "more than 200000 values",
        ),
    ],
)
def test_a_file_that_is_no_profile_is_refused(text: str, told: str, tmp_path: Path) -> None:
    profile = tmp_path / "odd.yaml"
    profile.write_text(text)
    with pytest.raises(UsageProblem, match=told):
        parse_logs([CORPUS / "ts01-megatron-2026.log"], str(profile), as_json=True)


def test_a_pipe_is_read_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    log = (CORPUS / "ns01-allreduce-h100-clean.log").read_bytes()
    writer = threading.Thread(target=pipe.write_bytes, args=(log,))
    writer.start()
    assert parse_logs([pipe], None, as_json=False) == 0
    writer.join()
    assert capsys.readouterr().out.startswith("OK ")


def test_a_packed_log_is_refused_with_what_unpacks_it(tmp_path: Path) -> None:
    log = tmp_path / "a run.log.gz"
    log.write_bytes(gzip.compress(b"step 1\n"))
    with pytest.raises(UsageProblem, match=r"is compressed; zcat '.*/a run\.log\.gz' \| nvcre parse -"):
        parse_logs([log], None, as_json=False)


def test_a_json_document_drives_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "hostile.log"
    log.write_bytes(b"# nThread 1\nTest NCCL failure \xc2\x9b2J \x7f \xe2\x80\xae\n")
    code, _, _ = as_json(capsys, log)
    assert code == 1
    parse_logs([log], None, as_json=True)
    assert all(one.isprintable() or one == "\n" for one in capsys.readouterr().out)
