"""The words of a verdict about a code: class of the fault, whom it may accuse, what ends it."""

from dataclasses import dataclass
from enum import StrEnum

from nvcre_protos.vocabulary import Blame, FaultClass


class Clears(StrEnum):
    """What ends an incident."""

    REPLACEMENT = "replacement"  # another GPU stands in the slot
    REBOOT = "reboot"
    RESET = "reset"  # a reset of the GPU, or a reboot
    QUIET = "quiet"  # no repeat for a while


@dataclass(frozen=True, slots=True)
class Classification:
    """The verdict about one code with its text; `condition` is set when blame is Conditional.

    `hardware` is triage for who reads one log without the rest: should a person look at the node? None: unknown.
    """

    fault_class: FaultClass
    blame: Blame
    clears: Clears
    mnemonic: str = ""
    condition: str = ""
    remedy: str = ""
    remark: str = ""
    hardware: bool | None = None
    boards: str = ""  # that print the code: A = A100, H = H100, B = B100, G = GB200
    source: str = ""
