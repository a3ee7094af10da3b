"""What a cluster gets applied: every file is reached, every flag exists, no right is wider than it must be."""

import importlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DAEMONSET = ROOT / "daemonset"


def documents(*files: Path) -> list[dict[str, Any]]:
    return [document for file in files for document in yaml.safe_load_all(file.read_text()) if document]


KUSTOMIZATION = documents(DAEMONSET / "kustomization.yaml")[0]
APPLIED = documents(*(DAEMONSET / name for name in KUSTOMIZATION["resources"]))


def only(kind: str, name: str) -> dict[str, Any]:
    (found,) = [doc for doc in APPLIED if doc["kind"] == kind and doc["metadata"]["name"] == name]
    return found


def test_every_manifest_is_applied():
    on_disk = {str(file.relative_to(DAEMONSET)) for file in DAEMONSET.rglob("*.yaml")} - {"kustomization.yaml"}
    assert on_disk == set(KUSTOMIZATION["resources"])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kustomize_renders_all_of_it():
    rendered = subprocess.run(["kubectl", "kustomize", DAEMONSET], capture_output=True, text=True, check=True).stdout
    assert len(list(yaml.safe_load_all(rendered))) == len(APPLIED)


@pytest.mark.parametrize(
    ("kind", "name", "module"),
    [("DaemonSet", "nvcre-agent", "nvcre_agent"), ("Deployment", "nvcre-coordinator", "nvcre_coordinator")],
)
def test_every_flag_is_one_the_process_knows(kind, name, module, capsys):
    (container,) = only(kind, name)["spec"]["template"]["spec"]["containers"]
    flags = {argument.split("=")[0] for argument in container["args"]}
    with pytest.raises(SystemExit):
        importlib.import_module(f"{module}.config").parse(["--help"])
    assert flags <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    declared = {variable["name"] for variable in container["env"]}
    used = set(re.findall(r"\$\((\w+)\)", " ".join(container["args"])))
    assert used <= declared


def test_the_agent_has_no_rights_and_a_token_for_us_only():
    subjects = [
        subject["name"] for doc in APPLIED if doc["kind"].endswith("RoleBinding") for subject in doc["subjects"]
    ]
    assert "nvcre-agent" not in subjects
    spec = only("DaemonSet", "nvcre-agent")["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    (token,) = [volume for volume in spec["volumes"] if volume["name"] == "token"]
    assert token["projected"]["sources"][0]["serviceAccountToken"]["audience"] == "nvcre-coordinator"


def test_nodes_are_never_written_and_nothing_is_wild():
    for role in (doc for doc in APPLIED if doc["kind"] in ("ClusterRole", "Role")):
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
            if {"nodes", "nodes/status"} & set(rule["resources"]):
                assert set(rule["verbs"]) <= {"get", "list", "watch"}
            if role["kind"] == "ClusterRole":
                assert "secrets" not in rule["resources"]


@pytest.mark.parametrize(("kind", "name"), [("DaemonSet", "nvcre-agent"), ("Deployment", "nvcre-coordinator")])
def test_the_root_filesystem_is_read_only(kind, name):
    (container,) = only(kind, name)["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_coordinator_runs_as_nobody_in_particular():
    pod = only("Deployment", "nvcre-coordinator")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert re.search(r"^USER 65532:65532$", (ROOT / "Dockerfile.coordinator").read_text(), re.MULTILINE)


@pytest.mark.parametrize("image", ["agent", "coordinator"])
def test_an_image_installs_its_lock(image):
    text = (ROOT / f"Dockerfile.{image}").read_text()
    assert f"--require-hashes -r requirements/{image}.lock" in text
    assert (ROOT / f"requirements/{image}.lock").exists()
