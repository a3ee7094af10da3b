"""What an operator gives the agent: its configuration file, and a request on the control socket."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvcre_agent import config, named_files
from nvcre_agent.config import ConfigError
from nvcre_agent.control import MAX_REQUEST, ControlSocket, RefusedError
from nvcre_agent.nvml.snapshot import GpuIdentity, PciAddress
from nvcre_agent.which_gpu import UnknownGpuError, which_gpu

from fuzz.loop import in_loop
from fuzz.scratch import scratch

PATIENCE_S = 60.0
GPU = GpuIdentity(0, "GPU-0", PciAddress(0, 0x1B, 0), "H100", "1")


def agent_config(data: bytes) -> None:
    """A file is used or refused with sentences; so is one as the operator's catalogue or limits."""
    file = scratch("agent.yaml")
    file.write_bytes(data)
    problems = config.check_file(file)
    assert all(str(one).startswith(f"{file}:") for one in problems)
    with contextlib.suppress(ConfigError):
        got = config.resolve({"config": str(file), "node-name": "n"}, {})
        assert not problems
        assert config.differences(got, got) == ([], [])
    for named in ((file, None), (None, file)):
        with contextlib.suppress(ConfigError):
            named_files.read(*named)


def control(data: bytes) -> None:
    """One request; whatever it is gets one line back, and so does the next one."""
    in_loop(_control(data))


async def _control(data: bytes) -> None:
    path = await _serving()
    answer = await _ask(path, data)
    assert answer.get("ok") in (True, False), answer
    assert await _ask(path, b'{"do": "gpu", "gpu": "0"}\n') == {"ok": True, "index": 0}


async def _ask(path: Path, data: bytes) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_unix_connection(path, limit=4 * MAX_REQUEST)
        try:
            writer.write(data[: 2 * MAX_REQUEST])
            writer.write_eof()
            line = await reader.readline()
        except ConnectionError:
            return {"ok": False}  # it hung up on what is too long
        finally:
            writer.close()
    return dict(json.loads(line)) if line else {"ok": False}


async def _gpu(request: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return {"index": which_gpu([GPU], str(request.get("gpu"))).index}
    except UnknownGpuError as error:
        raise RefusedError(str(error)) from None


_sockets: list[Path] = []


async def _serving() -> Path:
    if not _sockets:
        path = scratch("control.sock")
        await ControlSocket(path, {"gpu": _gpu}).start()
        _sockets.append(path)
    return _sockets[0]
