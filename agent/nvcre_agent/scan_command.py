"""`nvcre-agent scan`: is this machine healthy now?  A report for a person (table) or a program (JSON).

Flags, printing and the exit code. Looking and judging is scan.py.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nvcre_protos.flags import Flags
from nvcre_protos.logfmt import log_to_stderr

from nvcre_agent.command_line import add_limits, add_xid_catalogue, printable, use_limits, use_xid_catalogue
from nvcre_agent.config import default_kernel_log
from nvcre_agent.host.reading import host_reader
from nvcre_agent.incidents.document import document
from nvcre_agent.incidents.model import Incident
from nvcre_agent.scan import Report, Seen, Verdict, judge, look

EXIT_CODES = {Verdict.HEALTHY: 0, Verdict.SUSPECT: 1, Verdict.BLIND: 2}

_DESCRIPTION = """\
Looks once at this machine: the GPUs through NVML, with the checks of the running agent, and the kernel log of this
boot. It changes nothing, needs no coordinator and may run beside the agent.
"""
_EPILOG = """\
exit codes:
  0  everything was looked at, and nothing of hardware is wrong
  1  hardware is suspect: see the device, the fault and what to do
  2  something could not be looked at (no driver, no permission, a call that hangs), and nothing seen is suspect

Not seen by a single look: a GPU that is not listed any more, error counters that rose, an InfiniBand port that went
down. The running agent sees those.
"""


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Look, print, and answer the exit code. A usage error ends the process with code 2."""
    parser = argparse.ArgumentParser(
        prog="nvcre-agent scan",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    flags = Flags(parser, environment)
    flags.add(
        "kernel-log",
        "kernel log: the device, or a file in its format, one record a line; default: /dev/kmsg, of a simulated node: "
        "kmsg beside its description",
        metavar="FILE",
    )
    flags.add("boot-id-file", "file that names this boot", "/proc/sys/kernel/random/boot_id", "FILE")
    add_xid_catalogue(flags)
    add_limits(flags)
    flags.add("simulate", "use the simulated driver over this node description; never chosen by itself", metavar="FILE")
    flags.add("sysfs", "the host's /sys; of a simulated node: sys beside its description", metavar="DIR")
    flags.add("procfs", "the host's /proc; of a simulated node: proc beside its description", metavar="DIR")
    flags.add("nvml-deadline", "how long NVML may take; without persistence mode it needs a while", "90", "SECONDS")
    flags.add("log-level", "debug, info, warning or error", "error", "LEVEL")
    given = parser.parse_args(arguments)
    deadline_s = flags.seconds("--nvml-deadline", given.nvml_deadline, 1, 3600)
    log_to_stderr(flags.log_level(given.log_level))
    use_xid_catalogue(parser, given.xid_catalogue)
    use_limits(parser, given.limits)
    try:
        boot_id = Path(given.boot_id_file).read_text("ascii").strip()
    except (OSError, ValueError) as error:
        parser.error(f"--boot-id-file {given.boot_id_file}: {error}")
    simulate = _path(given.simulate)
    try:
        seen = asyncio.run(
            look(
                boot_id=boot_id,
                kernel_log=_path(given.kernel_log) or default_kernel_log(simulate),
                simulate=simulate,
                host=host_reader(_path(given.sysfs), _path(given.procfs), simulate),
                deadline_s=deadline_s,
            )
        )
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception:  # Python's own exit code for what is not caught is 1, which would accuse the hardware
        logging.getLogger("nvcre_agent").exception("scan failed; nothing is said about this machine")
        return EXIT_CODES[Verdict.BLIND]
    report = judge(seen)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it quietly; before, the NVML child's pipe may break
    if given.output == "json":
        print(json.dumps(_json(report, seen, boot_id, simulated=simulate is not None), indent=1))
    else:
        print("\n".join(printable(line) for line in _table(report, seen, simulated=simulate is not None)))
    return EXIT_CODES[report.verdict]


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


# --- the table


def _table(report: Report, seen: Seen, *, simulated: bool) -> Iterator[str]:
    yield ("SIMULATED DRIVER. " if simulated else "") + _headline(report, seen)
    if report.gpus:
        yield ""
        rows = [("GPU", "VERDICT", "PCI", "UUID", "PRODUCT", "SERIAL")]
        for gpu in report.gpus:
            who = gpu.identity
            rows.append((str(who.index), gpu.verdict, str(who.pci), who.uuid, who.product, who.serial))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
    if report.gpus and not report.accusing and seen.blind:
        yield "Blind, because not everything was looked at; what NVML told accuses none of them"
    below = list(_below(report, seen))
    if below:
        yield ""
    yield from below


def _below(report: Report, seen: Seen) -> Iterator[str]:
    for incident in report.accusing:
        yield f"suspect: {_sentence(incident)}"
    for one in report.not_seen[report.verdict is Verdict.BLIND :]:  # the first is the headline then
        yield f"not looked at: {one.what}: {one.reason}: {one.message}"
    for incident in report.notes:
        yield f"note: {_sentence(incident)}"
    if report.verdict is not Verdict.HEALTHY and seen.kernel_counts["records"]:
        read = seen.kernel_counts["records"]
        yield f"{_records(read)} of the kernel log {'was' if read == 1 else 'were'} read"


def _headline(report: Report, seen: Seen) -> str:
    match report.verdict:
        case Verdict.SUSPECT if report.accusing:
            more = len(report.accusing) - 1
            return f"HARDWARE SUSPECT: {_sentence(report.accusing[0])}" + (f" (and {more} more below)" if more else "")
        case Verdict.SUSPECT:
            return f"HARDWARE SUSPECT: {_lost(report.lost_unidentified)}"
        case Verdict.BLIND:
            first = report.not_seen[0]
            return f"COULD NOT LOOK: {first.what}: {first.reason}: {first.message}"
        case Verdict.HEALTHY:
            driver = seen.inventory.driver_version if seen.inventory else ""
            records = seen.kernel_counts["records"]
            return f"HEALTHY: {len(report.gpus)} GPUs, driver {driver}, {_records(records)} of the kernel log read"


def _records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"


def _lost(count: int) -> str:
    who = "a GPU that NVML lists is" if count == 1 else f"{count} GPUs that NVML lists are"
    return f"{who} lost and does not say who it is: see lspci and dmesg; drain the node and power-cycle it"


def _sentence(incident: Incident) -> str:
    component = incident.component
    where = component.pci_bus_id or "node"
    if incident.check:  # its message names the GPU
        return f"{incident.message} ({where}) -> {incident.remedy}"
    if component.index is not None:
        where = f"{component.kind} {component.index} ({where})"
    times = f" ({incident.count} times)" if incident.count > 1 else ""
    mark = "test injection, does not count: " if incident.injected else ""
    what = f"{incident.kind} {incident.code} {incident.mnemonic}".rstrip() if incident.code else incident.kind
    return f"{mark}{where}: {what}: {incident.message}{times} -> {incident.remedy}"


# --- JSON: the field names are those of NodeHealth


def _json(report: Report, seen: Seen, boot_id: str, *, simulated: bool) -> dict[str, Any]:
    inventory = seen.inventory
    return {
        "verdict": report.verdict,
        "message": _headline(report, seen),
        "simulated": simulated,
        "bootID": boot_id,
        "driverVersion": inventory.driver_version if inventory else None,
        "cudaVersion": inventory.cuda_version if inventory else None,
        "gpus": [
            {
                "index": gpu.identity.index,
                "uuid": gpu.identity.uuid,
                "pciBusId": str(gpu.identity.pci),
                "product": gpu.identity.product,
                "serial": gpu.identity.serial,
                "verdict": gpu.verdict,
                "incidents": [one.id for one in gpu.incidents],
            }
            for gpu in report.gpus
        ],
        "lostUnidentifiedGPUs": report.lost_unidentified,
        "incidents": [document(one) | {"suspect": True} for one in report.accusing]
        + [document(one) | {"suspect": False} for one in report.notes],
        "notLookedAt": [
            {"what": one.what, "reason": one.reason, "message": one.message, "uuid": one.gpu} for one in report.not_seen
        ],
        "kernelLog": dict(seen.kernel_counts),
    }
