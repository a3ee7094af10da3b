"""The go.mod of a version that is added to versions.yaml."""

from pathlib import Path

import pytest
from nvcre_local.control_plane.go_modules import StrangeModule, go_mod
from nvcre_local.control_plane.projects import Project

KUBERNETES = Project(
    "kubernetes",
    "k8s.io/kubernetes",
    "v1.35.7",
    Path("/cp/kubernetes/v1.35.7"),
    {"kubectl": "k8s.io/kubernetes/cmd/kubectl"},
)
UPSTREAM = """\
module k8s.io/kubernetes

go 1.25.0

require k8s.io/api v0.0.0

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/apimachinery => ./staging/src/k8s.io/apimachinery
)
"""


def test_staging_modules_are_replaced_by_their_published_versions():
    assert go_mod(KUBERNETES, UPSTREAM) == (
        "module nvcre.local/control-plane/kubernetes/v1.35.7\n\ngo 1.25.0\n\n"
        "tool (\n\tk8s.io/kubernetes/cmd/kubectl\n)\n\nrequire k8s.io/kubernetes v1.35.7\n\n"
        "replace (\n\tk8s.io/api => k8s.io/api v0.35.7\n\tk8s.io/apimachinery => k8s.io/apimachinery v0.35.7\n)\n"
    )


def test_replacements_inside_an_upstream_checkout_are_not_repeated():
    etcd = Project(
        "etcd", "go.etcd.io/etcd/server/v3", "v3.6.16", Path("/cp/etcd"), {"etcd": "go.etcd.io/etcd/server/v3"}
    )
    text = go_mod(etcd, "module x\n\ngo 1.26.0\n\nreplace (\n\tgo.etcd.io/etcd/api/v3 => ../api\n)\n")
    assert "replace" not in text
    assert text.startswith("module nvcre.local/control-plane/etcd\n")


def test_a_go_mod_without_go_line_is_refused():
    with pytest.raises(StrangeModule, match=r"k8s\.io/kubernetes v1\.35\.7: its go\.mod has no go line"):
        go_mod(KUBERNETES, "module x\n")
