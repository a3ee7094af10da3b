"""The log and the LogProfile that a person names on the command line: a file, stdin, the name of a built-in profile."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml
from nvcre_local.cluster_objects import log_profiles
from nvcre_logs.profile import LOG_FORMAT, LogProfileSpec
from nvcre_logs.saved_log import NamedProfile

from nvcre_cli.problems import UsageProblem

CHUNK_BYTES = 1 << 20
MAX_PROFILE_BYTES = 1 << 20


def chunks_of(log: str) -> Iterator[bytes]:
    """A file's, or stdin's for `-`.  Raises UsageProblem."""
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if log == "-" else Path(log).open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise UsageProblem(f"{log}: {error.strerror or error}") from error


def shipped_profiles() -> list[NamedProfile]:
    """Of two that read the same log (megatron-training, megatron-bridge) the more general one comes first."""
    found = [_named(manifest, "the built-in profiles") for manifest in log_profiles()]
    return sorted(found, key=lambda profile: (profile.name == "megatron-bridge", profile.name))


def named_profile(name_or_file: str) -> NamedProfile:
    shipped = {profile.name: profile for profile in shipped_profiles()}
    if name_or_file in shipped:
        return shipped[name_or_file]
    path = Path(name_or_file)
    if not path.is_file():
        raise UsageProblem(f"profile {name_or_file}: no such file, and no built-in profile ({', '.join(shipped)})")
    if path.stat().st_size > MAX_PROFILE_BYTES:
        raise UsageProblem(f"profile {path}: larger than 1 MiB")
    try:
        document = yaml.safe_load(path.read_text())
    except RecursionError as error:
        raise UsageProblem(f"profile {path}: nested too deep") from error
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: no UTF-8, a date without a day
        raise UsageProblem(f"profile {path}: {error}") from error
    return _named(document, str(path))


def _named(manifest: Any, where: str) -> NamedProfile:
    if not isinstance(manifest, dict) or manifest.get("kind") != "LogProfile":
        raise UsageProblem(f"{where}: not a LogProfile (kind: LogProfile)")
    metadata = manifest.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    try:
        spec = msgspec.convert(manifest.get("spec"), LogProfileSpec)
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{where}: spec: {error}") from error
    annotations = metadata.get("annotations")
    annotations = annotations if isinstance(annotations, dict) else {}
    return NamedProfile(str(metadata.get("name", "")), str(annotations.get(LOG_FORMAT, "")), spec)
