"""What kubectl prints of the same objects, word for word, from the embedded server and from a real one.

Ages, times, uids and versions differ and are left out; so is the width of columns.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

import pytest

from .kubectl import Kubectl
from .place import Place, configmap, job, owned_by, pod
from .servers import JsonObject, Server
from .statuses import JOB_STATUS, NODE_STATUS, POD_STATUS

pytestmark = pytest.mark.cluster

NODE = "same-words"
TOLERATIONS = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for key in ("not-ready", "unreachable")
]
"""A real server adds them."""

COMMANDS = [
    *("get jobs.nvcre.nvidia.com", "get jobs.nvcre.nvidia.com -o wide", "get job.nvcre.nvidia.com j -o yaml"),
    *("get job.nvcre.nvidia.com j -o json", "get job.nvcre.nvidia.com j -o jsonpath={.status.phase}"),
    *("get pods", "get pods -o wide", "get pods -l app=web", "get pods -l app!=web", "get pods --show-labels"),
    *("get node same-words", "get node same-words -o wide"),
    *("get configmaps --field-selector metadata.name=c", "get configmap c -o yaml", "get secrets"),
    *("get events", "get events -o wide", "get events --field-selector involvedObject.name=j", "get leases"),
    *(
        "get serviceaccounts",
        "get all",
        "get job.nvcre.nvidia.com none",
        "get things",
        "get pods -l =",
        "get pods none",
    ),
    *("get nodehealths same-words", "get pods --field-selector spec.color=red", "get namespaces default"),
    *("describe job.nvcre.nvidia.com j", "describe pod p", "describe configmap c"),
    *("describe nodehealth same-words", "explain jobs.nvcre.nvidia.com.spec"),
    *("explain jobs.nvcre.nvidia.com.spec.workload.trainJob", "explain nodehealths.status.incidents"),
    *("api-resources --api-group=nvcre.nvidia.com", "events"),
    *("delete configmap none", "logs p -c none", "logs none", "auth can-i create pods"),
]
VARIES = [
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
    (r'(resourceVersion"?:) ?"?\d+"?', r"\1 VERSION"),
    (r"(Resource Version:) +\d+", r"\1 VERSION"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "TIME"),
    (r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "TIME"),
    (r"\b(\d+[ydhms])+\b", "AGE"),
    (r"[ \t]+", " "),
]


def normal(text: str) -> list[str]:
    for pattern, name in VARIES:
        text = re.sub(pattern, name, text)
    return [line.strip() for line in text.splitlines()]


def furnish(server: Server, namespace: str) -> Place:
    place = Place.new(server, namespace)
    node = place.create("nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    place.patch("nodes", NODE, {"status": NODE_STATUS}, "status").expect(200)
    made = place.create("jobs", job("j", {"stallMultiplier": 4}, labels={"team": "x"}))
    place.patch("jobs", "j", {"status": JOB_STATUS}, "status").expect(200)
    place.create("nodehealths", health(owned_by(node)))
    place.patch("nodehealths", NODE, {"status": {"verdict": "Healthy", "gpuCount": 8}}, "status").expect(200)
    spec = {"nodeName": NODE, "automountServiceAccountToken": False, "tolerations": TOLERATIONS}
    place.create("pods", pod("p", spec, labels={"app": "web"}, ownerReferences=owned_by(made, controller=True)))
    place.patch("pods", "p", {"status": POD_STATUS}, "status").expect(200)
    place.create("pods", pod("q", {"automountServiceAccountToken": False, "tolerations": TOLERATIONS}))
    place.create("configmaps", configmap("c", {"k": "v"}))
    place.create("secrets", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "v"}})
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}}
    place.create("leases", {**lease, "spec": {"holderIdentity": "me"}})
    place.create("events", event(made, namespace))
    return place


def health(owner: list[JsonObject]) -> JsonObject:
    metadata = {"name": NODE, "ownerReferences": owner}
    return {"apiVersion": "nvcre.nvidia.com/v1alpha1", "kind": "NodeHealth", "metadata": metadata}


def event(about: JsonObject, namespace: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "j.1"},
        "involvedObject": {**owned_by(about)[0], "namespace": namespace},
        "type": "Warning",
        "reason": "Broken",
        "message": "it broke",
        "source": {"component": "nvcre", "host": NODE},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:01:00Z",
        "count": 3,
    }


@pytest.fixture(scope="module")
def both(embedded: Server, real: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Kubectl, Kubectl]:
    namespace = f"t-{secrets.token_hex(4)}"
    homes: Any = (tmp_path_factory.mktemp("home") for _ in range(2))
    places = (furnish(server, namespace) for server in (embedded, real))
    first, second = (Kubectl(place.server, home, namespace) for place, home in zip(places, homes, strict=True))
    return first, second


@pytest.mark.parametrize("command", COMMANDS)
def test_kubectl_prints_the_same(both: tuple[Kubectl, Kubectl], command: str) -> None:
    ours, theirs = (kubectl.run(*command.split()) for kubectl in both)
    assert normal(ours.stdout) == normal(theirs.stdout)
    assert normal(ours.stderr) == normal(theirs.stderr)
    assert ours.returncode == theirs.returncode
