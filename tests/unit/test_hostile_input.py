"""Whatever others write to us: the targets of `make fuzz` (tests/fuzz) for a moment each, without atheris.

The inputs are the seeds as they are, with bytes changed, cut and glued, and random bytes.
"""

import random

import pytest
from fuzz.targets import TARGETS, seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = 300
FEWER = {"agent_config": 60}  # where one takes 20 ms
INSERTED = (
    b"\0",
    b"\n",
    b"\xff\xfe",
    b"9" * 40,
    b"(" * 300,
    b"NVRM: Xid (PCI:0000:1b:00): 79\n",
    "\ud7ff\u2028".encode(),
)


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_and_what_broke_it_once(target: str) -> None:
    for seed in seeds(target):
        TARGETS[target](seed.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_any_bytes(target: str) -> None:
    known = [seed.read_bytes() for seed in seeds(target)]

    @settings(
        max_examples=FEWER.get(target, EXAMPLES), deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.sampled_from(known) | st.binary(max_size=600), st.randoms(use_true_random=False))
    def holds(data: bytes, chance: random.Random) -> None:
        TARGETS[target](mutated(data, chance))

    holds()


def mutated(data: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randrange(6)):
        at = chance.randrange(len(data) + 1)
        to = min(len(data), at + chance.choice((0, 1, 1, 1, 4, 40)))
        put = chance.choice((b"", bytes([chance.randrange(256)]), chance.choice(INSERTED), data[at:to] * 2))
        data = data[:at] + put + data[to:]
    return data
