"""What the agent sees of the call in flight, and when it takes too long."""

import os

import pytest
from nvcre_agent.nvml import calls
from nvcre_agent.nvml.call_note import CallNote, Doing, Note, overdue


def test_the_reader_sees_the_call_and_its_gpu() -> None:
    note = CallNote.create()
    other_side = CallNote(os.dup(note.fd))
    other_side.write(Doing.CALLING, "nvmlDeviceGetMemoryInfo", 3)
    seen = note.read()
    assert (str(seen), seen.doing) == ("nvmlDeviceGetMemoryInfo on GPU 3", Doing.CALLING)


@pytest.mark.parametrize("byte", [0, 16], ids=["the first half of the next write", "what is done: nothing known"])
def test_instead_of_a_write_in_progress_the_one_before_is_seen_and_grows_old(byte: int) -> None:
    """A child that is stopped within a write must not look young for ever."""
    note = CallNote.create()
    note.write(Doing.CALLING, "nvmlDeviceGetName", 3)
    before = note.read()
    note.write(Doing.NOTHING)
    note._memory[byte] ^= 0xFF
    assert note.read() == before
    assert str(before) == "nvmlDeviceGetName on GPU 3"


S = 1_000_000_000


@pytest.mark.parametrize(
    ("note", "after_s", "late"),
    [
        (Note(Doing.CALLING, 0, "nvmlDeviceGetName", 0), 19, False),
        (Note(Doing.CALLING, 0, "nvmlDeviceGetName", 0), 21, True),
        (Note(Doing.CALLING, 0, "nvmlEventSetWait_v2"), 21, True),
        (Note(Doing.CALLING, 0, "nvmlInit"), 21, False),  # without the persistence daemon
        (Note(Doing.CALLING, 0, "nvmlInit"), 91, True),
        (Note(Doing.STARTING, 0), 21, False),
        (Note(Doing.STARTING, 0), 91, True),
        (Note(Doing.NOTHING, 0), 21, True),  # stopped between two calls
    ],
)
def test_each_call_has_its_deadline(note: Note, after_s: int, late: bool) -> None:
    assert overdue(note, after_s * S, start_s=90, hang_s=20) is late


def test_a_call_is_noted_before_it_begins_and_counted_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    note = CallNote.create()
    monkeypatch.setattr(calls, "ledger", calls.Ledger(note=note, gpu=2))
    during: list[Note] = []

    def nvmlDeviceGetName(_handle: int) -> str:
        during.append(note.read())
        return "H100"

    assert calls.call(nvmlDeviceGetName, 1) == "H100"
    assert [str(one) for one in during] == ["nvmlDeviceGetName on GPU 2"]
    assert note.read().doing is Doing.NOTHING
    taken = calls.ledger.take()
    assert taken["count"] == 1
    assert taken["sum_s"] >= taken["max_s"] >= 0
    assert calls.ledger.take() == {"count": 0, "sum_s": 0.0, "max_s": 0.0, "within": [0] * 7}
