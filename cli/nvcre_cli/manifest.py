"""Reads a manifest: one or several YAML documents, at least one of them a Job. Applies nothing.

Every complaint names the file and the line or the document; whether the objects obey the API's rules is for the API
server to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nvcre_kube.resources as known
import yaml
from nvcre_kube.resources import JOBS, JsonObject, Resource
from nvcre_local.cluster_yaml import load_documents

from nvcre_cli.problems import UsageProblem

MAX_BYTES = 4 << 20
SCENARIO_KEYS = {"nodes", "product", "bandwidth", "faults", "expect"}

RESOURCES = {(r.api_version, r.kind): r for r in vars(known).values() if isinstance(r, Resource)}


@dataclass(frozen=True, slots=True)
class Document:
    resource: Resource
    content: JsonObject

    @property
    def name(self) -> str:
        return str(self.content["metadata"]["name"])

    @property
    def namespace(self) -> str | None:
        if not self.resource.namespaced:
            return None
        return str(self.content["metadata"].get("namespace") or "default")

    @property
    def title(self) -> str:
        return (
            f"{self.resource.kind} {self.name}"
            if self.namespace is None
            else f"{self.resource.kind} {self.namespace}/{self.name}"
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    documents: tuple[Document, ...]

    @property
    def jobs(self) -> list[Document]:
        return [document for document in self.documents if document.resource == JOBS]

    @property
    def namespaces(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(d.namespace for d in self.documents if d.namespace is not None))


def read_manifest(path: Path) -> Manifest:
    """Raises UsageProblem."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageProblem(f"{path}: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise UsageProblem(f"{path}: larger than {MAX_BYTES >> 20} MiB; a manifest is a few kilobytes")
    return parse_manifest(raw, where=str(path))


def parse_manifest(raw: bytes | str, *, where: str) -> Manifest:
    try:
        contents = load_documents(raw)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageProblem(f"{where}{place_of(error)}: not YAML: {getattr(error, 'problem', None) or error}") from None
    documents = tuple(_document(content, f"{where}: document {n}") for n, content in enumerate(contents, start=1))
    manifest = Manifest(documents)
    titles = [document.title for document in documents]
    if twice := next((title for n, title in enumerate(titles) if title in titles[:n]), None):
        raise UsageProblem(f"{where}: {twice} is in it twice; give each a name of its own")
    if not manifest.jobs:
        raise UsageProblem(f"{where}: no Job of {JOBS.api_version} in it; see examples/nccl-all-reduce.yaml")
    return manifest


def place_of(error: Exception) -> str:
    """`:9:5`, where a complaint of YAML's reader has a place."""
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""


def _document(content: Any, where: str) -> Document:
    if not isinstance(content, dict):
        raise UsageProblem(f"{where} is not an object (a mapping with apiVersion, kind and metadata)")
    for key in ("apiVersion", "kind"):
        if not isinstance(content.get(key), str):
            is_scenario = SCENARIO_KEYS & content.keys()
            remedy = "; a scenario is given with --scenario, beside a manifest" if is_scenario else ""
            raise UsageProblem(f"{where}: {key} is missing{remedy}")
    resource = RESOURCES.get((content["apiVersion"], content["kind"]))
    if resource is None:
        raise UsageProblem(
            f"{where}: {content['kind']} of {content['apiVersion']} cannot be applied by this command; "
            f"kinds it knows: {', '.join(sorted({kind for _, kind in RESOURCES}))}"
        )
    metadata = content.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise UsageProblem(f"{where}: metadata.name is missing")
    if not isinstance(metadata.get("namespace", ""), str):
        raise UsageProblem(f"{where}: metadata.namespace is not text")
    _text_keys(content, where)
    return Document(resource, content)


def _text_keys(content: Any, where: str) -> None:
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise UsageProblem(f"{where}: the key {key!r} is not text; quote it")
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
