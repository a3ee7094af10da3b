"""Starts the judges. The real one is a case of `make test-cluster`, which builds etcd and kube-apiserver if need be."""

import contextlib
from collections.abc import Iterator

import pytest
from nvcre_local.control_plane.cache import Cache
from nvcre_local.control_plane.projects import read, select

from .control_planes import start_embedded, start_kube_apiserver, wait_for
from .judges import Engine, Server, crds


@pytest.fixture(scope="session")
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="session", params=["embedded", pytest.param("kube-apiserver", marks=pytest.mark.cluster)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp(request.param)
        if request.param == "kube-apiserver":
            projects = select(read())
            programs = {
                name: Cache.of().program(projects[project], name)
                for project, name in (("etcd", "etcd"), ("kubernetes", "kube-apiserver"))
            }
            started = start_kube_apiserver(programs, folder, stack)
        else:
            started = start_embedded(folder, stack)
        for crd in crds():
            started.install(crd)
        wait_for("the CRDs to be served", started.served)
        yield started
