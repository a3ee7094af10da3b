"""One conformance suite, two servers: every test that asks for `server` runs against the embedded API server and, under
the marker `cluster`, against a real kube-apiserver. The body of a test never asks which one it has.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from .place import Place
from .servers import Server
from .starting import start_embedded, start_kubelets, start_real


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with contextlib.ExitStack() as stack:
        yield start_embedded(tmp_path_factory.mktemp("embedded"), stack)


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with contextlib.ExitStack() as stack:
        yield start_real(tmp_path_factory.mktemp("real"), stack)


@pytest.fixture(scope="session", params=["embedded", pytest.param("real", marks=pytest.mark.cluster)])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def kubelets(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two nodes that run pods."""
    with contextlib.ExitStack() as stack:
        start_kubelets(server, tmp_path_factory.mktemp("kubelets"), stack)
        yield


@pytest.fixture
def place(server: Server) -> Place:
    """A namespace of the test's own."""
    return Place.new(server, f"t-{secrets.token_hex(4)}")


@pytest.fixture(scope="session")
def home(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kubectl keeps what it has discovered of this server."""
    return tmp_path_factory.mktemp(f"home-{server.name}")
