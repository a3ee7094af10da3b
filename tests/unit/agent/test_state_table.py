"""`nvcre-agent state` for a person: what is wrong comes first."""

from typing import Any

from nvcre_agent.state_table import lines

GPU = {"index": 5, "uuid": "GPU-5", "pciBusId": "00000000:AB:00.0", "product": "H100", "serial": "1", "answered": True}
INCIDENT = {
    "id": "f69", "kind": "Xid", "code": 79, "mnemonic": "GPU_LOST", "faultClass": "NeedsReboot", "blame": "Yes",
    "component": {"kind": "GPU", "index": 5, "pciBusId": "00000000:AB:00.0"}, "check": "", "count": 2,
    "message": "GPU has fallen off the bus", "remedy": "power cycle the node", "injected": False,
    "firstSeen": "2026-03-01T10:00:00Z", "lastSeen": "2026-03-01T10:00:09Z",
}  # fmt: skip


def state(**other: Any) -> dict[str, Any]:
    return {
        "node": "node-1", "version": "0.1.0", "bootID": "b", "simulated": False, "time": "2026-03-01T10:01:00Z",
        "alive": True, "deadTasks": [], "stuckForSeconds": {},
        "monitors": [{"name": "nvml", "state": "Watching", "reason": "", "message": ""}],
        "inventory": {"driverVersion": "570.1", "cudaVersion": "12.8", "gpus": [GPU]},
        "incidents": [], "waiting": [],
        "kernelLog": {"path": "/dev/kmsg", "records": 3, "overruns": 0, "gaps": 0},
        "outbox": {"queued": 0, "dropped": {"full": 0, "age": 0}, "inMemory": False},
        "link": {"coordinator": "c:9443", "connected": True},
        "config": {"file": None, "problems": [], "needsRestart": []},
        **other,
    }  # fmt: skip


def test_the_first_line_is_the_answer() -> None:
    assert next(lines(state())) == "node-1: no open incidents"
    blind = [{"name": "nvml", "state": "Blind", "reason": "NoPermission", "message": "run as root"}]
    assert next(lines(state(monitors=blind, incidents=[INCIDENT]))) == "node-1: BLIND: nvml; 1 open incident"
    stuck = {"alive": False, "deadTasks": ["nvml"], "stuckForSeconds": {"outbox": 301.0}}
    assert next(lines(state(**stuck))).startswith("node-1: THE AGENT IS STUCK: nvml, outbox; ")


def test_an_incident_says_where_what_and_how_it_is_closed() -> None:
    text = "\n".join(lines(state(incidents=[INCIDENT])))
    assert "GPU 5 00000000:AB:00.0: Xid 79 GPU_LOST: GPU has fallen off the bus" in text
    assert "NeedsReboot, blame Yes; 2026-03-01T10:00:00Z to 2026-03-01T10:00:09Z, 2 times" in text
    assert "to do: power cycle the node" in text
    assert "set-healthy --incident f69" in text


def test_a_test_injection_does_not_count() -> None:
    told = list(lines(state(incidents=[{**INCIDENT, "injected": True}])))
    assert told[0] == "node-1: no open incidents"
    assert told[2].startswith("test injection, does not count: GPU 5 ")


def test_what_is_wrong_with_the_agent_is_told() -> None:
    text = "\n".join(
        lines(
            state(
                inventory=None,
                link={"coordinator": "c:9443", "connected": False},
                outbox={"queued": 7, "dropped": {"full": 2, "age": 0}, "inMemory": True},
                config={"file": "a.yaml", "problems": ["a.yaml:1: no"], "needsRestart": ["listen"]},
            )
        )
    )
    for words in (
        "NVML has named no GPU yet",
        "NOT CONNECTED to c:9443",
        "7 events in memory only; given up: 2 full",
        "REFUSED: a.yaml:1: no",
        "needs a restart: listen",
    ):
        assert words in text
