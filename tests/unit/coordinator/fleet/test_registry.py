"""Who is connected, who is missed, and what a clock that lies may do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from nvcre_coordinator.fleet.registry import AgentRegistry, ConnectedAgent
from nvcre_protos import nvcre_agent_v1_pb2 as pb

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Registry(AgentRegistry):
    def __init__(self) -> None:
        self.now = NOW
        super().__init__(clock=lambda: self.now, stored_cursor=lambda node, outbox: 0, flush=lambda node: None)

    def connected(self, node: str) -> ConnectedAgent:
        agent = ConnectedAgent(node, "outbox-1", "0.1.0")
        self.connect(agent)
        return agent


@pytest.mark.parametrize("streams", [1, 2])
async def test_an_agent_that_outlives_its_node_is_not_missed(streams: int) -> None:
    """Else what was scaled down would count as silent for ever, and hide who is (core/breaker.py: silent_nodes)."""
    registry = Registry()
    registry.expect("node-1")
    agent = registry.connected("node-1")
    registry.forget("node-1")  # the Node first, the machine a minute later
    for _ in range(streams - 1):
        agent = registry.connected("node-1")
    registry.disconnect(agent)
    assert registry.lost_since() == {}


async def test_a_node_that_was_made_anew_under_its_agent_is_missed_again() -> None:
    registry = Registry()
    agent = registry.connected("node-1")
    registry.forget("node-1")
    registry.expect("node-1")
    registry.now += timedelta(minutes=1)
    registry.disconnect(agent)
    assert registry.lost_since() == {"node-1": registry.now}


async def test_a_clock_that_was_set_back_is_asked_for_at_once() -> None:
    registry = Registry()
    agent = registry.connected("node-1")
    registry.heard(agent, pb.Heartbeat(), registry.now, None)
    assert agent.outbound.empty()
    registry.now += timedelta(seconds=30)
    registry.heard(agent, pb.Heartbeat(), registry.now - timedelta(hours=1), None)
    sync = agent.outbound.get_nowait().sync
    registry.heard(agent, pb.Heartbeat(sync_id=sync.id), registry.now - timedelta(hours=1), None)
    assert agent.clock.correction == timedelta(hours=-1)
    assert agent.outbound.empty()
