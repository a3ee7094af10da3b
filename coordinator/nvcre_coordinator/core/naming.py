"""Names of derived objects: cut to a maximum with a hash of the full name, as the reference does.

Checked against its golden: `test-diag-threshold-confirm-0-iter-2` with 35 -> `test-diag-threshold-confirm-0-10d8f`
(spec/reference-behaviour.md 1.8).
"""

from __future__ import annotations

from nvcre_coordinator.api.names import MAX_OBJECT_NAME, MAX_WORKLOAD_NAME

_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193


def fnv1a_32(text: str) -> int:
    """FNV-1a, 32 bits (http://www.isthe.com/chongo/tech/comp/fnv/)."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


def truncated(name: str, maximum: int) -> str:
    """The name itself, or its first (maximum - 6) characters, `-`, and five hex digits of the full name's hash."""
    if len(name) <= maximum:
        return name
    head = name[: maximum - 6].removesuffix("-")
    return f"{head}-{fnv1a_32(name):08x}"[: len(head) + 6]


def workload_name(job: str) -> str:
    return truncated(f"{job}-workload", MAX_WORKLOAD_NAME)


def bandwidth_measurement_name(job: str) -> str:
    return truncated(f"{job}-bandwidth", MAX_OBJECT_NAME)


def goodput_measurement_name(job: str) -> str:
    return truncated(f"{job}-goodput", MAX_OBJECT_NAME)


def pods_config_map_name(job: str) -> str:
    return truncated(f"{job}-pods", MAX_OBJECT_NAME)


def blamed_config_map_name(job: str) -> str:
    return truncated(f"{job}-failed-nodes", MAX_OBJECT_NAME)


def pair_job_name(job: str, uid: str, round_name: str, pair: tuple[str, str]) -> str:
    """Of the Job that tests a pair of nodes for this one: the same whenever it is asked for.

    So short that the names derived from it are not cut: a search may have hundreds of pairs, and of these some would
    meet in the 20 bits of hash that a cut name has.
    """
    end = f"-pair-{round_name}-{fnv1a_32('/'.join((uid, *pair))):08x}"
    room = MAX_WORKLOAD_NAME - len(workload_name(end))
    return f"{job[:room].rstrip('-.')}{end}"


def label_value(job: str) -> str:
    """A Job's name as the value of `nvcre.nvidia.com/job`: object names may be longer than label values."""
    return truncated(job, MAX_OBJECT_NAME)
