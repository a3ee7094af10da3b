"""One conformance suite, two servers: every test that asks for `server` runs against the embedded API server and, under
the marker `cluster`, against a real kube-apiserver. The body of a test never asks which one it has.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from nvcre_local.control_plane.projects import KUBERNETES, read

from .place import Place
from .servers import Server
from .starting import start_embedded, start_kubelets, start_real

EMBEDDED = "embedded"
VERSIONS = [project.version for project in read()[KUBERNETES]]
"""Of kube-apiserver, the usual one first."""


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """From EMBEDDED or a version to its server, which lives as long as the test run."""
    with contextlib.ExitStack() as stack:

        @cache
        def start(which: str) -> Server:
            folder = tmp_path_factory.mktemp(which)
            return start_embedded(folder, stack) if which == EMBEDDED else start_real(which, folder, stack)

        yield start


@pytest.fixture(
    scope="session", params=[EMBEDDED, *(pytest.param(version, marks=pytest.mark.cluster) for version in VERSIONS)]
)
def server(started: Callable[[str], Server], request: pytest.FixtureRequest) -> Server:
    return started(request.param)


@pytest.fixture(scope="session")
def embedded(started: Callable[[str], Server]) -> Server:
    return started(EMBEDDED)


@pytest.fixture(scope="session")
def real(started: Callable[[str], Server]) -> Server:
    return started(VERSIONS[0])


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
