"""Readers take whole blocks and pass over most of their lines: they must say what reading each line by itself says."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from nvcre_logs.lines import LineFeed, plain
from nvcre_logs.nccl_log import NcclLog
from nvcre_logs.nccl_output import NcclOutputParser, _is_chatter, _undecodable
from nvcre_logs.nccl_row import Figures
from nvcre_logs.profile import LogProfileSpec
from nvcre_logs.step_shapes import reads_digits_alike
from nvcre_logs.training import TrainingEvent, TrainingProfile, TrainingReader, compile_training

HEADING = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw"
)
HEADING += " #wrong"
HEADINGS = [
    HEADING,
    "#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error",
    "#       size         count      type    time   algbw   busbw #wrong     time   algbw   busbw #wrong",
    "# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% time algbw busbw #wrong i_min i_max "
    "i_p99 i_cv%",
    "#   bytes             N    type      op     time   algbw   busbw     res     time   algbw   busbw     res",
]
REPORT = [
    "# nThread 1 nGpus 8 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20",
    "#  Rank  0 Group  0 Pid   4297 on node-1 device  0 [0000:1b:00] NVIDIA H100",
    "#  Rank  1 Group  0 Pid   4298 on node-1 device  1 [0000:1c:00] NVIDIA H100",
    "# Out of bounds values : 0 OK",
    "# Avg bus bandwidth    : 34.2",
    "# Collective test starting: all_reduce_perf",
    "# Collective test concluded: all_reduce_perf",
    " Out of bounds values : 2 FAILED",
]
OTHERS = [
    "node-1:4297:4421 [0] NCCL INFO Channel 03/0 : 1[1] -> 2[2] via P2P/CUMEM/read",
    " 3 node-1:4297:4421 [0] NCCL INFO Using network IB",
    "node-1: Test NCCL failure common.cu:1119 'remote process exited or there was a network error / '",
    " .. node-1 pid 4297: Test failure common.cu:1010",
    "+ mpirun /opt/all_gather_perf -b 8 -e 1G",
    "bash: line 1: 42 Killed",
    "53.55 19.58 34.27 0",
    "N/A inf nan 0",
    "nan nanometres, informed",
    "\u2003# Avg bus bandwidth    : 12",
    "\ufffd broken",
    "12: ",
    "x" * 300,
    "",
]
TAGS = [
    "",
    "",
    "",
    "2026-02-05T16:03:52.123456789Z ",
    "2026-02-05T16:03:52+02:00 ",
    "2026-13-45T16:03:52.123456789Z ",
    "9999-12-31T23:59:59.999999999Z ",
    "2026-02-05T16:03:52+99:00 ",
    "2026-02-05T16:03:60.123456789Z ",
    "[pod/launcher-0/node] ",
    "[pod/launcher-0/node] 2026-02-05T16:03:52.5Z ",
    "[1,0]<stdout>:",
    "[prterun-n1@1,3]<stderr>: ",
    "0: ",
    "\x1b[32m",
]


def row(rng: random.Random) -> str:
    size = 8 << rng.choice([3, 4, 20, 21, 33])
    kind = rng.choice(["float", "float", "half", "bfloat16", "int8", "uint64", "int9", "f8e4m3"])
    redop = rng.choice(["    sum", "    sum", "   none", "       "])
    root = rng.choice(["     -1", "     -1", "      0", ""])

    def side() -> str:
        odd = rng.randrange(10) == 0
        time = rng.choice(["1e+06", "inf", "-1", "N/A"]) if odd else f"{rng.uniform(5, 9e5):.{rng.choice([0, 2])}f}"
        wrong = rng.choice(["0", "0", "0", "48", "1e+06", "N/A", "2e-07"])
        return f" {time:>9}{rng.uniform(0, 900):8.2f}{rng.uniform(0, 900):8.2f}{wrong:>7}"

    tail = rng.choice(["", "", "", "  2026-07-09 12:00:01", " node-1:1:2 [0] NCCL WARN torn", " 1.5"])
    return f"{size:>12}{size // 4:>14}{kind:>10}{redop}{root}{side()}{side()}{tail}"


def nccl_line(rng: random.Random) -> str:
    match rng.randrange(20):
        case 0:
            return rng.choice(HEADINGS)
        case 1:
            return rng.choice(REPORT)
        case 2 | 3 | 4:
            return rng.choice(OTHERS)
        case 5:
            return row(rng)[: rng.randrange(20, 90)]
        case _:
            return row(rng)


def text_of(rng: random.Random, line: Callable[[random.Random], str], first: str) -> bytes:
    """One kind of tag, or any mixture; ends of any kind; sometimes cut in the middle of a line, or not UTF-8."""
    tags = rng.choice([TAGS, *([tag] for tag in TAGS)])
    ends = rng.choice([["\n"], ["\r\n"], ["\n", "\r\n", "\r"]])
    lines = [first, *(line(rng) for _ in range(rng.randrange(60)))]
    data = "".join(rng.choice(tags) + one + rng.choice(ends) for one in lines).encode()
    if rng.randrange(4) == 0:
        data = data[: rng.randrange(len(data))]
    if rng.randrange(8) == 0:
        at = rng.randrange(len(data) + 1)
        data = data[:at] + b"\xff" + data[at:]
    return data


def blocks(data: bytes, chunk: int) -> list[bytes]:
    feed = LineFeed()
    return [*(feed.feed(data[start : start + chunk]) for start in range(0, len(data), chunk)), feed.finish()]


def nccl_by_blocks(data: bytes, chunk: int) -> NcclLog:
    parser = NcclOutputParser()
    for start in range(0, len(data), chunk):
        parser.feed(data[start : start + chunk])
    return parser.finish()


def nccl_by_lines(data: bytes) -> NcclLog:
    """The reader's own way with a single line, for all of them."""
    parser = NcclOutputParser()

    def read(lines: bytes) -> None:
        block = plain(lines)
        parser._undecodable += _undecodable(block)
        for raw in block.split(b"\n"):
            if not _is_chatter(raw):
                parser._line(raw)

    *whole, rest = blocks(data, len(data) + 1)
    for block in whole:
        read(block)
    read(parser._without_cut_cell(rest))
    return parser.finish()


def figures(data: bytes, chunk: int) -> list[Figures]:
    found: list[Figures] = []
    parser = NcclOutputParser(found.extend)
    for block in blocks(data, chunk):
        parser.read(block)
    return found


@given(st.integers(0, 2**32), st.integers(1, 4000))
@settings(max_examples=200, deadline=None)
def test_nccl_tables_are_the_same_by_blocks_and_by_lines(seed: int, chunk: int) -> None:
    rng = random.Random(seed)
    data = text_of(rng, nccl_line, rng.choice([*HEADINGS, ""]))
    by_lines, by_blocks = nccl_by_lines(data), nccl_by_blocks(data, chunk)
    assert repr(replace(by_blocks, last_words="")) == repr(replace(by_lines, last_words=""))  # nan is not equal to nan
    if data.endswith(b"\n"):  # what has no end is cut, which the figures of a live log are not told of
        told = [row.out_of_place.busbw_gbps for test in by_lines.tests for row in test.rows]
        assert sorted(str(busbw) for _, _, busbw in figures(data, chunk)) == sorted(map(str, told))


# Training logs

MANIFESTS = [
    yaml.safe_load(path.read_text())
    for path in sorted((Path(__file__).parents[3] / "daemonset/log-profiles").glob("*.yaml"))
]
SPECS = {
    manifest["metadata"]["name"]: msgspec.convert(manifest["spec"], LogProfileSpec)
    for manifest in MANIFESTS
    if "trainingStep" in manifest["spec"]["patterns"]
}
PROFILES = {name: compile_training(name, spec) for name, spec in SPECS.items()}
EXAMPLES = {
    manifest["metadata"]["name"]: [pattern["example"] for pattern in manifest["spec"]["patterns"].values()]
    for manifest in MANIFESTS
}
NOISE = [*chain.from_iterable(EXAMPLES.values()), *OTHERS, "MnRtt/Rnk: 3453.08ms/8", "  3%|3   | 3/100 [00:03<01:37]"]
ODD = ["nan", "-1.5", "1e999", "7,094", "123456789012345678901", "", "\u0663"]


def training_line(rng: random.Random, name: str) -> str:
    """What the profile is for, with other digits; a different figure, something else or a cut line now and then."""
    line = rng.choice(EXAMPLES[name] if rng.randrange(4) else NOISE)
    changed = rng.choice([0.05, 0.05, 0.6])
    line = "".join(rng.choice("0123456789") if c.isdigit() and rng.random() < changed else c for c in line)
    if rng.randrange(12) == 0:
        figure = rng.choice(line.split() or [""])
        line = line.replace(figure, rng.choice(ODD))
    return line[: rng.randrange(len(line) + 1)] if rng.randrange(15) == 0 else line


def events_by_blocks(profile: TrainingProfile, data: bytes, chunk: int) -> list[TrainingEvent]:
    reader = TrainingReader(profile)
    return [event for block in blocks(data, chunk) for event in reader.feed(block)]


def events_by_lines(profile: TrainingProfile, data: bytes) -> list[TrainingEvent]:
    """The profile's patterns at every line."""
    reader = TrainingReader(profile)
    lines = chain.from_iterable(plain(block).split(b"\n")[:-1] for block in blocks(data, len(data) + 1))
    return [event for number, raw in enumerate(lines, 1) for event in reader._events(number, raw)]


@pytest.mark.parametrize("name", PROFILES)
@given(st.integers(0, 2**32), st.integers(1, 4000))
@settings(max_examples=60, deadline=None)
def test_training_events_are_the_same_by_blocks_and_by_lines(name: str, seed: int, chunk: int) -> None:
    rng = random.Random(seed)
    data = text_of(rng, lambda rng: training_line(rng, name), rng.choice(EXAMPLES[name]))
    assert events_by_blocks(PROFILES[name], data, chunk) == events_by_lines(PROFILES[name], data)


@pytest.mark.parametrize(
    ("regex", "alike"),
    [
        ("iteration +(?P<iteration>[0-9]+)/", True),
        (r"step (?P<step2>\d{1,12})", True),
        ("[0-9]{4}-[0-9]{2}", True),
        ("epoch 0 step (?P<iteration>[0-9]+)", False),
        ("step (?P<iteration>[1-9][0-9]*)", False),
        (r"step \x31(?P<iteration>[0-9]+)", False),
        (r"\{5\} (?P<iteration>[0-9]+)", False),
        (r"\pN (?P<iteration>[0-9]+)", False),
    ],
)
def test_a_shape_stands_for_its_lines_only_where_digits_are_alike(regex: str, alike: bool) -> None:
    assert reads_digits_alike(regex) is alike


@pytest.mark.parametrize("name", PROFILES)
def test_which_profiles_know_steps_by_their_shape(name: str) -> None:
    """Others read figures from lines before the step's own."""
    progress = "progress" in str(SPECS[name].patterns.training_step)
    assert PROFILES[name].steps_have_shapes is not progress
