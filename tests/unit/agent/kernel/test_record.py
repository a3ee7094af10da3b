"""Records of /dev/kmsg."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_agent.kernel.record import MAX_TEXT, MalformedRecordError, parse_record


def test_header_text_escapes_and_tags() -> None:
    record = parse_record(
        b"6,339,5140900,-,caller=T1;NVRM: a\\x0aNVRM: b\\xc3\\xa9\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0"
    )
    assert (record.priority, record.sequence, record.microseconds) == (6, 339, 5140900)
    assert record.text == "NVRM: a\nNVRM: bé"
    assert record.tags == {"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:3b:00.0"}


@pytest.mark.parametrize(("priority", "genuine"), [(3, True), (7, True), (8, False), (12, False), (30, False)])
def test_only_facility_zero_comes_from_the_kernel(priority: int, genuine: bool) -> None:
    assert parse_record(b"%d,1,1,-;x" % priority).from_kernel is genuine


@pytest.mark.parametrize("raw", [b"", b"no header", b"1,2;", b"\xff\xfe\x00" * 50, b"1,2,3,-", b"-1,2,3,-;x"])
def test_what_is_no_record_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedRecordError):
        parse_record(raw)


@given(st.binary(max_size=2000))
def test_any_bytes_are_a_record_or_refused(raw: bytes) -> None:
    try:
        assert len(parse_record(b"3,1,1,-;" + raw).text) <= MAX_TEXT
        parse_record(raw)
    except MalformedRecordError:
        pass
