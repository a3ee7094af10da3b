"""kill -9 at any instant: what was reported stored is there, nothing is torn, and no number comes twice."""

import asyncio
import json
import sys
from pathlib import Path

from support.processes import clean_environment

ROUNDS = 40
TESTS = Path(__file__).parents[2]


async def test_a_writer_killed_at_random_instants_loses_nothing_it_reported_stored(tmp_path: Path) -> None:
    environment = clean_environment() | {"PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "support.killed_outbox", str(tmp_path / "outbox.sqlite"), str(ROUNDS), "79"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    output, _ = await process.communicate()
    assert process.returncode == 0
    rounds = [json.loads(line) for line in output.splitlines()]
    assert len(rounds) == ROUNDS

    assert {one["outbox_id"] for one in rounds} == {rounds[0]["outbox_id"]}
    given: dict[int, int] = {}
    acknowledged = highest_given = 0
    for one in rounds:
        assert one["killed"]
        assert one["trouble"] == ""
        for seq, number in one["given"]:
            assert seq > highest_given, "a number was given twice"
            given[seq], highest_given = number, seq
        assert one["last_seq"] >= highest_given
        acknowledged = max([acknowledged, *(seq for [seq] in one["acknowledged"])])
        found = dict(one["found"])
        assert list(found) == sorted(found)
        # What it was killed before it could say is newer than all it said.
        assert all(seq > highest_given or found[seq] == given[seq] for seq in found)
        stored = max((seq for [seq] in one["stored"]), default=0)
        assert {seq for seq, _ in one["given"] if acknowledged < seq <= stored} <= set(found)
        # One transaction: the newest event there is, its incident and its position are of the same append.
        if found:
            newest = found[max(found)]
            assert (one["position"], one["incidents"]) == (newest, [newest])
        given |= found
        highest_given = max(given)
    assert sum(bool(one["stored"]) for one in rounds) > ROUNDS // 4, "it was killed before anything happened"
    assert any(one["acknowledged"] for one in rounds)
