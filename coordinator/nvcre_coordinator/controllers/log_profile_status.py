"""Says on each LogProfile whether it can be used: condition Ready, with every field that does not compile or match.

A measurement compiles what it needs by itself (log_profiles.py); this is for the person who has just written one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.resources import LOG_PROFILES
from nvcre_kube.workqueue import WorkQueue, run_workers

from nvcre_coordinator.api.conditions import ConditionStatus, ConditionType, Reason
from nvcre_coordinator.api.log_profile import LogProfile, LogProfileStatus
from nvcre_coordinator.api.meta import to_json
from nvcre_coordinator.controllers.caches import Cached, Caches
from nvcre_coordinator.core.conditions import Stamp, put
from nvcre_coordinator.core.limits import CONDITION_MESSAGE_BYTES, clip
from nvcre_coordinator.core.log_profile import problems


class LogProfileController:
    def __init__(
        self, client: KubeClient, caches: Caches, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._client = client
        self._caches = caches
        self._clock = clock
        self._queue: WorkQueue[str] = WorkQueue()
        self._leading = False
        caches.profiles.add_handler(self._changed)

    async def run(self) -> None:
        """Leads until cancelled; the caches must be synced."""
        self._leading = True
        try:
            for item in self._caches.profiles.all():
                self._queue.add(item.raw["metadata"]["name"])
            await run_workers(self._queue, self._reconcile, workers=1, name="log-profile")
        finally:
            self._leading = False

    async def _reconcile(self, name: str) -> None:
        held = self._caches.profiles.get(name)
        if held is None or held.view is None:
            return
        status = judged(held.view, self._clock())
        if status == held.view.status:
            return
        try:
            await self._client.merge_patch(LOG_PROFILES, name, {"status": to_json(status)}, subresource="status")
        except ApiError as error:
            if not error.not_found:
                raise

    def _changed(self, old: Cached[LogProfile] | None, new: Cached[LogProfile] | None) -> None:
        if new is not None and self._leading:
            self._queue.add(new.raw["metadata"]["name"])


def judged(profile: LogProfile, now: datetime) -> LogProfileStatus:
    found = problems(profile)
    conditions = put(
        profile.status.conditions,
        ConditionType.READY,
        ConditionStatus.FALSE if found else ConditionStatus.TRUE,
        reason=Reason.INVALID_LOG_PROFILE if found else Reason.COMPILED,
        message=clip("; ".join(found) or "Every pattern compiles and matches its example", CONDITION_MESSAGE_BYTES),
        stamp=Stamp(now, profile.metadata.generation),
    )
    return LogProfileStatus(conditions)
