"""What the agent says of itself: its own counts in /metrics, /healthz, and the document that /state and `state` show.

Reads the agent's parts and changes nothing. /healthz is about the agent, never about a GPU: it is unhealthy when a task
has ended or a loop is stuck (liveness.py). The document's fields are those of docs/architecture.md; it has no secrets.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nvcre_protos import nvcre_agent_v1_pb2 as pb

from nvcre_agent import __version__
from nvcre_agent.incidents.document import document, utc
from nvcre_agent.link import Link
from nvcre_agent.liveness import Liveness, Progress
from nvcre_agent.metrics import Readings
from nvcre_agent.nvml.monitor import NvmlMonitor
from nvcre_agent.outbox import Outbox
from nvcre_agent.reload import Reloader
from nvcre_agent.watch import Watch

OUTBOX_PATIENCE_S = 300.0  # events are sent from memory meanwhile; a disk may take long and come back


class SelfReport:
    """`dead_tasks` names the tasks that have ended."""

    def __init__(
        self,
        *,
        boot_id: str,
        watch: Watch,
        nvml: NvmlMonitor,
        outbox: Outbox,
        link: Link | None,
        reloader: Reloader,
        dead_tasks: Callable[[], list[str]],
    ) -> None:
        self._boot_id = boot_id
        self._watch = watch
        self._nvml = nvml
        self._outbox = outbox
        self._link = link
        self._reloader = reloader
        self._dead_tasks = dead_tasks
        self._liveness = Liveness()

    def readings(self) -> Readings:
        kernel = self._watch.kernel_counts
        return Readings(
            events_queued=self._outbox.depth,
            events_dropped=self._dropped(),
            outbox_bytes=self._outbox.bytes_queued,
            outbox_in_memory=self._outbox.in_memory,
            slow_commits=self._outbox.slow_commits,
            open_incidents=len(self._watch.folding.open_incidents),
            kmsg_records=kernel["records"],
            kmsg_skipped=kernel["skipped"],
            kmsg_overruns=kernel["overruns"],
            kmsg_gaps=kernel["gaps"],
            connected=self._link is not None and self._link.connected,
            connects=self._link.connects if self._link else 0,
            stream_ends={reason.value: count for reason, count in self._link.reconnects.items()} if self._link else {},
            state_dropped=self._link.state_dropped if self._link else 0,
            nvml_hung=self._nvml.state.reason == "NvmlUnresponsive",
            nvml_hung_calls=self._nvml.counts.hung_calls,
            nvml_restarts=self._nvml.counts.restarts,
            nvml_calls_within=self._nvml.counts.within,
            nvml_call_seconds=self._nvml.counts.call_seconds,
            config_reload_success=self._reloader.outcome.success,
        )

    def health(self) -> tuple[bool, Mapping[str, object]]:
        dead, stuck = self._dead_tasks(), self._stuck()
        facts = {
            "node": self._reloader.running.node_name,
            "version": __version__,
            "simulated": self._simulated,
            "connected": self._link is not None and self._link.connected,
            "monitors": {one.pop("name"): one for one in self._monitors()},
            "openIncidents": len(self._watch.folding.open_incidents),
            "outboxEvents": self._outbox.depth,
            "deadTasks": dead,
            "stuckForSeconds": stuck,
        }
        return not dead and not stuck, facts

    def state(self) -> Mapping[str, object]:
        config, outcome, counts = self._reloader.running, self._reloader.outcome, self._watch.kernel_counts
        dead, stuck = self._dead_tasks(), self._stuck()
        trouble = self._outbox.trouble
        return {
            "node": config.node_name,
            "version": __version__,
            "bootID": self._boot_id,
            "simulated": self._simulated,
            "time": utc(time.time()),
            "alive": not dead and not stuck,
            "deadTasks": dead,
            "stuckForSeconds": stuck,
            "monitors": self._monitors(),
            "inventory": self._inventory(),
            "incidents": [{**document(one), "simulated": one.simulated} for one in self._watch.folding.open_incidents],
            "waiting": [
                {"check": one.check, "message": one.message, "uuid": one.component.uuid} for one in self._watch.waiting
            ],
            "kernelLog": {"path": str(config.kernel_log), "lastSequence": self._watch.last_sequence, **counts},
            "outbox": {
                "id": self._outbox.outbox_id,
                "queued": self._outbox.depth,
                "lastSeq": self._outbox.newest_seq,
                "dropped": self._dropped(),
                "inMemory": self._outbox.in_memory,
                "slowCommits": self._outbox.slow_commits,
                "reason": trouble.reason,
                "message": trouble.message,
            },
            "link": {
                "coordinator": config.coordinator,
                "connected": self._link is not None and self._link.connected,
                "connects": self._link.connects if self._link else 0,
            },
            "config": {
                "file": str(config.config_file) if config.config_file else None,
                "loadedAt": utc(outcome.at_s),
                "success": outcome.success,
                "problems": list(outcome.problems),
                "needsRestart": list(outcome.needs_restart),
            },
        }

    def _dropped(self) -> dict[str, int]:
        by_outbox = {reason.value: count for reason, count in self._outbox.events_dropped.items()}
        return {**by_outbox, "too_many_open": self._watch.folding.evicted}

    @property
    def _simulated(self) -> bool:
        return self._reloader.running.simulate is not None

    def _monitors(self) -> list[dict[str, str]]:
        return [
            {
                "name": one.name,
                "state": pb.MonitorState.Name(one.state).removeprefix("MONITOR_STATE_").capitalize(),
                "reason": one.reason,
                "message": one.message,
            }
            for one in self._watch.monitors()
        ]

    def _inventory(self) -> dict[str, Any] | None:
        inventory = self._watch.inventory
        if inventory is None:
            return None
        snapshot = self._nvml.last_snapshot
        seen = {gpu.identity.uuid: gpu.access is None for gpu in snapshot.gpus} if snapshot else {}
        return {
            "driverVersion": inventory.driver_version,
            "cudaVersion": inventory.cuda_version,
            "gpus": [
                {
                    "index": gpu.index,
                    "uuid": gpu.uuid,
                    "pciBusId": str(gpu.pci),
                    "product": gpu.product,
                    "serial": gpu.serial,
                    "answered": seen.get(gpu.uuid),
                }
                for gpu in inventory.gpus
            ],
        }

    def _stuck(self) -> dict[str, float]:
        found = self._liveness.stuck(self._progress(), time.monotonic())
        return {name: round(since_s, 1) for name, since_s in found.items()}

    def _progress(self) -> Iterator[Progress]:
        yield from self._watch.progress()
        yield Progress("outbox", *self._outbox.progress, OUTBOX_PATIENCE_S)
        if self._link is not None:
            turns, next_within_s = self._link.progress
            yield Progress("link", True, turns, 60.0 + 3 * next_within_s)
