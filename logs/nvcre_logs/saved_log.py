"""Measures a saved log: with the profile that it is told, else with the one that finds most in it.

It reads a stream once for each profile it tries, in blocks, with the readers that follow the logs of running pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from nvcre_logs.envelope import Source, opened
from nvcre_logs.lines import LineFeed
from nvcre_logs.nccl_log import NcclLog
from nvcre_logs.nccl_output import NcclOutputParser
from nvcre_logs.nccl_report import read_report
from nvcre_logs.patterns import LogProfileError
from nvcre_logs.profile import LOG_FORMAT, NCCL_TESTS, LogProfileSpec
from nvcre_logs.training import TrainingReader, compile_training, of_one_rank
from nvcre_logs.training_document import Marker, TrainingLog, markers

HEAD_BYTES = 8 << 20
MAX_REPORT_BYTES = 64 << 20  # of JSON; more is a log whose first line happens to begin with a brace


@dataclass(frozen=True, slots=True)
class NamedProfile:
    name: str
    log_format: str
    spec: LogProfileSpec


@dataclass(frozen=True, slots=True)
class Measured:
    log: NcclLog | TrainingLog
    profile: str
    found: int = 0  # lines or tables that the profile made something of

    @property
    def ok(self) -> bool:
        """A complete and correct table; of training, steps up to the target."""
        return self.log.ok if isinstance(self.log, NcclLog) else self.log.target_reached


def measure(source: Source, profile: NamedProfile) -> Measured:
    """Raises LogProfileError where the profile reads neither tables nor steps."""
    return _measure(opened(source), profile)


def _measure(source: Source, profile: NamedProfile) -> Measured:
    if profile.log_format == NCCL_TESTS:
        return _measure_nccl(source, profile)
    if profile.spec.patterns.training_step is None:
        raise LogProfileError(
            f"LogProfile {profile.name} has no spec.patterns.trainingStep and no annotation {LOG_FORMAT}: {NCCL_TESTS}"
        )
    return _measure_training(source, profile)


def guess(source: Source, profiles: Sequence[NamedProfile]) -> Measured:
    """By the profile that finds most in the beginning of the log, where that has anything, else in all of it."""
    source = opened(source)
    head = list(_up_to(HEAD_BYTES, source()))
    best = _best(lambda: head, profiles)
    if sum(map(len, head)) <= HEAD_BYTES:
        return best
    return _measure(source, _named(best.profile, profiles)) if best.found else _best(source, profiles)


def _named(name: str, profiles: Sequence[NamedProfile]) -> NamedProfile:
    return next(profile for profile in profiles if profile.name == name)


def _up_to(most: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """No less where there is more."""
    size = 0
    for chunk in chunks:
        yield chunk
        size += len(chunk)
        if size > most:
            return


def _best(source: Source, profiles: Sequence[NamedProfile]) -> Measured:
    """Of two profiles that find the same, the first; tables of nccl-tests come before steps."""
    nccl = next((profile for profile in profiles if profile.log_format == NCCL_TESTS), None)
    tables = _measure_nccl(source, nccl) if nccl is not None else None
    if tables is not None and isinstance(tables.log, NcclLog) and any(test.rows for test in tables.log.tests):
        return tables
    trainings = [
        _measure_training(source, profile) for profile in profiles if profile.spec.patterns.training_step is not None
    ]
    best = max(trainings, key=lambda measured: measured.found, default=None)
    if best is not None and best.found:
        return best
    found = tables or best
    if found is None:
        raise LogProfileError("no LogProfile to try")
    return found


def _measure_nccl(source: Source, profile: NamedProfile) -> Measured:
    chunks = iter(source())
    head = next(chunks, b"")
    if head.lstrip().startswith(b"{"):
        document = b"".join(_up_to(MAX_REPORT_BYTES, chain([head], chunks)))
        report = read_report(document) if len(document) <= MAX_REPORT_BYTES else None
        if report is not None:
            return Measured(report, profile.name, len(report.tests))
        chunks, head = iter(source()), b""
    parser = NcclOutputParser()
    parser.feed(head)
    for chunk in chunks:
        parser.feed(chunk)
    log = parser.finish()
    return Measured(log, profile.name, len(log.tests))


def _measure_training(source: Source, profile: NamedProfile) -> Measured:
    reader = TrainingReader(compile_training(profile.name, profile.spec))
    feed = LineFeed()
    events, said = [], list[Marker]()
    for block in blocks_of(feed, source()):
        said += markers(block, lines_before=reader.lines)
        events += reader.feed(block)
    log = TrainingLog(profile.log_format or profile.name, of_one_rank(events), said, feed.skipped_lines)
    steps = len(log.records)
    return Measured(log, profile.name, steps + reader.progress_lines if steps else 0)


def blocks_of(feed: LineFeed, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines, to the last one, which may lack its end."""
    for chunk in chunks:
        yield feed.feed(chunk)
    yield feed.finish()
