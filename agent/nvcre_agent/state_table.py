"""The document of /state as text for a person: what is wrong first, then the GPUs, then how the agent itself does.

Values in, lines out. The document is self_report.py's; `-o json` shows it whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def lines(state: Mapping[str, Any]) -> Iterator[str]:
    yield _headline(state)
    yield from _incidents(state["incidents"])
    for one in state["waiting"]:
        yield f"waiting, not a fault yet: {one['check']}: {one['message']}"
    yield ""
    yield from _gpus(state["inventory"])
    yield ""
    yield from _columns(list(_about_the_agent(state)))


def _headline(state: Mapping[str, Any]) -> str:
    blind = [one["name"] for one in state["monitors"] if one["state"] == "Blind"]
    counted = [one for one in state["incidents"] if not one["injected"]]
    said = [
        "simulated driver" if state["simulated"] else "",
        "" if state["alive"] else f"THE AGENT IS STUCK: {', '.join([*state['deadTasks'], *state['stuckForSeconds']])}",
        f"BLIND: {', '.join(blind)}" if blind else "",
        f"{len(counted) or 'no'} open incident{'' if len(counted) == 1 else 's'}",
    ]
    return f"{state['node']}: {'; '.join(part for part in said if part)}"


def _incidents(incidents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in incidents:
        component = one["component"]
        index = "" if component["index"] is None else f" {component['index']}"
        where = f"{component['kind']}{index} {component['pciBusId']}".rstrip()
        what = one["check"] or f"{one['kind']} {one['code'] or ''} {one['mnemonic']}".rstrip()
        injected = "test injection, does not count: " if one["injected"] else ""
        times = f", {one['count']} times" if one["count"] > 1 else ""
        yield ""
        yield f"{injected}{where}: {what}: {one['message']}"
        yield f"  {one['faultClass']}, blame {one['blame']}; {one['firstSeen']} to {one['lastSeen']}{times}"
        yield f"  to do: {one['remedy']}"
        yield f"  dealt with: nvcre-agent set-healthy --incident {one['id']} --reason TEXT"


def _gpus(inventory: Mapping[str, Any] | None) -> Iterator[str]:
    if inventory is None:
        yield "NVML has named no GPU yet"
        return
    rows = [("GPU", "ANSWERS", "PCI", "UUID", "PRODUCT", "SERIAL")]
    for gpu in inventory["gpus"]:
        answers = {True: "yes", False: "no", None: "-"}[gpu["answered"]]
        rows.append((str(gpu["index"]), answers, gpu["pciBusId"], gpu["uuid"], gpu["product"], gpu["serial"]))
    yield from _columns(rows)


def _about_the_agent(state: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for one in state["monitors"]:
        why = ": ".join(part for part in (one["reason"], one["message"]) if part)
        yield one["name"], f"{one['state']}{f': {why}' if why else ''}"
    link, outbox, config, log = state["link"], state["outbox"], state["config"], state["kernelLog"]
    connected = "connected to" if link["connected"] else "NOT CONNECTED to"
    yield "coordinator", f"{connected} {link['coordinator']}" if link["coordinator"] else "none given"
    dropped = ", ".join(f"{count} {reason}" for reason, count in outbox["dropped"].items() if count)
    lost = f"; given up: {dropped}" if dropped else ""
    yield "unsent", f"{outbox['queued']} events{' in memory only' if outbox['inMemory'] else ''}{lost}"
    yield "kernel log", f"{log['path']}, {log['records']} records, {log['overruns'] + log['gaps']} gaps"
    if inventory := state["inventory"]:
        yield "driver", f"{inventory['driverVersion']}, CUDA {inventory['cudaVersion']}"
    yield "agent", f"{state['version']}, boot {state['bootID']}, at {state['time']}"
    yield "config", config["file"] or "no file"
    for problem in config["problems"]:
        yield "", f"REFUSED: {problem}"
    if config["needsRestart"]:
        yield "", f"needs a restart: {', '.join(config['needsRestart'])}"


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
