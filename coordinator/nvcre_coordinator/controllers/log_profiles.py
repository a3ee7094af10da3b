"""The LogProfile that a measurement names: found, compiled once a version, or what is wrong with it.

Each kind of measurement compiles what it needs of it.  What is missing or wrong may yet appear or be corrected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from nvcre_kube.client import ApiError, KubeClient
from nvcre_kube.events import EventRecorder
from nvcre_kube.resources import LOG_PROFILES
from nvcre_logs.patterns import LogProfileError

from nvcre_coordinator.api.conditions import Reason
from nvcre_coordinator.api.log_profile import LogProfile
from nvcre_coordinator.controllers.caches import Cached, Caches, cached

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_WARNED = 10_000


class UnusableProfileError(Exception):
    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class LogProfiles(Generic[T]):
    """`compile_` raises LogProfileError."""

    def __init__(
        self, client: KubeClient, caches: Caches, events: EventRecorder, compile_: Callable[[LogProfile], T]
    ) -> None:
        self._client = client
        self._caches = caches
        self._events = events
        self._compile = compile_
        self._compiled: dict[str, tuple[LogProfile, T]] = {}
        self._warned: set[tuple[str, str]] = set()

    async def get(self, name: str) -> T:
        """Raises UnusableProfileError; that there is none only when the server says so."""
        held = self._caches.profiles.get(name)
        if held is None:
            try:
                held = cached(await self._client.get(LOG_PROFILES, name), LogProfile)
            except ApiError as error:
                if not error.not_found:
                    raise
                message = f"spec.logProfileRef: LogProfile {name!r} does not exist; kubectl get logprofiles lists them"
                raise UnusableProfileError(Reason.LOG_PROFILE_NOT_FOUND, message) from error
        if held.view is None:
            raise UnusableProfileError(Reason.INVALID_LOG_PROFILE, f"LogProfile {name!r} does not fit the schema")
        known = self._compiled.get(name)
        if known is not None and _reads_alike(known[0], held.view):
            return known[1]
        try:
            compiled = self._compile(held.view)
        except LogProfileError as error:
            raise UnusableProfileError(Reason.INVALID_LOG_PROFILE, f"LogProfile {name!r}: {error}") from error
        self._compiled[name] = (held.view, compiled)
        return compiled

    def warn(self, measurement: Cached[Any], error: UnusableProfileError) -> None:
        """Once a measurement and problem."""
        mark = (measurement.raw["metadata"]["uid"], str(error))
        if mark in self._warned:
            return
        if len(self._warned) >= MOST_WARNED:
            self._warned.clear()  # an Event too many is better than memory that only grows
        self._warned.add(mark)
        self._events.record(measurement.raw, type="Warning", reason=error.reason.value, note=str(error))
        logger.warning("log profile cannot be used namespace=%s measurement=%s error=%r", *measurement.key, str(error))


def _reads_alike(one: LogProfile, other: LogProfile) -> bool:
    """What its status says of it changes nothing: the same compiled profile goes on."""
    return one is other or (one.spec == other.spec and one.metadata.annotations == other.metadata.annotations)
