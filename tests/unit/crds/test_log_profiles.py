"""The built-in log profiles: valid, true to their own examples, and right about real logs."""

import json
from pathlib import Path
from typing import Any

import pytest
import re2
import yaml
from nvcre_local.apiserver.schema import StructuralSchema

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests/corpus"
PROFILES = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "daemonset/log-profiles").glob("*.yaml"))
}
PATTERNS = [
    pytest.param(pattern, id=f"{name}-{event}")
    for name, profile in PROFILES.items()
    for event, pattern in profile["spec"]["patterns"].items()
]


def captures(profile: str, event: str, line: str) -> dict[str, str | None] | None:
    found = re2.compile(PROFILES[profile]["spec"]["patterns"][event]["regex"]).search(line)
    return found.groupdict() if found else None


TRAINING = [name for name, profile in PROFILES.items() if "trainingStep" in profile["spec"]["patterns"]]


def test_the_profiles_are_there() -> None:
    assert set(PROFILES) - set(TRAINING) == {"nccl-bandwidth", "nccl-loopback"}
    assert {"megatron-training", "megatron-bridge", "torchtitan", "nemo", "maxtext", "deepspeed", "hf-trainer"} <= set(
        TRAINING
    )
    assert all(profile["metadata"]["name"] == name for name, profile in PROFILES.items())


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_a_profile_passes_its_own_schema_without_losing_a_field(profile: dict[str, Any]) -> None:
    crd = yaml.safe_load((ROOT / "daemonset/crds/logprofiles.yaml").read_text())
    schema = StructuralSchema.from_crd_version(crd["spec"]["versions"][0])

    assert schema.prune(profile) == []
    assert schema.validate(profile) == []


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_says_whose_log_it_reads(name: str) -> None:
    assert PROFILES[name]["metadata"]["annotations"]["nvcre.nvidia.com/log-format"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_example_matches(pattern: dict[str, Any]) -> None:
    assert re2.compile(pattern["regex"]).search(pattern["example"])


@pytest.mark.parametrize(("name", "strategy"), [("nccl-bandwidth", "launcher"), ("nccl-loopback", "node")])
def test_nccl_profiles_read_one_pod(name: str, strategy: str) -> None:
    assert PROFILES[name]["spec"]["workerStrategy"] == {"type": "Single", "replicatedJobName": strategy}


@pytest.mark.parametrize("profile", ["nccl-bandwidth", "nccl-loopback"])
@pytest.mark.parametrize(
    "case",
    [
        "ns01-allreduce-h100-clean",
        "ns03-allgather-b200-two-nodes-2.19",
        "ns04-alltoall-inplace-na",
        "ns07-wrong-elements",
        "ns08-nccl-failure-no-rows",
        "ns09-truncated-after-four-rows",
        "ns10-two-tests-one-log",
        "ns11-info-lines-between-rows",
        "ns12-zero-size-and-na",
    ],
)
def test_out_of_place_columns_of_real_logs(profile: str, case: str) -> None:
    expected = [
        (row["size_bytes"], row["out_of_place"]["algbw"], row["out_of_place"]["busbw"])
        for test in json.loads((CORPUS / f"{case}.expected.json").read_text())["tests"]
        for row in test["rows"]
    ]

    lines = (CORPUS / f"{case}.log").read_text().splitlines()
    rows = [found for line in lines if (found := captures(profile, "bandwidthResult", line))]

    assert [(int(row["size"]), float(row["algBW"]), float(row["busBW"])) for row in rows] == expected


ROW = "  1048576  262144  float  sum  -1  42.70  24.56  42.97  {wrong}  42.78  24.51  42.89  {wrong}"


@pytest.mark.parametrize(
    ("line", "row"),
    [
        *(
            (ROW.format(wrong=cell), ("1048576", "24.56", "42.97"))
            for cell in ("0", "48", "N/A", "inf", "nan", "1e+06")
        ),
        ("8 2 float sum -1 58.31 0.00 0.00 0 58.40 0.00 0.00 0", ("8", "0.00", "0.00")),
        ("8 2 float sum -1 58.31 1e+03 2.5e3 0 N/A N/A N/A N/A", ("8", "1e+03", "2.5e3")),
        ("8 2 bfloat16 none 3 58.31 1 2 0\r", ("8", "1", "2")),
        ("8 2 f8e4m3 none -1 58.31 1 2 0 58.31 1 2 0", ("8", "1", "2")),
        ("[1,0]<stdout>:  8 2 float sum -1 58.31 1 2 0 58.31 1 2 0", None),
        ("# 8 2 float sum -1 58.31 1 2 0 58.31 1 2 0", None),
        ("8 2 float sum -1 58.31 1", None),
        ("8 2 float sum -1 58.31 1 2 NCCL INFO", None),
        ("#       size         count      type   redop    root     time   algbw   busbw #wrong", None),
    ],
)
def test_a_bandwidth_row(line: str, row: tuple[str, str, str] | None) -> None:
    found = captures("nccl-bandwidth", "bandwidthResult", line)

    assert (found and (found["size"], found["algBW"], found["busBW"])) == row


@pytest.mark.parametrize(
    ("line", "transport"),
    [
        ("n1:1:2 [0] NCCL INFO Using network IB", "IB"),
        ("n1:1:2 [0] NCCL INFO Using network Socket", "Socket"),
        ("n1:1:2 [0] NCCL INFO Using network AWS Libfabric", "AWS Libfabric"),
    ],
)
def test_the_network_nccl_uses(line: str, transport: str) -> None:
    assert captures("nccl-bandwidth", "networkTransport", line) == {"transport": transport}


@pytest.mark.parametrize("profile", ["megatron-training", "megatron-bridge"])
def test_steps_of_a_real_megatron_log(profile: str) -> None:
    lines = (CORPUS / "ts01-megatron-2026.log").read_text().splitlines()

    steps = [found for line in lines if (found := captures(profile, "trainingStep", line))]

    assert [int(step["iteration"] or 0) for step in steps] == list(range(1, 11))
    assert (steps[0]["elapsedTime"], steps[0]["tflops"], steps[0]["loss"]) == ("25108.1", "80.1", "8.900000E+00")
    assert steps[0]["timestamp"] == "2026-03-03 12:00:25.108115"


def test_checkpoints_of_a_real_megatron_log() -> None:
    lines = (CORPUS / "ts01-megatron-2026.log").read_text().splitlines()

    saves = [found for line in lines if (found := captures("megatron-training", "checkpointSave", line))]
    done = [found for line in lines if (found := captures("megatron-training", "checkpointDone", line))]

    assert [(save["step"], save["path"]) for save in saves] == [("10", "/mnt/ckpt/a")]
    assert [(end["step"], end["path"]) for end in done] == [("10", "/mnt/ckpt/a")]
