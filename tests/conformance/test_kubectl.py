"""The verbs of kubectl that people use here: what they see is the same on both servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .kubectl import Kubectl
from .place import Place, configmap, job, owned_by, pod
from .starting import wait_for

JOB = """
apiVersion: nvcre.nvidia.com/v1alpha1
kind: Job
metadata: {name: %s}
spec:
  workload: {trainJob: {runtimeRef: {name: nccl}}}
  stallMultiplier: %s
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: web}}
spec:
  containers:
  - {name: main, image: none, command: [sleep, "1"], env: [{name: A, value: "1"}]}
"""
CONFIGMAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {k: '%s'}\n"


@pytest.fixture
def kubectl(place: Place, home: Path) -> Kubectl:
    return Kubectl(place.server, home, place.namespace)


@pytest.mark.parametrize(
    ("manifest", "name", "path"),
    [
        (JOB, "job.nvcre.nvidia.com/a", "{.spec.stallMultiplier}"),
        (CONFIGMAP, "configmap/a", "{.data.k}"),
        (POD, "pod/a", "{.spec.containers[0].env[0].value}"),
    ],
    ids=["job", "configmap", "pod"],
)
def test_apply_says_what_it_did(kubectl: Kubectl, manifest: str, name: str, path: str) -> None:
    text = manifest % (("a", 1) if manifest.count("%s") == 2 else "a")
    assert kubectl("apply", "-f", "-", stdin=text) == f"{name} created\n"
    assert kubectl("apply", "-f", "-", stdin=text) == f"{name} unchanged\n"
    assert kubectl("get", name, "-o", f"jsonpath={path}") == "1"


def test_apply_changes_and_removes_fields(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=JOB % ("a", 1))
    assert kubectl("apply", "-f", "-", stdin=JOB % ("a", 2)) == "job.nvcre.nvidia.com/a configured\n"
    assert kubectl("get", "job.nvcre.nvidia.com/a", "-o", "jsonpath={.spec.stallMultiplier}") == "2"
    kubectl("apply", "-f", "-", stdin=CONFIGMAP % ("c", "1"))
    kubectl("apply", "-f", "-", stdin="apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {l: '2'}\n")
    assert kubectl("get", "configmap", "c", "-o", "jsonpath={.data}") == '{"l":"2"}'


def test_apply_of_a_changed_immutable_field_is_refused(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=JOB % ("a", 1))
    said = kubectl.refused("apply", "-f", "-", stdin=(JOB % ("a", 1)).replace("name: nccl", "name: other"))
    assert 'The Job "a" is invalid: spec.workload: Invalid value: workload is immutable' in said
    kubectl("apply", "-f", "-", stdin=POD % "p")
    said = kubectl.refused("apply", "-f", "-", stdin=(POD % "p").replace('value: "1"', 'value: "2"'))
    assert 'The Pod "p" is invalid: spec: Forbidden: pod updates may not change fields other than' in said


def test_a_broken_rule_is_told_with_its_field(kubectl: Kubectl) -> None:
    said = kubectl.refused("apply", "-f", "-", stdin=JOB % ("a", 0))
    assert said.startswith('The Job "a" is invalid: spec.stallMultiplier: Invalid value: 0: ')


def test_an_unknown_field_is_refused_before_anything_is_written(kubectl: Kubectl) -> None:
    said = kubectl.refused("apply", "-f", "-", stdin=JOB % ("a", "1\n  bogus: 1"))
    assert 'strict decoding error: unknown field "spec.bogus"' in said
    assert "NotFound" in kubectl.refused("get", "job.nvcre.nvidia.com", "a")


def test_get_prints_the_columns_of_a_kind(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=POD % "p")
    assert kubectl("get", "pod", "p").split()[:9] == [
        *("NAME", "READY", "STATUS", "RESTARTS", "AGE"),
        *("p", "0/1", "Pending", "0"),
    ]
    assert "NOMINATED NODE" in kubectl("get", "pods", "-o", "wide")
    assert "app=web" in kubectl("get", "pods", "--show-labels")
    assert kubectl("get", "pods", "-l", "app=web", "-o", "name") == "pod/p\n"
    assert kubectl("get", "pods", "-l", "app=db", "-o", "name") == ""
    assert kubectl("get", "pods", "--field-selector", "status.phase=Pending", "-o", "name") == "pod/p\n"
    assert "kind: Pod" in kubectl("get", "pod", "p", "-o", "yaml")
    assert kubectl("get", "pod", "p", "-o", "custom-columns=N:.metadata.name") == "N\np\n"


def test_get_watch_prints_rows_as_they_change(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=CONFIGMAP % ("c", "1"))
    with kubectl.running("get", "configmap", "c", "--watch") as watch:
        assert watch.stdout is not None
        assert watch.stdout.readline().split() == ["NAME", "DATA", "AGE"]
        assert watch.stdout.readline().split()[:2] == ["c", "1"]
        kubectl("patch", "configmap", "c", "-p", '{"data":{"l":"2"}}')
        assert watch.stdout.readline().split()[:2] == ["c", "2"]


def test_label_annotate_patch(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=POD % "p")
    assert kubectl("label", "pod", "p", "k=v") == "pod/p labeled\n"
    assert kubectl("annotate", "pod", "p", "a=b") == "pod/p annotated\n"
    kubectl("patch", "pod", "p", "--subresource=status", "-p", '{"status":{"phase":"Running"}}')
    assert kubectl("get", "pods", "-l", "k=v", "-o", "name") == "pod/p\n"
    kubectl("patch", "pod", "p", "--type=json", "-p", '[{"op":"remove","path":"/metadata/labels/k"}]')
    assert kubectl("get", "pods", "-l", "k=v", "-o", "name") == ""


def test_diff_shows_what_apply_would_do(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=JOB % ("a", 1))
    assert kubectl("diff", "-f", "-", stdin=JOB % ("a", 1)) == ""
    done = kubectl.run("diff", "-f", "-", stdin=JOB % ("a", 2))
    assert done.returncode == 1, done.stderr
    changes = [line for line in done.stdout.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changes == ["-  generation: 1", "+  generation: 2", "-  stallMultiplier: 1", "+  stallMultiplier: 2"]
    assert kubectl("get", "job.nvcre.nvidia.com/a", "-o", "jsonpath={.spec.stallMultiplier}") == "1"


def editor(tmp_path: Path, command: str) -> Path:
    script = tmp_path / "editor"
    script.write_text(f'#!/bin/sh\n{command} "$1"\n')
    script.chmod(0o755)
    return script


def test_edit_writes_what_the_editor_leaves(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl("apply", "-f", "-", stdin=JOB % ("a", 1))
    change = editor(tmp_path, "sed -i 's/stallMultiplier: 1/stallMultiplier: 5/'")
    assert kubectl("edit", "job.nvcre.nvidia.com", "a", editor=change) == "job.nvcre.nvidia.com/a edited\n"
    assert kubectl("get", "job.nvcre.nvidia.com/a", "-o", "jsonpath={.spec.stallMultiplier}") == "5"
    nothing = kubectl.run("edit", "job.nvcre.nvidia.com", "a", editor=editor(tmp_path, "touch"))
    assert "Edit cancelled, no changes made." in nothing.stdout + nothing.stderr


def test_edit_of_an_immutable_field_is_refused(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl("apply", "-f", "-", stdin=JOB % ("a", 1))
    change = editor(tmp_path, "sed -i 's/name: nccl/name: other/'")
    done = kubectl.run("edit", "job.nvcre.nvidia.com", "a", editor=change)
    assert done.returncode == 1
    assert 'jobs.nvcre.nvidia.com "a" is invalid' in done.stderr


def test_describe_finds_the_events_of_an_object(kubectl: Kubectl, place: Place) -> None:
    made = place.create("jobs", job("a"))
    involved = {**owned_by(made)[0], "namespace": place.namespace}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "a.1"}, "involvedObject": involved}
    event |= {"type": "Warning", "reason": "Broken", "message": "it broke", "lastTimestamp": "2026-01-01T00:00:00Z"}
    place.create("events", event)
    said = kubectl("describe", "job.nvcre.nvidia.com", "a")
    assert said.startswith("Name:         a\n")
    assert "Runtime Ref:" in said
    assert "it broke" in said
    rows = kubectl("get", "events").splitlines()
    assert rows[0].split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert rows[1].split()[1:] == ["Warning", "Broken", "job/a", "it", "broke"]
    assert "it broke" in kubectl("events", "--for", "job.nvcre.nvidia.com/a")


def test_describe_of_a_pod_and_a_node(kubectl: Kubectl, place: Place) -> None:
    node = f"d-{place.namespace}"
    place.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    place.create("pods", pod("p", {"nodeName": node}))
    said = kubectl("describe", "pod", "p")
    assert "Service Account:  default" in said
    assert f"Node:             {node}/" in said
    said = kubectl("describe", "node", node)
    assert "Non-terminated Pods:          (1 in total)" in said
    place.delete("pods", "p", {"gracePeriodSeconds": 0}).expect(200)
    place.delete("nodes", node).expect(200)


def test_explain_reads_the_definition(kubectl: Kubectl) -> None:
    said = kubectl("explain", "jobs.nvcre.nvidia.com.spec.workload.trainJob.runtimeRef")
    assert "GROUP:      nvcre.nvidia.com\nKIND:       Job\nVERSION:    v1alpha1\n" in said
    assert "FIELD: runtimeRef <Object>" in said
    assert "  name\t<string> -required-" in said
    assert "stallMultiplier" in kubectl("explain", "jobs.nvcre.nvidia.com", "--recursive")
    assert "KIND:       Pod" in kubectl("explain", "pod")
    assert 'field "bogus" does not exist' in kubectl.refused("explain", "jobs.nvcre.nvidia.com.spec.bogus")


def test_wait_for_a_condition_a_value_and_the_end(kubectl: Kubectl, place: Place) -> None:
    place.create("jobs", job("a"))
    name = "job.nvcre.nvidia.com/a"
    ready = {
        "type": "Attributed",
        "status": "True",
        "reason": "R",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    with kubectl.running("wait", "--for=condition=Attributed", name, "--timeout=60s") as waiting:
        place.patch("jobs", "a", {"status": {"conditions": [ready], "restartCount": 3}}, "status").expect(200)
        assert waiting.wait(60) == 0
    assert kubectl("wait", "--for=jsonpath={.status.restartCount}=3", name) == f"{name} condition met\n"
    assert "timed out" in kubectl.refused("wait", "--for=condition=Other", name, "--timeout=1s")
    with kubectl.running("wait", "--for=delete", name, "--timeout=60s") as waiting:
        place.delete("jobs", "a").expect(200)
        assert waiting.wait(60) == 0


def test_delete_waits_for_finalizers_unless_told_otherwise(kubectl: Kubectl, place: Place) -> None:
    for name in ("a", "b"):
        place.create("configmaps", configmap(name, finalizers=["conformance.example.com/f"]))
    assert kubectl("delete", "configmap", "b", "--wait=false").startswith('configmap "b" deleted')
    with kubectl.running("delete", "configmap", "a") as deleting:
        assert deleting.stdout is not None
        assert deleting.stdout.readline().startswith('configmap "a" deleted')
        assert deleting.poll() is None
        place.patch("configmaps", "a", {"metadata": {"finalizers": None}}).expect(200)
        assert deleting.wait(60) == 0
    assert "NotFound" in kubectl.refused("get", "configmap", "a")
    place.patch("configmaps", "b", {"metadata": {"finalizers": None}}).expect(200)
    assert kubectl("delete", "configmap", "b", "--ignore-not-found") == ""


@pytest.mark.parametrize(("cascade", "stays"), [("background", False), ("foreground", False), ("orphan", True)])
def test_delete_and_what_the_object_owns(kubectl: Kubectl, place: Place, cascade: str, stays: bool) -> None:
    owner = place.create("configmaps", configmap("o"))
    place.create("configmaps", configmap("child", ownerReferences=owned_by(owner, blockOwnerDeletion=True)))
    kubectl("delete", "configmap", "o", f"--cascade={cascade}")
    if stays:
        assert "ownerReferences" not in place.get("configmaps", "child").expect(200)["metadata"]
    else:
        wait_for("the child to go", lambda: place.is_gone("configmaps", "child"))


def test_cordon_and_uncordon(kubectl: Kubectl, place: Place) -> None:
    node = f"c-{place.namespace}"
    place.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    assert kubectl("cordon", node) == f"node/{node} cordoned\n"
    assert kubectl("cordon", node) == f"node/{node} already cordoned\n"
    assert "SchedulingDisabled" in kubectl("get", "node", node)
    assert kubectl("uncordon", node) == f"node/{node} uncordoned\n"
    assert "SchedulingDisabled" not in kubectl("get", "node", node)
    place.delete("nodes", node).expect(200)


def test_drain_evicts_and_deletes(kubectl: Kubectl, place: Place) -> None:
    node = f"drained-{place.namespace}"
    place.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    place.create("pods", pod("p", {"nodeName": node, "terminationGracePeriodSeconds": 0}))
    kubectl("drain", node, "--force", "--timeout=60s")
    assert place.get("pods", "p").code == 404
    place.delete("nodes", node).expect(200)


@pytest.mark.usefixtures("kubelets")
def test_logs(kubectl: Kubectl, place: Place) -> None:
    def container(name: str, script: str) -> dict[str, Any]:
        return {"name": name, "image": "none", "command": ["sh", "-c", script]}

    containers = [container("main", "for i in 1 2 3; do echo line $i; done"), container("side", "echo aside")]
    place.create("pods", pod("p", {"nodeName": "node-0", "containers": containers}))
    wait_for("the pod to end", lambda: place.get("pods", "p").body["status"]["phase"] == "Succeeded")
    assert kubectl("logs", "p", "-c", "main") == "line 1\nline 2\nline 3\n"
    assert kubectl("logs", "p", "-c", "main", "--tail=1") == "line 3\n"
    assert kubectl("logs", "p", "-c", "main", "-f", "--since=1h") == "line 1\nline 2\nline 3\n"
    assert kubectl("logs", "p", "-c", "side", "--timestamps").split()[1] == "aside"
    assert kubectl("logs", "p") == "line 1\nline 2\nline 3\n"  # it takes the first container and says so
    assert "Completed" in kubectl("get", "pod", "p")
    assert "previous terminated container" in kubectl.refused("logs", "p", "-c", "main", "--previous")


def test_namespaces_come_and_go(kubectl: Kubectl, place: Place) -> None:
    name = f"n-{place.namespace}"
    assert kubectl("create", "namespace", name) == f"namespace/{name} created\n"
    kubectl("create", "configmap", "c", "--from-literal=a=b", "-n", name)
    assert kubectl("delete", "namespace", name, "--timeout=60s") == f'namespace "{name}" deleted\n'
    assert "NotFound" in kubectl.refused("get", "namespace", name)


def test_what_kubectl_sends_in_other_forms(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "c", "--from-literal=a=b")
    kubectl("create", "secret", "generic", "s", "--from-literal=a=b")
    kubectl("create", "serviceaccount", "agent")
    assert kubectl("get", "configmap", "c", "-o", "jsonpath={.data.a}") == "b"
    assert kubectl("get", "secret", "s", "-o", "jsonpath={.data.a}") == "Yg=="
    assert kubectl("create", "token", "agent", "--audience=them", "--duration=1h").count(".") == 2
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"
    assert "admin" in kubectl("auth", "whoami")


def test_api_resources_lists_what_is_served(kubectl: Kubectl) -> None:
    rows = [line.split() for line in kubectl("api-resources", "--api-group=nvcre.nvidia.com").splitlines()]
    assert ["nodehealths", "nh", "nvcre.nvidia.com/v1alpha1", "false", "NodeHealth"] in rows
