"""Verdicts about codes, above all where public agents contradict each other."""

import pytest
from nvcre_agent.xid.catalogue import catalogue
from nvcre_agent.xid.classify import classify_recovery_action, classify_sxid, classify_xid, link_event
from nvcre_agent.xid.model import Clears
from nvcre_protos.vocabulary import Blame, FaultClass

C = FaultClass


def test_every_code_from_1_to_173_is_in_the_catalogue_with_a_remedy() -> None:
    rows = catalogue().xid
    assert set(rows) == set(range(1, 174))
    assert all(row.remedy and row.mnemonic for row in rows.values())


def test_a_condition_is_given_exactly_where_blame_is_conditional() -> None:
    rules = catalogue()
    rows = [*rules.xid.values(), *rules.recovery_action.values(), *rules.kernel.values(), *rules.sxid.values()]
    assert all(bool(row.condition) == (row.blame is Blame.CONDITIONAL) for row in rows)


def test_only_54_and_64_are_fatal_hardware_at_first_sight() -> None:
    fatal = {code for code, row in catalogue().xid.items() if row.fault_class is C.FATAL_HARDWARE}
    assert fatal == {54, 64}


def test_effects_name_known_codes_only() -> None:
    rules = catalogue()
    assert rules.effects.keys() | set().union(*rules.effects.values()) <= rules.xid.keys()


@pytest.mark.parametrize(
    ("code", "fault_class", "blame"),
    [
        (13, C.APPLICATION, Blame.CONDITIONAL),
        (31, C.APPLICATION, Blame.CONDITIONAL),
        (43, C.APPLICATION, Blame.NO),
        (45, C.INFORMATIONAL, Blame.NO),
        (46, C.NEEDS_RESET, Blame.YES),
        (48, C.NEEDS_RESET, Blame.YES),
        (63, C.INFORMATIONAL, Blame.NO),
        (64, C.FATAL_HARDWARE, Blame.YES),
        (68, C.APPLICATION, Blame.CONDITIONAL),
        (69, C.APPLICATION, Blame.CONDITIONAL),
        (74, C.NEEDS_RESET, Blame.CONDITIONAL),
        (79, C.NEEDS_REBOOT, Blame.YES),
        (94, C.APPLICATION, Blame.CONDITIONAL),
        (95, C.NEEDS_RESET, Blame.YES),
        (109, C.NEEDS_RESET, Blame.CONDITIONAL),
        (119, C.NEEDS_RESET, Blame.YES),
        (121, C.INFORMATIONAL, Blame.CONDITIONAL),
        (133, C.APPLICATION, Blame.CONDITIONAL),
        (136, C.NEEDS_RESET, Blame.YES),
        (143, C.NEEDS_RESET, Blame.YES),
        (163, C.INFORMATIONAL, Blame.NO),
        (167, C.NEEDS_RESET, Blame.YES),
        (168, C.NEEDS_REBOOT, Blame.NO),
        (185, C.UNKNOWN, Blame.NO),
        (4_000_000_000, C.UNKNOWN, Blame.NO),
    ],
)
def test_base_verdicts(code: int, fault_class: FaultClass, blame: Blame) -> None:
    verdict = classify_xid(code)
    assert (verdict.fault_class, verdict.blame) == (fault_class, blame)
    assert verdict.remedy


@pytest.mark.parametrize(
    ("value", "fault_class", "blame"),
    [
        (0, C.INFORMATIONAL, Blame.NO),
        (1, C.NEEDS_RESET, Blame.YES),
        (2, C.NEEDS_REBOOT, Blame.YES),
        (3, C.NEEDS_RESET, Blame.CONDITIONAL),
        (4, C.NEEDS_RESET, Blame.CONDITIONAL),
        (7, C.NEEDS_REBOOT, Blame.YES),
        (9, C.UNKNOWN, Blame.NO),
    ],
)
def test_recovery_action_by_value_whatever_the_words(value: int, fault_class: FaultClass, blame: Blame) -> None:
    for words in ("Node Reboot Required", "OS Reboot", "Something New"):
        verdict = classify_xid(154, f"GPU recovery action changed from 0x0 (None) to {value:#x} ({words})")
        assert (verdict.fault_class, verdict.blame) == (fault_class, blame)
    assert classify_recovery_action(value).fault_class is fault_class


WORDS = "0x00000000 0x00000000 0x00000000 0x00000000)"


@pytest.mark.parametrize(
    ("code", "message", "fault_class", "blame"),
    [
        # reason 37: the far end
        (149, f"NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x025001c6 0x00000000 {WORDS}", C.NEEDS_RESET, Blame.CONDITIONAL),
        # reason 4: local link or cable
        (149, f"NETIR_LINK_DOWN Fatal XC0 i0 Link 07 (0x00400011 0x00000000 {WORDS}", C.NEEDS_RESET, Blame.YES),
        # reason 16: somebody took the link down
        (149, f"NETIR_LINK_DOWN Fatal XC0 i0 Link 07 (0x01000011 0x00000000 {WORDS}", C.NEEDS_RESET, Blame.CONDITIONAL),
        # cut off: the printed severity counts, undecoded
        (149, "NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x0250", C.NEEDS_RESET, Blame.CONDITIONAL),
        (144, "SAW_MVB Fatal XC0 i0 Link 2 (0x000", C.NEEDS_RESET, Blame.YES),
        # two status bits together: the worst counts
        (144, f"SAW_MVB Fatal XC0 i0 Link 2 (0x00000001 0x00000003 {WORDS}", C.NEEDS_RESET, Blame.YES),
        # a unit name with a digit, several spaces
        (146, f"TLW_RX_PIPE0  Fatal XC0 i0  Link 02 (0x0000000a 0x00000004 {WORDS}", C.NEEDS_RESET, Blame.YES),
        # the printed Nonfatal wins over a fatal bit
        (144, f"SAW_MVB Nonfatal XC0 i0 Link 2 (0x00000001 0x00000002 {WORDS}", C.INFORMATIONAL, Blame.NO),
        # no rule: never a silent pass
        (147, f"NEW_UNIT Fatal XC0 i0 Link 2 (0x00000001 0x00000100 {WORDS}", C.NEEDS_RESET, Blame.YES),
        # nothing printed that we can read (or the NVML event, which has no text)
        (147, "", C.UNKNOWN, Blame.CONDITIONAL),
    ],
)
def test_nvlink5(code: int, message: str, fault_class: FaultClass, blame: Blame) -> None:
    verdict = classify_xid(code, message)
    assert (verdict.fault_class, verdict.blame) == (fault_class, blame)


def test_nvlink5_says_undecoded_where_it_is() -> None:
    assert "undecoded" in classify_xid(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 07 (0x0250").remark


def test_link_minus_one_is_no_link_and_i1_is_injected() -> None:
    event = link_event(f"SAW_MVB Nonfatal XC0 i1 Link -1 (0x00000001 0x00000008 {WORDS}")
    assert event is not None
    assert (event.link, event.injected) == (None, True)


@pytest.mark.parametrize(
    ("code", "word", "fault_class"),
    [
        (20034, "Fatal", C.NEEDS_RESET),
        (12028, "Non-fatal", C.INFORMATIONAL),
        (12020, None, C.NEEDS_RESET),
        (11004, None, C.INFORMATIONAL),
        (20034, None, C.UNKNOWN),
        (99999, "Fatal", C.NEEDS_RESET),
    ],
)
def test_sxid_by_printed_word_then_by_list(code: int, word: str | None, fault_class: FaultClass) -> None:
    assert classify_sxid(code, word).fault_class is fault_class


def test_what_ends_an_incident_follows_its_class() -> None:
    assert classify_xid(79).clears is Clears.REBOOT
    assert classify_xid(48).clears is Clears.RESET
    assert classify_xid(64).clears is Clears.REPLACEMENT
    assert classify_xid(13).clears is Clears.QUIET
