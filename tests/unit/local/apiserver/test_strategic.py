"""Strategic merge: lists with a merge key merge by it, others are replaced; directives as kubectl apply sends them."""

from typing import Any

import pytest
from nvcre_local.apiserver.patch import MalformedPatch
from nvcre_local.apiserver.strategic import strategic_merge


def pod(**spec: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        pytest.param(
            pod(containers=[{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]),
            {"spec": {"containers": [{"name": "b", "image": "2"}]}},
            pod(containers=[{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]),
            id="containers by name",
        ),
        pytest.param(
            pod(containers=[{"name": "a", "env": [{"name": "X", "value": "1"}]}]),
            {"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}]}},
            pod(containers=[{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}]),
            id="env by name",
        ),
        pytest.param(
            pod(containers=[{"name": "a"}, {"name": "b"}]),
            {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}},
            pod(containers=[{"name": "b"}]),
            id="an entry is deleted by its key",
        ),
        pytest.param(
            pod(tolerations=[{"key": "a"}]),
            {"spec": {"tolerations": [{"key": "b"}]}},
            pod(tolerations=[{"key": "b"}]),
            id="tolerations are replaced",
        ),
        pytest.param(
            {"kind": "Node", "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Disk"}]}},
            {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
            {"kind": "Node", "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Disk"}]}},
            id="conditions by type",
        ),
        pytest.param(
            {"kind": "Pod", "metadata": {"finalizers": ["a"]}},
            {"metadata": {"finalizers": ["b"]}},
            {"kind": "Pod", "metadata": {"finalizers": ["a", "b"]}},
            id="finalizers are a set",
        ),
        pytest.param(
            {"kind": "Pod", "metadata": {"finalizers": ["a", "b"]}},
            {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}},
            {"kind": "Pod", "metadata": {"finalizers": ["b"]}},
            id="one finalizer is removed",
        ),
        pytest.param(
            pod(containers=[{"name": "a"}, {"name": "b"}]),
            {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "b"}]}},
            pod(containers=[{"name": "b"}, {"name": "a"}]),
            id="the client's order",
        ),
        pytest.param(
            pod(volumes=[{"name": "v", "emptyDir": {}}]),
            {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "configMap"], "configMap": {"name": "c"}}]}},
            pod(volumes=[{"name": "v", "configMap": {"name": "c"}}]),
            id="retainKeys drops the other source of a volume",
        ),
        pytest.param(
            pod(nodeSelector={"a": "1"}),
            {"spec": {"nodeSelector": {"$patch": "replace", "b": "2"}}},
            pod(nodeSelector={"b": "2"}),
            id="a map is replaced",
        ),
        pytest.param(
            {"kind": "Service", "spec": {"ports": [{"port": 80, "name": "x"}]}},
            {"spec": {"ports": [{"port": 80, "name": "y"}]}},
            {"kind": "Service", "spec": {"ports": [{"port": 80, "name": "y"}]}},
            id="a Service's ports by port",
        ),
        pytest.param(pod(x=1), {"spec": {"x": None}}, pod(), id="null removes"),
    ],
)
def test_merges(before: dict[str, Any], patch: dict[str, Any], after: dict[str, Any]) -> None:
    assert strategic_merge(before, patch) == after


@pytest.mark.parametrize(
    "patch", [[], {"spec": {"containers": [{"image": "x"}]}}, {"spec": {"$patch": "explode"}}, {"$retainKeys": 1}]
)
def test_what_is_no_patch_says_so(patch: Any) -> None:
    with pytest.raises(MalformedPatch):
        strategic_merge(pod(containers=[{"name": "a"}]), patch)
