"""What a coordinator wrote down in an annotation of a measurement, for the next one to go on from."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import msgspec
from nvcre_kube.client import ApiError

from nvcre_coordinator.controllers.caches import Cached

logger = logging.getLogger(__name__)

T = TypeVar("T")


def kept_in(item: Cached[Any], annotation: str, kind: type[T]) -> T | None:
    """None where nothing was written, or what stands there is not ours."""
    text = (item.raw["metadata"].get("annotations") or {}).get(annotation)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        logger.warning(
            "kept state unreadable namespace=%s measurement=%s annotation=%s error=%r",
            *item.key,
            annotation,
            str(error),
        )
        return None


def log_unkept(item: Cached[Any], error: ApiError) -> None:
    """The annotations of an object hold 256 KiB in all, and others may have used them up."""
    logger.warning("state not kept namespace=%s measurement=%s error=%r", *item.key, str(error))
