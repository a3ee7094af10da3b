"""Reads the JSON report of nccl-tests (-J FILE.json, since 2.17.3), also of a run that was killed while writing it.

Format facts: nccl-tests src/util.cu, file version 3.  Booleans are the strings "true" and "false", a check that was
not made is null, NaN is the string "nan" and infinity is no JSON; `devices` has only the first GPU of each process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from nvcre_logs.nccl_log import COLLECTIVES, Device, NcclLog, NcclTest, PerIteration, Row, Side

MAX_REPORT_BYTES = 256 * 1024 * 1024
_INFINITY = re.compile(r"(?<=[:,\[\s])(-?)inf(?=[,\s}\]])")
_NAME = re.compile(rf"(?:^|/)({'|'.join(COLLECTIVES)})_perf(?:_[a-z]{{1,16}})?$")
_CLOSING = {"{": "}", "[": "]"}


def read_report(data: bytes) -> NcclLog | None:
    """None where this is no such report."""
    text = data[:MAX_REPORT_BYTES].decode(errors="replace").strip()
    if not text.startswith("{"):
        return None
    document = _load(text)
    if not isinstance(document, dict) or not {"config", "results", "nccl_version"} & set(document):
        return None
    return NcclLog((_test(document),))


def _load(text: str) -> Any:
    text = _INFINITY.sub(r"\1Infinity", text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(_closed(text))
    except (ValueError, RecursionError):
        return None


def _closed(text: str) -> str:
    """A report that was cut, without the value that was being written and with its brackets closed."""
    open_brackets: list[str] = []
    end, still_open = 0, ""
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', text):
        match token[0]:
            case "{" | "[":
                open_brackets.append(token[0])
            case "}" | "]" if open_brackets:
                open_brackets.pop()
                end, still_open = token.end(), "".join(open_brackets)
            case _:
                pass
    return text[:end] + "".join(_CLOSING[bracket] for bracket in reversed(still_open))


def _test(document: dict[str, Any]) -> NcclTest:
    config = _mapping(document.get("config"))
    test = NcclTest(
        library_version=_integer(document.get("nccl_version")),
        gpus_per_process=(_integer(config.get("nthreads")) or 1) * (_integer(config.get("ngpus")) or 1),
        max_bytes=_integer(config.get("maximum_bytes")),
        step_factor=_integer(config.get("step_factor")) or 0,
        step_bytes=_integer(config.get("step_bytes")) or 0,
        devices_cut=True,  # one GPU a process
    )
    arguments = document.get("args")
    if isinstance(arguments, list) and (name := _first_name(arguments)) is not None:
        test.name, test.name_source = name, "args"
    devices = config.get("devices")
    test.devices = [_device(_mapping(device)) for device in devices] if isinstance(devices, list) else []
    results = document.get("results")
    for result in results if isinstance(results, list) else ():
        row = _row(_mapping(result))
        if row is None:
            test.lost_rows += 1
        else:
            test.rows.append(row)
            test.time_is_cpu |= "cpu_time" in _mapping(_mapping(result).get("out_of_place"))
    bounds = _mapping(document.get("out_of_bounds"))
    test.out_of_bounds = _integer(bounds.get("count"))
    if test.out_of_bounds is not None:
        test.out_of_bounds_ok = bounds.get("okay") in ("true", True)
    average = _mapping(document.get("average_bus_bandwidth"))
    test.avg_busbw_gbps = _number(average.get("bandwidth"))
    test.below_min_bandwidth = average.get("okay") in ("false", False)
    errors = document.get("errors")
    test.failures = [str(error) for error in errors if error] if isinstance(errors, list) else []
    if test.failures and test.out_of_bounds is None:
        test.failure_reasons = ["nccl_error"]
    return test


def _first_name(arguments: list[Any]) -> str | None:
    found = (_NAME.search(argument) for argument in arguments if isinstance(argument, str))
    return next((match[1] for match in found if match), None)


def _device(device: Mapping[str, Any]) -> Device:
    return Device(
        rank=_integer(device.get("rank")) or 0,
        pid=_integer(device.get("pid")),
        host=str(device.get("hostname", "")),
        index=_integer(device.get("device")) or 0,
        pci=str(device.get("device_hex", "")),
        product=str(device.get("device_info", "")),
        group=_integer(device.get("group")) or 0,
    )


def _row(result: Mapping[str, Any]) -> Row | None:
    size, count = _integer(result.get("size")), _integer(result.get("count"))
    out_of_place, in_place = _side(result, "out_of_place"), _side(result, "in_place")
    if size is None or count is None or out_of_place is None or in_place is None:
        return None
    redop = str(result.get("redop") or "").strip() or None
    return Row(size, count, str(result.get("type")), redop, _integer(result.get("root")), out_of_place, in_place)


def _side(result: Mapping[str, Any], which: str) -> Side | None:
    side = _mapping(result.get(which))
    time = _number(side.get("time", side.get("cpu_time")))
    algbw, busbw = _number(side.get("alg_bw")), _number(side.get("bus_bw"))
    if time is None or algbw is None or busbw is None:
        return None
    wrong = _number(side.get("nwrong"))
    return Side(
        time, algbw, busbw, None if wrong is None else round(wrong), None, _spread(result.get(f"{which}_per_iter"))
    )


def _spread(value: Any) -> PerIteration | None:
    spread = _mapping(value)
    numbers = [_number(spread.get(name)) for name in ("min_us", "max_us", "p99_us", "cv_pct")]
    found = [number for number in numbers if number is not None]
    return PerIteration(*found) if len(found) == 4 else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _integer(value: Any) -> int | None:
    try:
        return int(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None
