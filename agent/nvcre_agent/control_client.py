"""The other end of the control socket, for the commands that ask the running agent."""

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvcre_agent.control import address

MAX_ANSWER = 8 * 1024 * 1024


class NoAgentError(Exception):
    """The agent did not answer; the text says what to do."""


class AgentRefusedError(Exception):
    """The agent answered that it will not; the text is its own."""


def ask(path: Path, request: Mapping[str, Any], *, named_by: str, timeout_s: float = 30.0) -> dict[str, Any]:
    """`named_by` says where the path comes from, for the person who has to find the right one."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            with address(path) as where:
                connection.connect(where)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline(MAX_ANSWER)
    except (FileNotFoundError, ConnectionRefusedError):
        raise NoAgentError(
            f"no agent listens at {path} ({named_by}); does it run here? --config FILE or --control-socket FILE "
            "name those of another one"
        ) from None
    except PermissionError:
        raise NoAgentError(f"{path} is for root and the agent's user, not for uid {os.getuid()}") from None
    except TimeoutError:
        raise NoAgentError(f"the agent at {path} did not answer within {timeout_s:g} s; see /healthz") from None
    except OSError as error:
        raise NoAgentError(f"{path}: {error.strerror or error}") from None
    try:
        answer = json.loads(line)
    except ValueError:
        raise NoAgentError(f"the agent at {path} ended while it answered") from None
    if not answer.pop("ok", False):
        raise AgentRefusedError(str(answer.get("error", "no reason given")))
    return dict(answer)
