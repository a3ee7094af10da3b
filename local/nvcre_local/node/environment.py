"""Decides the environment, the arguments and the program of a container.

Pure: a Pod is its containers' processes, nothing of the parent's environment passes but what the contract names
(docs/architecture.md, "python -m nvcre_local.node"). It neither looks at the file system nor starts anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from nvcre_kube.resources import JsonObject

POD_ADDRESS = "127.0.0.1"
"""Every Pod is reachable at loopback: it is a process of this machine."""

_KEYED_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class RefusedContainer(Exception):
    """The container can never start here; the message names the field and the remedy."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a container gets from the machine it runs on."""

    path: str
    home: str
    lang: str
    simulation: PurePath | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """A container ready to be started: `argv[0]` is still a name to be looked up on PATH."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    working_dir: str


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; `$$` is a plain `$`; an unknown name and an unclosed reference stay as written.

    The rules are those of Kubernetes (k8s.io/kubernetes/third_party/forked/golang/expansion).
    """
    out: list[str] = []
    position = 0
    while (dollar := text.find("$", position)) >= 0 and dollar + 1 < len(text):
        out.append(text[position:dollar])
        match text[dollar + 1]:
            case "$":
                out.append("$")
                position = dollar + 2
            case "(":
                end = text.find(")", dollar)
                if end < 0:
                    out.append("$(")
                    position = dollar + 2
                else:
                    name = text[dollar + 2 : end]
                    out.append(variables.get(name, text[dollar : end + 1]))
                    position = end + 1
            case other:
                out.append("$" + other)
                position = dollar + 2
    out.append(text[position:])
    return "".join(out)


def field_value(pod: JsonObject, path: str) -> str:
    """The value of a `fieldRef`; raises RefusedContainer for a field that a local Pod cannot give."""
    metadata, spec = pod["metadata"], pod["spec"]
    match path:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(metadata[path.removeprefix("metadata.")])
        case "spec.nodeName" | "spec.serviceAccountName":
            return str(spec.get(path.removeprefix("spec."), ""))
        case "status.podIP" | "status.podIPs" | "status.hostIP" | "status.hostIPs":
            return POD_ADDRESS
    if keyed := _KEYED_FIELD.fullmatch(path):
        return str((metadata.get(keyed[1]) or {}).get(keyed[2], ""))
    raise RefusedContainer(f"fieldRef {path!r} is not available on a local cluster")


def _variable(pod: JsonObject, container: str, entry: JsonObject, known: Mapping[str, str]) -> str | None:
    """The value of one `env` entry; None for an optional reference, which counts as absent."""
    name = entry["name"]
    source = entry.get("valueFrom")
    if not source:
        return expand(entry.get("value") or "", known)
    if reference := source.get("fieldRef"):
        try:
            return field_value(pod, reference.get("fieldPath", ""))
        except RefusedContainer as refusal:
            raise RefusedContainer(f"container {container!r}: env {name}: {refusal}") from None
    kind = next(iter(source), "valueFrom")
    if source[kind].get("optional"):
        return None
    raise RefusedContainer(
        f"container {container!r}: env {name}: {kind} is not supported on a local cluster; "
        "give a plain value, or mount the ConfigMap as a volume"
    )


def environment(pod: JsonObject, container: JsonObject, *, pod_dir: str, machine: Machine) -> dict[str, str]:
    """The whole environment of a container's process."""
    name = container["name"]
    for source in container.get("envFrom") or ():
        kind = next((key for key in source if key != "prefix"), "envFrom")
        if not source.get(kind, {}).get("optional"):
            raise RefusedContainer(
                f"container {name!r}: envFrom {kind} is not supported on a local cluster; list the variables in env"
            )
    env = {
        "PATH": machine.path,
        "HOME": machine.home,
        "LANG": machine.lang,
        "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"],
        "NVCRE_POD_DIR": pod_dir,
    }
    if machine.simulation is not None:
        env["NVCRE_SIMULATION"] = str(machine.simulation)
        # A scenario's programs have to know whose part they play, whatever the manifest says.
        env["NVCRE_NODE_NAME"] = pod["spec"].get("nodeName", "")
        env["NVCRE_POD_NAME"] = pod["metadata"]["name"]
    for entry in container.get("env") or ():
        value = _variable(pod, name, entry, env)
        if value is not None:
            env[entry["name"]] = value
    if machine.simulation is not None:
        # Also before a PATH of the container's own: a scenario's programs must win over the machine's.
        env["PATH"] = f"{machine.simulation / 'bin'}:{env['PATH']}"
    return env


def launch(pod: JsonObject, container: JsonObject, *, pod_dir: str, machine: Machine) -> Launch:
    """What to start for a container; raises RefusedContainer when it cannot be started here."""
    name = container["name"]
    command: Sequence[str] = container.get("command") or ()
    if not command:
        raise RefusedContainer(
            f"container {name!r} has no command: a Pod is a process here and image {container.get('image', '')!r} is "
            "not pulled, so its entrypoint is unknown; name the program in the container's command "
            "(in a TrainJob: spec.trainer.command)"
        )
    env = environment(pod, container, pod_dir=pod_dir, machine=machine)
    words = tuple(expand(word, env) for word in (*command, *(container.get("args") or ())))
    for text in (*words, *env, *env.values()):
        if "\0" in text:
            raise RefusedContainer(f"container {name!r}: command, args and env must not contain a NUL character")
    return Launch(argv=words, env=env, working_dir=expand(container.get("workingDir") or pod_dir, env))
