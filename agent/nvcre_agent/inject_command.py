"""`nvcre-agent inject`: a marked test Xid in the kernel log, to see the way from the node to the coordinator work.

A process cannot write as the kernel does: the record carries the facility `user`, by which the agent shows it as
injected and never blames anybody for it. The running agent is asked which GPUs there are and which log it reads.
"""

import argparse
import os
import stat
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nvcre_protos.flags import Flags

from nvcre_agent.command_line import (
    add_control_socket,
    add_xid_catalogue,
    ask_agent,
    printable,
    printable_lines,
    use_xid_catalogue,
)
from nvcre_agent.control_client import AgentRefusedError, NoAgentError
from nvcre_agent.nvml.snapshot import GpuIdentity, PciAddress
from nvcre_agent.which_gpu import UnknownGpuError, which_gpu
from nvcre_agent.xid.catalogue import catalogue

DONE, REFUSED, NO_AGENT = 0, 1, 2
_PRIORITY = 1 << 3 | 3  # facility user, level err

_DESCRIPTION = """\
Writes a test Xid of one GPU into the kernel log that the running agent reads. The record is marked: a process cannot
write with the kernel's facility. So it is shown as injected (in `nvcre-agent state`, in the metric
nvcre_agent_injected_signals_total and in NodeHealth) and no node, GPU or Job is blamed for it.
"""
_EPILOG = """\
exit codes:
  0  written
  1  refused: an Xid that the catalogue does not know, a GPU that this node does not have, no permission to write
  2  usage, or no agent answers

example:
  nvcre-agent inject --xid 79 --gpu 0
"""


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    parser = argparse.ArgumentParser(
        prog="nvcre-agent inject",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--xid", metavar="NUMBER", required=True, help="an Xid of the catalogue, such as 79")
    parser.add_argument("--gpu", metavar="GPU", required=True, help="index, UUID or PCI address")
    flags = Flags(parser, environment)
    add_control_socket(parser)
    add_xid_catalogue(flags)
    flags.add("kernel-log", "kernel log to write to; default: the one that the agent reads", None, "FILE")
    given = parser.parse_args(arguments)
    use_xid_catalogue(parser, given.xid_catalogue)
    if not given.xid.isdecimal() or len(given.xid) > 9:
        parser.error(f"--xid {given.xid[:32]!r} must be a number of the catalogue, such as 79")
    try:
        state = ask_agent(parser, given, environment, {"do": "state"})["state"]
        gpu = which_gpu(_gpus(state), given.gpu)
        code = _known_xid(int(given.xid))
        path = Path(given.kernel_log or state["kernelLog"]["path"])
        written = _write(path, line_of(code, gpu), int(state["kernelLog"]["lastSequence"] or 0))
    except NoAgentError as error:
        return _failed(str(error), NO_AGENT)
    except (AgentRefusedError, UnknownGpuError, UnknownXidError) as error:
        return _failed(str(error), REFUSED)
    except PermissionError as error:
        return _failed(f"{path}: {error.strerror}; writing there needs root", REFUSED)
    except OSError as error:
        return _failed(f"{path}: {error.strerror}", REFUSED)
    print(printable(f"wrote to {path}: {written}"))
    print(
        f"expect: `nvcre-agent state` shows Xid {code} of GPU {gpu.index}, injected, within a second; it blames nobody"
    )
    print("and closes by itself when it was quiet for some minutes")
    return DONE


class UnknownXidError(ValueError):
    pass


def line_of(code: int, gpu: GpuIdentity) -> str:
    """As the driver prints an Xid, with a text that says what it is to whoever reads dmesg."""
    slot = f"{gpu.pci.domain:04x}:{gpu.pci.bus:02x}:{gpu.pci.device:02x}"
    mnemonic = catalogue().xid[code].mnemonic
    return f"NVRM: Xid (PCI:{slot}): {code}, pid='<unknown>', name=<unknown>, nvcre test injection {mnemonic}".rstrip()


def spans(codes: Iterable[int]) -> str:
    """Runs of numbers by their ends: 1 to 3, 7."""
    runs: list[list[int]] = []
    for code in sorted(codes):
        if runs and code == runs[-1][1] + 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return ", ".join(f"{first} to {last}" if last > first else f"{first}" for first, last in runs)


def _known_xid(code: int) -> int:
    known = catalogue().xid
    if code not in known:
        raise UnknownXidError(f"Xid {code} is not in the catalogue; it has {spans(known)}")
    return code


def _gpus(state: Mapping[str, Any]) -> list[GpuIdentity]:
    inventory = state["inventory"] or {"gpus": []}
    return [
        GpuIdentity(gpu["index"], gpu["uuid"], PciAddress.parse(gpu["pciBusId"]), gpu["product"], gpu["serial"])
        for gpu in inventory["gpus"]
    ]


def _write(path: Path, line: str, last_sequence: int) -> str:
    """The device takes the line and puts its own header before it; a file holds whole records."""
    device = stat.S_ISCHR(path.stat().st_mode)
    if device:
        record = f"<{_PRIORITY}>{line}"
    else:
        record = f"{_PRIORITY},{last_sequence + 1},{time.monotonic_ns() // 1000},-;{line}\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | (0 if device else os.O_APPEND))
    try:
        os.write(descriptor, record.encode())
    finally:
        os.close(descriptor)
    return record.rstrip()


def _failed(why: str, code: int) -> int:
    print(f"nvcre-agent inject: {printable_lines(why)}", file=sys.stderr)
    return code
