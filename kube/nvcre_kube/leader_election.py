"""Leader election on a Lease: at most one process runs the leading task at a time.

Safety rests on the local monotonic clock only. A holder that has not renewed for ``renew_deadline_s`` stops its leading
task *and waits for its end*; others take the Lease only after they have seen it unchanged for ``lease_duration_s``.
Every request is bounded by what is left of the deadline, and any error is just a renewal that failed. On cancellation
the Lease is released, so that a successor need not wait. What the leading task writes goes through a FencedClient with
``write_until``: a process that was stopped for longer than the Lease lasts must not finish what it had begun.
"""

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.resources import LEASES, JsonObject
from nvcre_kube.timestamps import micro_time

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Observed:
    record: tuple[str, str, int]  # holder, renewTime, transitions: a change proves that the holder lives
    expires_at: float  # local monotonic time: that of the change, and the lease duration


class LeaderElector:
    """Competes for one Lease. ``annotations`` are written to it while leading (the address of the gRPC service)."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        lease_duration_s: float = 15,
        renew_deadline_s: float = 10,
        retry_period_s: float = 2,
        annotations: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        if not retry_period_s < renew_deadline_s < lease_duration_s:
            raise ValueError("leader election needs retry period < renew deadline < lease duration")
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._lease_duration_s = lease_duration_s
        self._renew_deadline_s = renew_deadline_s
        self._retry_period_s = retry_period_s
        self._annotations = annotations
        self._observed: _Observed | None = None
        self._leader_annotations: dict[str, str] = {}
        self._renewed_at = -math.inf  # when the last renewal was begun that succeeded
        self.is_leader = False

    @property
    def leader_annotations(self) -> Mapping[str, str]:
        """The annotations of the Lease as last seen: where the leader can be reached."""
        return self._leader_annotations

    def write_until(self) -> float:
        """The time of the event loop up to which nobody else can lead, less what a request may still take to arrive."""
        return self._renewed_at + self._renew_deadline_s

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Competes, leads, and competes again, until cancelled. What ``lead`` raises is raised."""
        while True:
            await self._acquire()
            logger.info("leading lease=%s/%s identity=%s", self._namespace, self._name, self._identity)
            await self._lead(lead)
            logger.warning("stopped leading lease=%s/%s identity=%s", self._namespace, self._name, self._identity)

    async def _acquire(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            if await self._try_write(self._renew_deadline_s):
                self._renewed_at = started
                return
            wait_s = self._retry_period_s * random.uniform(1.0, 1.2)  # noqa: S311 (jitter)
            if self._observed is not None and loop.time() < self._observed.expires_at:
                wait_s = min(wait_s, self._observed.expires_at - loop.time())
            await asyncio.sleep(wait_s)

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> None:
        leading = asyncio.ensure_future(lead())
        renewing = asyncio.create_task(self._renew_until_lost())
        self.is_leader = True
        try:
            await asyncio.wait({leading, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.is_leader = False
            lost = renewing.done()
            if lost:
                self._renewed_at = -math.inf
            for task in (leading, renewing):
                task.cancel()
            await asyncio.wait({leading, renewing})
            self._renewed_at = -math.inf
            if not lost:
                await self._release()
        if not leading.cancelled() and (error := leading.exception()) is not None:
            raise error

    async def _renew_until_lost(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(self._retry_period_s, max(0.0, self.write_until() - loop.time())))
            started = loop.time()
            left = self.write_until() - started
            if left <= 0:
                return
            if await self._try_write(left):
                self._renewed_at = started
            elif self._observed is not None and self._observed.record[0] not in ("", self._identity):
                return  # somebody else holds it

    async def _try_write(self, deadline_s: float) -> bool:
        try:
            async with asyncio.timeout(deadline_s):
                return await self._take_or_renew()
        except (*CONNECTION_ERRORS, ApiError) as error:
            logger.debug("lease not written lease=%s error=%r", self._name, str(error))
            return False

    async def _take_or_renew(self) -> bool:
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            await self._client.create(LEASES, self._lease(0, None), self._namespace)
            return True
        spec = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        transitions = int(spec.get("leaseTransitions") or 0)
        self._observe(spec)
        self._leader_annotations = dict(lease["metadata"].get("annotations") or {})
        if holder not in ("", self._identity) and not self._has_expired():
            return False
        taken = self._lease(transitions + (holder != self._identity), lease)
        await self._client.update(LEASES, taken)
        self._observe(taken["spec"])
        return True

    def _observe(self, spec: JsonObject) -> None:
        holder, renewed = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
        record = (holder, renewed, int(spec.get("leaseTransitions") or 0))
        if self._observed is None or self._observed.record != record:
            duration = float(spec.get("leaseDurationSeconds") or self._lease_duration_s)
            self._observed = _Observed(record, asyncio.get_running_loop().time() + duration)

    def _has_expired(self) -> bool:
        assert self._observed is not None
        return asyncio.get_running_loop().time() >= self._observed.expires_at

    def _lease(self, transitions: int, current: JsonObject | None) -> JsonObject:
        now = micro_time(datetime.now(UTC))
        lease: JsonObject = current or {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
        }
        spec = lease.get("spec") or {}
        acquired = spec.get("acquireTime") if spec.get("holderIdentity") == self._identity else now
        lease["spec"] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._lease_duration_s)),
            "acquireTime": acquired or now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }
        annotations = dict(self._annotations())
        if annotations:
            lease["metadata"]["annotations"] = {**(lease["metadata"].get("annotations") or {}), **annotations}
        return lease

    async def _release(self) -> None:
        # Best effort: a Lease that cannot be released expires by itself.
        with contextlib.suppress(*CONNECTION_ERRORS, ApiError):
            async with asyncio.timeout(self._renew_deadline_s):
                lease = await self._client.get(LEASES, self._name, self._namespace)
                if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                    lease["spec"]["holderIdentity"] = ""
                    await self._client.update(LEASES, lease)
