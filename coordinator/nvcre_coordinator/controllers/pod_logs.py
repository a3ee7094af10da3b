"""Reads the end of a container's log in bounded memory, when the container has terminated."""

from __future__ import annotations

import asyncio
import logging

from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient

from nvcre_coordinator.core.limits import TAIL_LINES

logger = logging.getLogger(__name__)

KEPT_BYTES = 256 * 1024  # enough for the first error line before a long traceback; failureLog keeps 32 KiB of it
DEADLINE_S = 120.0
ATTEMPTS = 3


class LogUnavailableError(Exception):
    """The log cannot be had (any more); the message says why."""


async def read_tail(client: KubeClient, namespace: str, pod: str, container: str) -> str:
    """The last 800 lines with the kubelet's times, at most 256 KiB.  Raises LogUnavailableError."""
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(0.5 * attempt)
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await _read(client, namespace, pod, container)
        except ApiError as error:
            problem = str(error)
            if error.not_found:
                break
        except CONNECTION_ERRORS as error:
            problem = repr(error)
    raise LogUnavailableError(problem)


async def _read(client: KubeClient, namespace: str, pod: str, container: str) -> str:
    kept = bytearray()
    chunks = client.pod_log(pod, namespace, container=container or None, timestamps=True, tail_lines=TAIL_LINES)
    async for chunk in chunks:
        kept += chunk
        if len(kept) > 2 * KEPT_BYTES:
            del kept[:-KEPT_BYTES]
    return bytes(kept[-KEPT_BYTES:]).decode(errors="replace")
