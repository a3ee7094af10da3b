"""What workloads print and what users write about it: logs of nccl-tests and of trainers, and LogProfiles."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import yaml
from nvcre_logs import nccl_document, training_document
from nvcre_logs.envelope import opened
from nvcre_logs.lines import LineFeed
from nvcre_logs.nccl_log import NcclLog
from nvcre_logs.nccl_output import NcclOutputParser
from nvcre_logs.nccl_report import read_report
from nvcre_logs.patterns import LogProfileError, compile_pattern
from nvcre_logs.profile import EventPattern, LogProfileSpec
from nvcre_logs.training import TrainingProfile, TrainingReader, compile_training, of_one_rank
from nvcre_logs.training_document import Marker, TrainingLog, markers

CHUNK = 97  # so that lines and characters are cut anywhere
PROFILES = Path(__file__).parents[2] / "daemonset/log-profiles"


def workload_log(data: bytes) -> None:
    """A pod's log, as one of nccl-tests and with the profile of each trainer."""
    parser = NcclOutputParser()
    for chunk in _chunks(data):
        parser.feed(chunk)
    _nccl_explained(parser.finish())
    if (report := read_report(data)) is not None:
        _nccl_explained(report)
    assert len(b"".join(opened(lambda: _chunks(data))())) <= 4 * len(data) + 4
    for profile in _trainers():
        reader, feed = TrainingReader(profile), LineFeed()
        events, said, lines = [], list[Marker](), 0
        for block in (*map(feed.feed, _chunks(data)), feed.finish()):
            said += markers(block, reader.lines)
            events += reader.feed(block)
            lines += block.count(b"\n")
            assert reader.lines == lines
        log = TrainingLog(profile.name, of_one_rank(events), said, feed.skipped_lines)
        json.dumps(training_document.document(log, "case"), allow_nan=False)
        assert isinstance(training_document.why(log), str)


def _nccl_explained(log: NcclLog) -> None:
    json.dumps(nccl_document.document(log, "case"), allow_nan=False)
    assert isinstance(nccl_document.why(log), str)


def log_profile(data: bytes) -> None:
    """The first line is a user's pattern, the second his time layout, the others a log."""
    regex, _, rest = data.partition(b"\n")
    layout, _, text = rest.partition(b"\n")
    pattern = EventPattern(regex=regex.decode("utf-8", "replace"))
    try:
        compiled = compile_pattern(pattern, "spec.patterns.trainingStep", ())
    except LogProfileError:
        return
    for line in text.splitlines():
        compiled.find(line)
    for _captures in compiled.scan(text):
        pass
    spec = {"timestamp": {"layout": layout.decode("utf-8", "replace")}, "patterns": {"trainingStep": pattern}}
    try:
        profile = compile_training("user", msgspec.convert(msgspec.to_builtins(spec), LogProfileSpec))
    except LogProfileError:
        return
    reader, feed = TrainingReader(profile), LineFeed()
    for chunk in _chunks(text):
        reader.feed(feed.feed(chunk))
    reader.feed(feed.finish())


def _chunks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]


@cache
def _trainers() -> tuple[TrainingProfile, ...]:
    found = []
    for file in sorted(PROFILES.glob("*.yaml")):
        manifest = yaml.safe_load(file.read_text())
        spec = msgspec.convert(manifest["spec"], LogProfileSpec)
        if spec.patterns.training_step is not None:
            found.append(compile_training(manifest["metadata"]["name"], spec))
    return tuple(found)
