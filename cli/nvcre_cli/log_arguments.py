"""The log and the LogProfile that a person names on the command line: a file, stdin, the name of a built-in profile."""

from __future__ import annotations

import contextlib
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml
from nvcre_local.cluster_objects import log_profiles
from nvcre_local.cluster_yaml import load_document
from nvcre_logs.envelope import Source
from nvcre_logs.profile import LOG_FORMAT, LogProfileSpec
from nvcre_logs.saved_log import NamedProfile

from nvcre_cli.manifest import place_of
from nvcre_cli.problems import UsageProblem

CHUNK_BYTES = 1 << 20
MAX_PROFILE_BYTES = 1 << 20
HELD_BYTES = 64 << 20  # in memory
PACKED = (
    (b"\x1f\x8b", "zcat"),
    (b"\x28\xb5\x2f\xfd", "zstdcat"),
    (b"\xfd7zXZ\0", "xzcat"),
    (b"BZh", "bzcat"),
    (b"PK\x03\x04", "unzip -p"),
)
"""How files of compressors begin (their formats' own documents), and what unpacks them."""


def chunks_of(log: str) -> Iterator[bytes]:
    """A file's, or stdin's for `-`.  Raises UsageProblem."""
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if log == "-" else Path(log).open("rb") as file:
            chunk = file.read(CHUNK_BYTES)
            _refuse_packed(chunk, log)
            while chunk:
                yield chunk
                chunk = file.read(CHUNK_BYTES)
    except OSError as error:
        raise UsageProblem(f"{log}: {error.strerror or error}") from error


@contextlib.contextmanager
def source_of(log: str) -> Iterator[Source]:
    """Of a pipe, which can be read once only, what it gave is kept on the disk."""
    if log != "-" and not _is_pipe(Path(log)):
        yield partial(chunks_of, log)
        return
    with tempfile.SpooledTemporaryFile(HELD_BYTES) as held:
        for chunk in chunks_of(log):
            held.write(chunk)

        def again() -> Iterator[bytes]:
            held.seek(0)
            while chunk := held.read(CHUNK_BYTES):
                yield chunk

        yield again


def _is_pipe(path: Path) -> bool:
    try:
        return not path.is_file() and not path.is_dir() and path.exists()
    except OSError:
        return False  # who opens it is told why


def _refuse_packed(head: bytes, log: str) -> None:
    for magic, tool in PACKED:
        if head.startswith(magic):
            raise UsageProblem(f"{log}: is compressed; {tool} {shlex.quote(log)} | nvcre parse -")


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
        raise UsageProblem(no_profile(name_or_file, shipped))
    if path.stat().st_size > MAX_PROFILE_BYTES:
        raise UsageProblem(f"profile {path}: larger than 1 MiB")
    try:
        document = load_document(path.read_bytes())
    except OSError as error:
        raise UsageProblem(f"profile {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageProblem(
            f"profile {path}{place_of(error)}: not YAML: {getattr(error, 'problem', None) or error}"
        ) from None
    from nvcre_cli.written_profile import wrong_with  # noqa: PLC0415 - schemas take a while to load

    _refuse_other_kinds(document, str(path))
    if wrong := wrong_with(document):
        raise UsageProblem("\n  ".join([f"{path} cannot be used:", *wrong]))
    return _named(document, str(path))


def no_profile(wanted: str, shipped: Iterable[str]) -> str:
    close = get_close_matches(wanted, shipped, 1)
    meant = f"did you mean {close[0]}?" if close else "nvcre profile list has their names"
    return f"profile {wanted}: no such file, and no built-in profile; {meant}"


def _refuse_other_kinds(manifest: Any, where: str) -> None:
    if not isinstance(manifest, dict) or manifest.get("kind") != "LogProfile":
        kind = str(manifest.get("kind"))[:64] if isinstance(manifest, dict) and "kind" in manifest else "no kind"
        raise UsageProblem(f"{where}: not a LogProfile: it has {kind}, where kind: LogProfile is needed")


def _named(manifest: Any, where: str) -> NamedProfile:
    _refuse_other_kinds(manifest, where)
    metadata = manifest.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    try:
        spec = msgspec.convert(manifest.get("spec"), LogProfileSpec)
    except msgspec.ValidationError as error:
        raise UsageProblem(f"{where}: spec: {error}") from error
    annotations = metadata.get("annotations")
    annotations = annotations if isinstance(annotations, dict) else {}
    return NamedProfile(str(metadata.get("name", "")), str(annotations.get(LOG_FORMAT, "")), spec)
