"""Which projects make up the control plane, in which versions, and where their go.mod lies."""

from pathlib import Path

import pytest
from nvcre_local.control_plane.projects import KUBERNETES, UnknownVersion, parse, read, select

CONTENT = {
    "kubernetes": {
        "module": "k8s.io/kubernetes",
        "versions": ["v1.36.3", "v1.35.7"],
        "programs": {"kubectl": "k8s.io/kubernetes/cmd/kubectl"},
        "stamp": "k8s.io/component-base/version",
    },
    "etcd": {"module": "go.etcd.io/etcd/server/v3", "versions": ["v3.6.16"], "programs": {"etcd": "go.etcd.io/etcd"}},
}


def test_the_first_version_is_the_usual_one_and_further_ones_have_a_folder_of_their_own():
    usual, older = parse(CONTENT, Path("/cp"))[KUBERNETES]
    assert (usual.version, usual.module_directory, usual.is_usual) == ("v1.36.3", Path("/cp/kubernetes"), True)
    assert (older.version, older.module_directory, older.is_usual) == ("v1.35.7", Path("/cp/kubernetes/v1.35.7"), False)


def test_a_version_is_chosen_for_kubernetes_alone():
    chosen = select(parse(CONTENT, Path("/cp")), "v1.35.7")
    assert {name: project.version for name, project in chosen.items()} == {"kubernetes": "v1.35.7", "etcd": "v3.6.16"}


def test_an_unlisted_version_says_where_to_list_it():
    with pytest.raises(
        UnknownVersion, match=r"v1\.2\.3 is not among v1\.36\.3, v1\.35\.7: add it to kubernetes\.versions"
    ):
        select(parse(CONTENT, Path("/cp")), "v1.2.3")


def test_clients_get_to_see_the_version_they_parse():
    usual = parse(CONTENT, Path("/cp"))[KUBERNETES][0]
    assert usual.link_flags.split(" -X ") == [
        "-s -w",
        "k8s.io/component-base/version.gitVersion=v1.36.3",
        "k8s.io/component-base/version.gitMajor=1",
        "k8s.io/component-base/version.gitMinor=36",
    ]


def test_every_project_of_the_repository_is_pinned():
    for versions in read().values():
        for project in versions:
            text = (project.module_directory / "go.mod").read_text()
            assert f"{project.module} {project.version}" in text
            assert all(package in text for package in project.programs.values())
            assert f"{project.module} {project.version} h1:" in (project.module_directory / "go.sum").read_text()
