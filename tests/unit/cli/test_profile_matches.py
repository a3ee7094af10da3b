"""`nvcre profile test`: what it shows of each line, and what it says of a profile that cannot be used."""

from pathlib import Path

import pytest
import yaml
from nvcre_cli.problems import UsageProblem
from nvcre_cli.profile_matches import show_matches, show_shipped
from nvcre_cli.written_profile import wrong_with

CORPUS = Path(__file__).parents[2] / "corpus"
MINE = "kind: LogProfile\nmetadata: {name: mine}\nspec:\n  timestamp: {layout: '2006'}\n  patterns:\n    trainingStep: "


def test_every_line_that_matches_with_what_it_captures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, log = tmp_path / "mine.yaml", tmp_path / "run.log"
    profile.write_text(MINE + "{regex: '^step (?P<globalStep>[0-9]+)(?: loss (?P<loss>[0-9.]+))?'}\n")
    log.write_text("hello\n[rank0]: step 7 loss 2.5\nno step\nstep 8\n")
    assert show_matches(str(profile), str(log)) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["2", "trainingStep", "globalStep=7", "loss=2.5"],
        ["4", "trainingStep", "globalStep=8"],
        ["trainingStep:", "2", "of", "4", "lines"],
    ]


def test_nothing_is_told_as_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_matches("maxtext", str(CORPUS / "ts01-megatron-2026.log")) == 1
    assert "trainingStep: 0 of 12 lines" in capsys.readouterr().out


def test_the_built_in_nccl_profile_shows_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_matches("nccl-bandwidth", str(CORPUS / "ns01-allreduce-h100-clean.log")) == 0
    assert "bandwidthResult: 14 of 35 lines" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("{regex: '(?P<x>'}", "spec.patterns.trainingStep.regex does not compile as RE2"),
        ("{regex: 'a', example: 'b'}", "spec.patterns.trainingStep.example does not match"),
    ],
)
def test_a_pattern_that_cannot_be_right(pattern: str, told: str, tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text(MINE + pattern + "\n")
    with pytest.raises(UsageProblem, match=told):
        show_matches(str(profile), str(CORPUS / "ts01-megatron-2026.log"))


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text(
        "kind: LogProfile\nmetadata: {name: mine}\nspec:\n  timestamp: {layout: foo}\n  warmupSteps: abc\n"
        "  patterns:\n    trainingStep: {regex: '['}\n    checkpontSave: {regex: a}\n    networkTransport: {regex: 7}\n"
    )
    with pytest.raises(UsageProblem) as caught:
        show_matches(str(profile), str(CORPUS / "ts01-megatron-2026.log"))
    first, *wrong = str(caught.value).split("\n  ")
    assert first == f"{profile} cannot be used:"
    assert [line.split(":")[0].removesuffix(" does not compile as RE2") for line in wrong] == [
        "spec.patterns.checkpontSave",
        "spec.warmupSteps",
        "spec.patterns.networkTransport.regex",
        "spec.timestamp.layout",
        "spec.patterns.trainingStep.regex",
    ]
    assert "did you mean checkpointSave?" in wrong[0]


@pytest.mark.parametrize(
    "path", sorted((CORPUS.parents[1] / "daemonset/log-profiles").glob("*.yaml")), ids=lambda p: p.stem
)
def test_a_built_in_profile_is_fit_to_begin_ones_own_with(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_shipped(path.stem)
    assert wrong_with(yaml.safe_load(capsys.readouterr().out)) == []


def test_a_name_that_is_nearly_right_is_told(tmp_path: Path) -> None:
    for wanted, told in (("megatron-trainig", "did you mean megatron-training"), ("xyz", "nvcre profile list has")):
        with pytest.raises(UsageProblem, match=told):
            show_shipped(wanted)
        with pytest.raises(UsageProblem, match=told):
            show_matches(wanted, str(CORPUS / "ts01-megatron-2026.log"))
    other = tmp_path / "other.yaml"
    other.write_text("kind: ConfigMap\n")
    with pytest.raises(UsageProblem, match="it has ConfigMap, where kind: LogProfile is needed"):
        show_matches(str(other), str(CORPUS / "ts01-megatron-2026.log"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "^profile .*mine.yaml: no such file, and no built-in profile"),
        ("a: b: c", "^profile .*mine.yaml:1:5: not YAML: "),
    ],
)
def test_a_profile_that_cannot_be_read_is_named_without_a_flag_that_this_command_lacks(
    text: str | None, told: str, tmp_path: Path
) -> None:
    profile = tmp_path / "mine.yaml"
    if text is not None:
        profile.write_text(text)
    with pytest.raises(UsageProblem, match=told):
        show_matches(str(profile), str(CORPUS / "ts01-megatron-2026.log"))
