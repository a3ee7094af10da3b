"""A person's kubectl, the machine's own, with a kubeconfig that carries the token."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl on PATH")

Run = Callable[..., subprocess.CompletedProcess[str]]

POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: web}}
spec:
  containers:
  - {name: main, image: none, command: [sleep, "1"], env: [{name: A, value: "1"}]}
"""
WIDGET = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: %s}\nspec: {size: %s}\n"


@pytest.fixture(scope="module")
def environment(server: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("home")  # kubectl caches discovery here
    config = server.kubeconfig(home / "kubeconfig")
    return {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(config)}


@pytest.fixture(scope="module")
def kubectl(environment: dict[str, str]) -> Run:
    def run(*arguments: str, stdin: str = "", ok: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["kubectl", *arguments],
            input=stdin,
            env=environment,
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert not ok or done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def following(environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """kubectl commands that do not end by themselves."""
    started: list[subprocess.Popen[str]] = []

    def follow(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(["kubectl", *arguments], env=environment, text=True, stdout=subprocess.PIPE)
        started.append(process)
        return process

    yield follow
    for process in started:
        process.kill()
        process.communicate()


def test_a_token_is_needed(server: Any, kubectl: Run, tmp_path: Path) -> None:
    config = server.kubeconfig(tmp_path / "kubeconfig", token="wrong")
    done = kubectl("--kubeconfig", str(config), "get", "pods", ok=False)
    assert done.returncode != 0
    assert "must be logged in" in done.stderr


def test_it_finds_kinds_by_short_name_and_category(kubectl: Run) -> None:
    listed = kubectl("api-resources").stdout
    assert "widgets" in listed
    assert "wd " in listed
    kubectl("get", "wd")
    kubectl("get", "all")


def test_apply_creates_leaves_and_changes(kubectl: Run) -> None:
    text = WIDGET % ("applied", 1) + "---\n" + POD % "applied"
    assert kubectl("apply", "-f", "-", stdin=text).stdout.count("created") == 2
    again = kubectl("apply", "-f", "-", stdin=text)
    assert again.stdout.count("unchanged") == 2
    assert again.stderr == ""
    assert "widget.example.com/applied configured" in kubectl("apply", "-f", "-", stdin=WIDGET % ("applied", 2)).stdout


def test_apply_refuses_unknown_fields_by_name(kubectl: Run) -> None:
    done = kubectl("apply", "-f", "-", stdin=WIDGET % ("strict", "1, bogus: 2"), ok=False)
    assert 'strict decoding error: unknown field "spec.bogus"' in done.stderr
    assert (
        "unknown field"
        in kubectl("apply", "--validate=warn", "-f", "-", stdin=WIDGET % ("warned", "1, bogus: 2")).stderr
    )


def test_a_broken_rule_is_told_with_its_field(kubectl: Run) -> None:
    done = kubectl("apply", "-f", "-", stdin=WIDGET % ("negative", -1), ok=False)
    assert 'The Widget "negative" is invalid' in done.stderr
    assert "spec.size" in done.stderr


def test_diff_shows_what_apply_would_do(kubectl: Run) -> None:
    kubectl("apply", "-f", "-", stdin=WIDGET % ("differ", 1))
    done = kubectl("diff", "-f", "-", stdin=WIDGET % ("differ", 2), ok=False)
    assert done.returncode == 1, done.stderr
    assert "+  size: 2" in done.stdout


def test_server_side_apply_is_refused_with_the_way_out(kubectl: Run) -> None:
    done = kubectl("apply", "--server-side", "-f", "-", stdin=WIDGET % ("ssa", 1), ok=False)
    assert "without --server-side" in done.stderr


def test_get_prints_the_columns_of_the_definition(kubectl: Run) -> None:
    kubectl("apply", "-f", "-", stdin=WIDGET % ("column", 42))
    assert kubectl("get", "widget", "column").stdout.split() == ["NAME", "SIZE", "column", "42"]
    kubectl("apply", "-f", "-", stdin=POD % "column")
    assert kubectl("get", "pod", "column").stdout.split()[:9] == [
        "NAME", "READY", "STATUS", "RESTARTS", "AGE", "column", "0/1", "Pending", "0",
    ]  # fmt: skip
    assert "app=web" in kubectl("get", "pods", "--show-labels").stdout


def test_label_annotate_patch(kubectl: Run) -> None:
    kubectl("apply", "-f", "-", stdin=POD % "patched")
    kubectl("label", "pod", "patched", "k=v")
    kubectl("annotate", "pod", "patched", "a=b")
    kubectl("patch", "pod", "patched", "--subresource=status", "-p", '{"status":{"phase":"Running"}}')
    assert kubectl("get", "pods", "-l", "k=v", "-o", "name").stdout == "pod/patched\n"
    kubectl("patch", "pod", "patched", "--type=json", "-p", '[{"op":"remove","path":"/metadata/labels/k"}]')
    assert kubectl("get", "pods", "-l", "k=v", "-o", "name").stdout == ""
    running = kubectl("get", "pods", "--field-selector", "status.phase=Running", "-o", "name").stdout
    assert "pod/patched" in running


def test_describe_finds_the_events_of_an_object(kubectl: Run) -> None:
    uid = kubectl("apply", "-f", "-", "-o", "jsonpath={.metadata.uid}", stdin=WIDGET % ("described", 1)).stdout
    event = f"""
apiVersion: v1
kind: Event
metadata: {{name: described.1}}
involvedObject: {{apiVersion: example.com/v1, kind: Widget, name: described, namespace: default, uid: {uid}}}
type: Warning
reason: Broken
message: it broke
lastTimestamp: "2026-01-01T00:00:00Z"
"""
    kubectl("create", "-f", "-", stdin=event)
    assert "it broke" in kubectl("describe", "widget", "described").stdout
    assert "widget/described" in kubectl("get", "events").stdout
    kubectl("apply", "-f", "-", stdin=POD % "described")
    assert "Service Account:  default" in kubectl("describe", "pod", "described").stdout


def test_explain_reads_the_definition(kubectl: Run) -> None:
    assert "How big it is." in kubectl("explain", "widget.spec.size").stdout
    assert "KIND:       Pod" in kubectl("explain", "pod").stdout


def test_wait_for_a_condition_and_for_the_end(kubectl: Run, following: Any) -> None:
    kubectl("apply", "-f", "-", stdin=WIDGET % ("awaited", 1))
    waiting = following("wait", "--for=condition=Ready", "widget/awaited", "--timeout=30s")
    status = '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'
    kubectl("patch", "widget", "awaited", "--subresource=status", "--type=merge", "-p", status)
    assert waiting.wait(timeout=30) == 0
    waiting = following("wait", "--for=delete", "widget/awaited", "--timeout=30s")
    kubectl("delete", "widget", "awaited")
    assert waiting.wait(timeout=30) == 0


def test_get_watch_prints_rows_as_they_change(kubectl: Run, following: Any) -> None:
    kubectl("apply", "-f", "-", stdin=WIDGET % ("watched", 1))
    watch = following("get", "widget", "watched", "--watch")
    assert watch.stdout.readline().split() == ["NAME", "SIZE"]
    assert watch.stdout.readline().split() == ["watched", "1"]
    kubectl("patch", "widget", "watched", "--type=merge", "-p", '{"spec":{"size":7}}')
    assert watch.stdout.readline().split() == ["watched", "7"]


def test_delete_waits_for_finalizers(kubectl: Run, following: Any) -> None:
    kubectl("apply", "-f", "-", stdin=WIDGET % ("held", 1))
    kubectl("patch", "widget", "held", "--type=merge", "-p", '{"metadata":{"finalizers":["example.com/f"]}}')
    deleting = following("delete", "widget", "held")
    assert "deleted" in deleting.stdout.readline()
    kubectl("patch", "widget", "held", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert deleting.wait(timeout=30) == 0
    assert "not found" in kubectl("get", "widget", "held", ok=False).stderr


def test_cordon_and_uncordon(kubectl: Run) -> None:
    kubectl("create", "-f", "-", stdin="apiVersion: v1\nkind: Node\nmetadata: {name: node-c}\n")
    kubectl("cordon", "node-c")
    assert "SchedulingDisabled" in kubectl("get", "node", "node-c").stdout
    kubectl("uncordon", "node-c")
    assert "SchedulingDisabled" not in kubectl("get", "node", "node-c").stdout
    assert "Non-terminated Pods" in kubectl("describe", "node", "node-c").stdout


def test_namespaces_come_and_go(kubectl: Run) -> None:
    kubectl("create", "-f", "-", stdin="apiVersion: v1\nkind: Namespace\nmetadata: {name: fleeting}\n")
    kubectl("-n", "fleeting", "create", "-f", "-", stdin=WIDGET % ("inside", 1))
    kubectl("delete", "namespace", "fleeting", "--timeout=30s")
    assert "not found" in kubectl("get", "namespace", "fleeting", ok=False).stderr


def test_what_kubectl_sends_as_protobuf(kubectl: Run) -> None:
    kubectl("create", "namespace", "typed")
    kubectl("-n", "typed", "create", "configmap", "c", "--from-literal=a=b")
    kubectl("-n", "typed", "create", "secret", "generic", "s", "--from-literal=a=b")
    kubectl("-n", "typed", "create", "serviceaccount", "agent")
    assert kubectl("-n", "typed", "get", "configmap", "c", "-o", "jsonpath={.data.a}").stdout == "b"
    assert kubectl("-n", "typed", "get", "secret", "s", "-o", "jsonpath={.data.a}").stdout == "Yg=="
    token = kubectl("-n", "typed", "create", "token", "agent", "--audience=them", "--duration=1h").stdout
    assert token.count(".") == 2
    assert kubectl("auth", "can-i", "create", "pods").stdout == "yes\n"
    assert "admin" in kubectl("auth", "whoami").stdout


def test_drain_evicts_and_deletes(kubectl: Run) -> None:
    kubectl("create", "-f", "-", stdin="apiVersion: v1\nkind: Node\nmetadata: {name: node-d}\n")
    pod = POD.replace("spec:", "spec:\n  nodeName: node-d\n  terminationGracePeriodSeconds: 0") % "drained"
    kubectl("create", "-f", "-", stdin=pod)
    kubectl("drain", "node-d", "--force", "--timeout=30s")
    assert "not found" in kubectl("get", "pod", "drained", ok=False).stderr
