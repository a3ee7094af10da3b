"""Decides how each program of the control plane is started: its flags, its config file, its environment. Pure.

The flags that matter are those of a kubeadm cluster; the rest is what lets everything run on loopback, several times on
one machine, and start quickly: no leader election, no fsync, ports and directories of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nvcre_local.control_plane.certificates import LOOPBACK, Pair

JsonObject = dict[str, Any]

SERVICE_ADDRESSES = "10.96.0.0/16"
SERVICE_ACCOUNT_ISSUER = "https://kubernetes.default.svc"
KUEUE_FRAMEWORKS = ("batch/job", "jobset.x-k8s.io/jobset", "trainer.kubeflow.org/trainjob")
KUEUE_CERTIFICATES = Path("/etc/kueue/metrics/certs")


@dataclass(frozen=True, slots=True)
class Command:
    """`ready` is a URL that answers 200 once the program serves; "" where nothing is asked."""

    name: str
    words: tuple[str, ...]
    ready: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApiServerFiles:
    serving: Pair
    etcd: Pair
    kubelet: Pair
    """What the API server shows to kubelets."""
    service_accounts: Pair
    authority: Path
    tokens: Path


@dataclass(frozen=True, slots=True)
class Audit:
    """`policy`: which requests are told; `log`: where, one JSON object a line. An older log is continued."""

    policy: Path
    log: Path


@dataclass(frozen=True, slots=True)
class ControllerPorts:
    webhook: int
    health: int
    status: int = 0


def etcd(program: Path, data: Path, pair: Pair, authority: Path, *, client: int, peer: int) -> Command:
    client_url, peer_url = f"https://{LOOPBACK}:{client}", f"https://{LOOPBACK}:{peer}"
    flags = {
        "name": "nvcre",
        "data-dir": data,
        "listen-client-urls": client_url,
        "advertise-client-urls": client_url,
        "listen-peer-urls": peer_url,
        "initial-advertise-peer-urls": peer_url,
        "initial-cluster": f"nvcre={peer_url}",
        "cert-file": pair.certificate,
        "key-file": pair.key,
        "trusted-ca-file": authority,
        "client-cert-auth": "true",
        "peer-cert-file": pair.certificate,
        "peer-key-file": pair.key,
        "peer-trusted-ca-file": authority,
        "peer-client-cert-auth": "true",
        "unsafe-no-fsync": "true",
        "log-level": "warn",
    }
    return Command("etcd", (str(program), *_flags(flags)))


def kube_apiserver(
    program: Path,
    files: ApiServerFiles,
    directory: Path,
    *,
    host: str,
    port: int,
    etcd: int,
    audit: Audit | None = None,
) -> Command:
    flags: dict[str, object] = {
        "etcd-servers": f"https://{LOOPBACK}:{etcd}",
        "etcd-cafile": files.authority,
        "etcd-certfile": files.etcd.certificate,
        "etcd-keyfile": files.etcd.key,
        "bind-address": host,
        "secure-port": port,
        "advertise-address": LOOPBACK,
        # Nobody here reaches it through the Service, and a loopback address is no valid endpoint of one.
        "endpoint-reconciler-type": "none",
        "cert-dir": directory,
        "tls-cert-file": files.serving.certificate,
        "tls-private-key-file": files.serving.key,
        "token-auth-file": files.tokens,
        "authorization-mode": "Node,RBAC",
        # Off in most clusters, on in OpenShift: who owns what is created, and blocks its deletion, needs rights on it.
        "enable-admission-plugins": "OwnerReferencesPermissionEnforcement",
        "allow-privileged": "true",
        "service-cluster-ip-range": SERVICE_ADDRESSES,
        "service-account-issuer": SERVICE_ACCOUNT_ISSUER,
        "service-account-key-file": files.service_accounts.certificate,
        "service-account-signing-key-file": files.service_accounts.key,
        "kubelet-client-certificate": files.kubelet.certificate,
        "kubelet-client-key": files.kubelet.key,
        "kubelet-preferred-address-types": "InternalIP",
        "profiling": "false",
    }
    if audit is not None:
        flags |= {"audit-policy-file": audit.policy, "audit-log-path": audit.log}
    ready = f"https://{LOOPBACK}:{port}/readyz"
    return Command("kube-apiserver", (str(program), *_flags(flags)), ready)


def audit_policy(group: str) -> str:
    """Every request of the users of `group`, once when its answer begins and once when it is complete; no contents."""
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "userGroups": [group]}, {"level": "None"}],
    }
    return yaml.safe_dump(policy, sort_keys=False)


def kube_controller_manager(
    program: Path, kubeconfig: Path, keys: Pair, authority: Path, directory: Path, *, port: int
) -> Command:
    flags = {
        "kubeconfig": kubeconfig,
        "service-account-private-key-file": keys.key,
        "root-ca-file": authority,
        "use-service-account-credentials": "true",
        # Pods are at loopback here, which is no valid address of an endpoint: these would only fail, again and again.
        "controllers": "*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller",
        "leader-elect": "false",
        "bind-address": LOOPBACK,
        "secure-port": port,
        "cert-dir": directory,
        "profiling": "false",
    }
    return Command("kube-controller-manager", (str(program), *_flags(flags)), f"https://{LOOPBACK}:{port}/healthz")


def kube_scheduler(program: Path, kubeconfig: Path, directory: Path, *, port: int) -> Command:
    flags = {
        "kubeconfig": kubeconfig,
        "leader-elect": "false",
        "bind-address": LOOPBACK,
        "secure-port": port,
        "cert-dir": directory,
        "profiling": "false",
    }
    return Command("kube-scheduler", (str(program), *_flags(flags)), f"https://{LOOPBACK}:{port}/healthz")


def controller(name: str, program: Path, kubeconfig: Path, directory: Path, health: int, *more: str) -> Command:
    """JobSet, Trainer, Kueue. `directory` is its TMPDIR: controller-runtime looks there for the serving certificate."""
    return Command(
        name,
        (str(program), f"--config={directory / 'config.yaml'}", *more),
        f"http://{LOOPBACK}:{health}/readyz",
        {"KUBECONFIG": str(kubeconfig), "TMPDIR": str(directory)},
    )


def kwok(program: Path, kubeconfig: Path, stages: tuple[Path, ...], *, port: int) -> Command:
    words = (
        str(program),
        f"--kubeconfig={kubeconfig}",
        *(f"--config={stage}" for stage in stages),
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        f"--server-address={LOOPBACK}:{port}",
    )
    return Command("kwok", words, f"http://{LOOPBACK}:{port}/healthz")


def serving_directory(tmpdir: Path) -> Path:
    """Controller-runtime's default place of tls.crt and tls.key."""
    return tmpdir / "k8s-webhook-server" / "serving-certs"


def jobset_config(ports: ControllerPorts) -> str:
    return _yaml("config.jobset.x-k8s.io/v1alpha1", ports, {"internalCertManagement": {"enable": False}})


def trainer_config(ports: ControllerPorts) -> str:
    more: JsonObject = {
        "certManagement": {"enable": False},
        "statusServer": {"port": ports.status},
        "controller": {"groupKindConcurrency": {"TrainJob.trainer.kubeflow.org": 5}},  # as it is installed; else 1
    }
    return _yaml("config.trainer.kubeflow.org/v1alpha1", ports, more)


def kueue_config(ports: ControllerPorts, certificates: Path) -> str:
    """It does not look below TMPDIR: its own default names /tmp."""
    more: JsonObject = {
        "webhook": {"host": LOOPBACK, "port": ports.webhook, "certDir": str(certificates)},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": list(KUEUE_FRAMEWORKS)},
    }
    return _yaml("config.kueue.x-k8s.io/v1beta2", ports, more)


def _yaml(api_version: str, ports: ControllerPorts, more: JsonObject) -> str:
    config = {
        "apiVersion": api_version,
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{LOOPBACK}:{ports.health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": LOOPBACK, "port": ports.webhook},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": 500, "burst": 500},
        **more,
    }
    return yaml.safe_dump(config, sort_keys=False)


def with_kueue_certificates(command: Command, etc: Path) -> Command:
    """Kueue reads its metrics certificate at a fixed path below /etc; `etc` takes /etc's place for it alone."""
    script = 'mount --bind "$0" /etc && exec "$@"'
    return Command(
        command.name,
        ("unshare", "--map-root-user", "--mount", "sh", "-c", script, str(etc), *command.words),
        command.ready,
        command.environment,
    )


def _flags(flags: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]
