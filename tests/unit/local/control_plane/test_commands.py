"""How the programs of the control plane are started."""

from pathlib import Path

import pytest
import yaml
from nvcre_local.control_plane.certificates import Pair
from nvcre_local.control_plane.commands import (
    ApiServerFiles,
    Audit,
    Command,
    ControllerPorts,
    audit_policy,
    controller,
    jobset_config,
    kube_apiserver,
    kueue_config,
    serving_directory,
    trainer_config,
    with_kueue_certificates,
)

PAIR = Pair(Path("/d/x.crt"), Path("/d/x.key"))


def test_the_api_server_listens_where_it_is_told_and_shows_kubelets_its_certificate():
    kubelet = Pair(Path("/d/kubelet.crt"), Path("/d/kubelet.key"))
    files = ApiServerFiles(PAIR, PAIR, kubelet, PAIR, Path("/d/ca.crt"), Path("/d/tokens"))
    command = kube_apiserver(Path("/b/kube-apiserver"), files, Path("/d/api"), host="127.0.0.1", port=6443, etcd=2379)
    assert command.ready == "https://127.0.0.1:6443/readyz"
    assert {
        "--bind-address=127.0.0.1",
        "--secure-port=6443",
        "--authorization-mode=Node,RBAC",
        "--kubelet-client-certificate=/d/kubelet.crt",
        "--etcd-servers=https://127.0.0.1:2379",
    } <= set(command.words)


def test_the_api_server_logs_what_a_group_of_users_asks_of_it_if_it_is_told_to():
    files = ApiServerFiles(PAIR, PAIR, PAIR, PAIR, Path("/d/ca.crt"), Path("/d/tokens"))
    audit = Audit(policy=Path("/d/policy.yaml"), log=Path("/logs/audit.jsonl"))
    command = kube_apiserver(Path("/b/a"), files, Path("/d/api"), host="::1", port=1, etcd=2, audit=audit)
    assert {"--audit-policy-file=/d/policy.yaml", "--audit-log-path=/logs/audit.jsonl"} <= set(command.words)
    rules = yaml.safe_load(audit_policy("system:serviceaccounts:nvcre-system"))["rules"]
    assert rules == [
        {"level": "Metadata", "userGroups": ["system:serviceaccounts:nvcre-system"]},
        {"level": "None"},
    ]


@pytest.mark.parametrize(
    "config", [jobset_config, trainer_config, lambda ports: kueue_config(ports, Path("/certificates"))]
)
def test_a_controller_gets_ports_of_its_own_on_loopback_and_no_leader_election(config):
    content = yaml.safe_load(config(ControllerPorts(webhook=1, health=2, status=3)))
    webhook = content["webhook"]
    assert (webhook["host"], webhook["port"], webhook.get("certDir", "/certificates")) == (
        "127.0.0.1",
        1,
        "/certificates",
    )
    assert content["health"] == {"healthProbeBindAddress": "127.0.0.1:2"}
    assert content["metrics"] == {"bindAddress": "0"}
    assert content["leaderElection"] == {"leaderElect": False}


def test_a_controller_finds_its_certificate_below_a_tmpdir_of_its_own():
    command = controller("jobset", Path("/b/jobset"), Path("/d/kubeconfig"), Path("/d/jobset"), 2)
    assert command.environment == {"KUBECONFIG": "/d/kubeconfig", "TMPDIR": "/d/jobset"}
    assert serving_directory(Path("/d/jobset")) == Path("/d/jobset/k8s-webhook-server/serving-certs")


def test_kueue_alone_sees_another_etc():
    command = with_kueue_certificates(Command("kueue", ("/b/kueue", "--config=c"), "ready", {"A": "b"}), Path("/d/etc"))
    assert command.words[:3] == ("unshare", "--map-root-user", "--mount")
    assert command.words[-3:] == ("/d/etc", "/b/kueue", "--config=c")
    assert (command.ready, command.environment) == ("ready", {"A": "b"})
