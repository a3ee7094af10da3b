"""Starts the judges. The real one needs etcd and kube-apiserver: in the directory KUBEBUILDER_ASSETS, else in
~/.cache/nvcre/control-plane/bin. Without them its cases are skipped.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .control_planes import start_embedded, start_kube_apiserver, wait_for
from .judges import Engine, Server, crds


@pytest.fixture(scope="session")
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="session", params=["embedded", "kube-apiserver"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    assets = Path(os.environ.get("KUBEBUILDER_ASSETS") or Path.home() / ".cache/nvcre/control-plane/bin")
    real = request.param == "kube-apiserver"
    if real and not all((assets / name).exists() for name in ("etcd", "kube-apiserver")):
        pytest.skip(f"no etcd and kube-apiserver in {assets} (set KUBEBUILDER_ASSETS)")
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp(request.param)
        started = start_kube_apiserver(assets, folder, stack) if real else start_embedded(folder, stack)
        for crd in crds():
            started.install(crd)
        wait_for("the CRDs to be served", started.served)
        yield started
