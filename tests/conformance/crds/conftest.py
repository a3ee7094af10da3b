"""The judges: our schema engine alone, and whichever API server is under test."""

import pytest

from ..servers import Server
from .judges import Engine, ServerJudge


@pytest.fixture(scope="session")
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="session")
def server_judge(server: Server) -> ServerJudge:
    return ServerJudge(server)
