"""What a code with its text means: class, blame, remedy.

Decides from the catalogue and, where the number alone does not say it, from the printed text: Xid 154 by its
hexadecimal value, NVLink 5 (144-150) by unit, severity word and reason, SXid by its Fatal or Non-fatal word. A code
nobody knows is Unknown: shown and counted, never blamed. Neither folds incidents nor reads anything.
"""

import re
from dataclasses import dataclass, replace
from enum import IntEnum

from nvcre_protos.vocabulary import Blame, FaultClass

from nvcre_agent.xid.catalogue import catalogue
from nvcre_agent.xid.model import Classification, Clears

UNKNOWN = Classification(
    FaultClass.UNKNOWN,
    Blame.NO,
    Clears.QUIET,
    remedy="keep the line; this code is in no catalogue known here",
    remark="unknown code",
)

_RECOVERY = re.compile(
    r"recovery action changed from 0x([0-9a-f]{1,8})\b.{0,64}? to 0x([0-9a-f]{1,8})\b", re.IGNORECASE
)
_LINK_EVENT = re.compile(  # whatever follows the severity may be cut off
    r"(?P<unit>[A-Za-z][A-Za-z0-9_]{1,31}) +(?P<severity>Fatal|Non-?fatal)\b"
    r"(?: +XC\d +i(?P<injected>\d))?"
    r"(?: +Link +(?P<link>-?\d{1,3})\b)?"
    r"(?: *\((?:0x(?P<intr>[0-9a-fA-F]{8}) +0x(?P<status>[0-9a-fA-F]{8})\b)?)?",
    re.IGNORECASE,
)


class _Action(IntEnum):
    """Worst last."""

    IGNORE = 0
    EVAL_154 = 1
    RESET_GPU = 2


_ACTIONS = {"Ignore": _Action.IGNORE, "Eval154": _Action.EVAL_154, "ResetGpu": _Action.RESET_GPU}


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """The printed fields of an Xid 144-150; words that were cut off are None."""

    unit: str
    fatal: bool
    injected: bool
    link: int | None
    intr_info: int | None
    error_status: int | None


def link_event(message: str) -> LinkEvent | None:
    """Read the text of an Xid 144-150: `UNIT Fatal|Nonfatal XCn in Link n (words)`, as far as it goes."""
    if (found := _LINK_EVENT.match(message)) is None:
        return None
    link = -1 if found["link"] is None else int(found["link"])
    return LinkEvent(
        unit=found["unit"],
        fatal=found["severity"].lower() == "fatal",
        injected=found["injected"] not in (None, "0"),
        link=link if link >= 0 else None,
        intr_info=None if found["intr"] is None else int(found["intr"], 16),
        error_status=None if found["status"] is None else int(found["status"], 16),
    )


def recovery_action(message: str) -> tuple[int, int] | None:
    """(old, new) value of an Xid 154, read from the hexadecimal numbers because the words change with the driver."""
    found = _RECOVERY.search(message[:512])
    return None if found is None else (int(found[1], 16), int(found[2], 16))


def classify_xid(code: int, message: str = "") -> Classification:
    """Class, blame and remedy of an Xid. `message` is the kernel's text after pid and name, empty for an NVML event."""
    known = catalogue().xid.get(code)
    if known is None:
        return UNKNOWN
    if code == 154 and (change := recovery_action(message)) is not None:
        return classify_recovery_action(change[1])
    if 144 <= code <= 150 and (event := link_event(message)) is not None:
        return _nvlink5(code, known, event)
    return known


def classify_recovery_action(value: int) -> Classification:
    """The verdict about an Xid 154: what counts is the recovery action the driver now asks for."""
    known = catalogue().xid[154]
    verdict = catalogue().recovery_action.get(value)
    if verdict is None:
        verdict = replace(UNKNOWN, remark=f"recovery action 0x{value:x} is in no list known here")
    return replace(verdict, mnemonic=known.mnemonic, hardware=known.hardware, source=known.source, boards=known.boards)


def classify_sxid(code: int, severity: str | None) -> Classification:
    """An NVSwitch error: the printed word decides, without one the lists do."""
    rules = catalogue()
    match severity:
        case "Fatal":
            key = "fatal"
        case "Non-fatal":
            key = "non_fatal"
        case _ if code in rules.sxid_always_fatal:
            key = "fatal"
        case _ if code in rules.sxid_never_fatal:
            key = "non_fatal"
        case _:
            key = "undetermined"
    return rules.sxid[key]


def classify_kernel(kind: str, variant: str) -> Classification:
    """A kernel line that is no Xid; `kind` is the incident kind, `variant` what the line says of it."""
    rules = catalogue().kernel
    return rules.get((kind, variant)) or rules.get((kind, "")) or UNKNOWN


def _nvlink5(code: int, known: Classification, event: LinkEvent) -> Classification:
    action, who, decoded = _decode(code, event)
    remark = f"{event.unit}: {who or 'decoded'}" if decoded else f"{event.unit}: undecoded, printed severity counts"
    if not event.fatal:
        # The printed Nonfatal wins over the table (NVSentinel #1357: a decoder called a Nonfatal 145 fatal).
        remedy = (
            "act on a following Xid 154, else restart the application"
            if action == _Action.EVAL_154
            else "nothing to do"
        )
        return replace(
            known,
            fault_class=FaultClass.INFORMATIONAL,
            blame=Blame.NO,
            clears=Clears.QUIET,
            condition="",
            remedy=remedy,
            remark=remark,
            hardware=False,
        )
    blame, condition, remedy = _fatal_link_blame(code, who, decoded)
    return replace(
        known,
        fault_class=FaultClass.NEEDS_RESET,
        blame=blame,
        clears=Clears.RESET,
        condition=condition,
        remedy=remedy,
        remark=remark,
        hardware=not event.injected,
    )


def _fatal_link_blame(code: int, who: str, decoded: bool) -> tuple[Blame, str, str]:
    match who:
        case "peer":
            return (
                Blame.CONDITIONAL,
                "the far end of the link reports nothing of its own",
                "look at the far end of the link",
            )
        case "software":
            return (
                Blame.CONDITIONAL,
                "no operator or software took the link down",
                "check who took the link down; reset the GPU",
            )
        case "follows":
            return Blame.CONDITIONAL, "no other fault came before it", "follow the fault before it; reset the GPU"
        case "link":
            return Blame.YES, "", "drain the node, reset the GPU, then inspect link and cable, local side first"
        case _ if code == 149 and not decoded:
            return (
                Blame.CONDITIONAL,
                "the far end of the link reports nothing of its own",
                "drain the node and reset the GPU",
            )
        case _:
            return Blame.YES, "", "drain the node and reset the GPU"


def _decode(code: int, event: LinkEvent) -> tuple[_Action, str, bool]:
    """(worst action of the bits that are set, who for link-down reasons, whether a rule matched)."""
    rules = catalogue()
    unit = rules.link_units.get((code, event.unit))
    if unit is None or event.intr_info is None or event.error_status is None:
        return (_Action.RESET_GPU if event.fatal else _Action.IGNORE), "", False
    if unit.by_reason:
        found = rules.link_down_reasons.get((event.intr_info >> 20) & 0x3F)
        if found is None:
            return _Action.RESET_GPU, "", False
        return _ACTIONS[found[0]], found[1], True
    if unit.always:
        return _ACTIONS[unit.always], "", True
    status = event.error_status
    matches = [_ACTIONS[action] for bit, action in unit.statuses if (status & bit if bit else status == 0)]
    if not matches:
        return (_Action.RESET_GPU if event.fatal else _Action.IGNORE), "", False
    return max(matches), "", True
