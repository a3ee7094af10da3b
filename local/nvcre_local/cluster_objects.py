"""What a local cluster begins with: kubeconfigs, tokens, ServiceAccounts, the runtime, the agents' Pods.

Builds values; `cluster` creates them. The names are the contract in docs/architecture.md.
"""

from __future__ import annotations

import base64
import os
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from nvcre_kube.resources import JsonObject

import nvcre_local
from nvcre_local.cluster_hardware import Hardware
from nvcre_local.cluster_yaml import load_documents
from nvcre_local.scenario import Scenario

SYSTEM_NAMESPACE = "nvcre-system"
AGENT_ACCOUNT = "nvcre-agent"
COORDINATOR_ACCOUNT = "nvcre-coordinator"
TOKEN_AUDIENCE = "nvcre-coordinator"  # noqa: S105  (a name, not a secret)
CA_CONFIG_MAP = "nvcre-coordinator-ca"
TOKEN_LIFETIME_S = 3600

_PACKAGE = Path(nvcre_local.__file__).parent
_CHECKOUT = _PACKAGE.parent.parent


class NotInstalled(Exception):
    """Files that belong to nvcre are neither in the checkout nor in the installed package."""


def shipped(in_checkout: str, in_package: str) -> Path:
    """A directory of the repository, or its copy inside an installed wheel."""
    for candidate in (_CHECKOUT / in_checkout, _PACKAGE / in_package):
        if candidate.is_dir():
            return candidate
    raise NotInstalled(f"neither {_CHECKOUT / in_checkout} nor {_PACKAGE / in_package} exists; reinstall nvcre")


def crd_directories() -> list[Path]:
    """Ours, and the few fields of Kubeflow Trainer's that a local run needs."""
    return [shipped("daemonset/crds", "crds/nvcre"), _PACKAGE / "crds"]


def example_scenarios() -> dict[str, Path]:
    directory = shipped("examples", "examples") / "scenarios"
    return {path.stem: path for path in sorted(directory.glob("*.yaml"))}


def log_profile_files() -> dict[str, Path]:
    """By the name of the profile."""
    directory = shipped("daemonset/log-profiles", "log-profiles")
    return {path.stem: path for path in sorted(directory.glob("*.yaml"))}


def log_profiles() -> Iterator[JsonObject]:
    for path in log_profile_files().values():
        yield from load_documents(path.read_text())


@dataclass(frozen=True, slots=True)
class Identity:
    """A user of the embedded API server."""

    user: str
    groups: tuple[str, ...]
    token: str

    @classmethod
    def new(cls, user: str, *groups: str) -> Identity:
        return cls(user, groups, secrets.token_urlsafe(32))

    @property
    def line(self) -> str:
        """Of a static token file: token,user,uid,"groups"."""
        return f'{self.token},{self.user},{self.user},"{",".join(self.groups)}"\n'


def write_secret(path: Path, content: str) -> Path:
    """Readable by us alone from its first moment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    return path


def kubeconfig(url: str, identity: Identity, *, ca: str | Path = "") -> str:
    """`ca`, PEM or a file of it, goes with an https address. Python clients copy PEM to a temporary file, which stays
    behind when they are killed; a file they read in place."""
    cluster = {"server": url}
    match ca:
        case Path():
            cluster["certificate-authority"] = str(ca)
        case str() if ca:
            cluster["certificate-authority-data"] = base64.b64encode(ca.encode()).decode()
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "nvcre-local", "cluster": cluster}],
        "users": [{"name": identity.user, "user": {"token": identity.token}}],
        "contexts": [
            {
                "name": "nvcre-local",
                "context": {"cluster": "nvcre-local", "user": identity.user, "namespace": "default"},
            }
        ],
        "current-context": "nvcre-local",
    }
    return yaml.safe_dump(content, sort_keys=False)


def namespace(name: str) -> JsonObject:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def service_account(name: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
    }


def _runtime(file: str, in_namespace: str) -> tuple[JsonObject, dict[str, dict[str, Any]]]:
    """The template and its containers by replicated job."""
    runtime = yaml.safe_load((resources.files("nvcre_local") / "data" / file).read_text())
    runtime["metadata"]["namespace"] = in_namespace
    containers = {
        job["name"]: job["template"]["spec"]["template"]["spec"]["containers"][0]
        for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]
    }
    return runtime, containers


def simulated_runtime(scenario: Scenario, in_namespace: str) -> JsonObject:
    runtime, containers = _runtime("runtime-simulated.yaml", in_namespace)
    runtime["spec"]["mlPolicy"]["mpi"]["numProcPerNode"] = scenario.gpus_per_node
    # Not mlPolicy.numNodes: Kubeflow Trainer gives that many Pods to the launcher too, as the step of the trainer.
    workers = next(job for job in runtime["spec"]["template"]["spec"]["replicatedJobs"] if job["name"] == "node")
    workers["template"]["spec"] |= {"parallelism": scenario.nodes, "completions": scenario.nodes}
    containers["node"]["resources"] = {"limits": {"nvidia.com/gpu": scenario.gpus_per_node}}
    return runtime


def real_runtime(hardware: Hardware, program: Path, in_namespace: str) -> JsonObject:
    runtime, containers = _runtime("runtime-real.yaml", in_namespace)
    launcher = containers["launcher"]
    launcher["command"] = [str(program), *launcher["command"][1:-1], str(hardware.gpus)]
    launcher["resources"] = {"limits": {"nvidia.com/gpu": hardware.gpus}}
    if libraries := os.environ.get("LD_LIBRARY_PATH"):
        launcher["env"] = [{"name": "LD_LIBRARY_PATH", "value": libraries}]
    return runtime


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """What one agent watches; `simulate` and the rest are None on real GPUs."""

    node: str
    coordinator: str
    simulate: Path | None = None
    kernel_log: Path | None = None
    nccl_tests: Path | None = None


def agent_pod(plan: AgentPlan) -> JsonObject:
    """As the DaemonSet makes them, with directories in place of mounts (docs/architecture.md)."""
    volumes = "$(NVCRE_POD_DIR)/volumes"
    command = [
        sys.executable,
        "-m",
        "nvcre_agent",
        f"--node-name={plan.node}",
        f"--coordinator={plan.coordinator}",
        f"--ca-file={volumes}/ca/ca.crt",
        f"--token-file={volumes}/token/token",
        f"--outbox={volumes}/state/outbox.sqlite",
        "--listen=127.0.0.1:0",
    ]
    for flag, value in (
        ("--simulate", plan.simulate),
        ("--kernel-log", plan.kernel_log),
        ("--nccl-tests-dir", plan.nccl_tests),
    ):
        if value is not None:
            command.append(f"{flag}={value}")
    environment = [
        {"name": name, "value": os.environ[name]}
        for name in ("LD_LIBRARY_PATH",)
        if plan.simulate is None and name in os.environ
    ]
    token = {"audience": TOKEN_AUDIENCE, "expirationSeconds": TOKEN_LIFETIME_S, "path": "token"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"nvcre-agent-{plan.node}",
            "namespace": SYSTEM_NAMESPACE,
            "labels": {"app.kubernetes.io/name": "nvcre-agent", "app.kubernetes.io/part-of": "nvcre"},
        },
        "spec": {
            "nodeName": plan.node,
            "serviceAccountName": AGENT_ACCOUNT,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 5,
            "containers": [{"name": "agent", "image": "nvcre-agent", "command": command, "env": environment}],
            "volumes": [
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}},
                {"name": "ca", "configMap": {"name": CA_CONFIG_MAP}},
                {"name": "state", "emptyDir": {}},
            ],
        },
    }
