"""Reads a scenario from YAML, strictly: unknown keys, wrong types and nodes or GPUs that do not exist are errors.

The schema is this module; examples/scenarios/README.md explains it. Raises ScenarioError with file, key and remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from nvcre_local.cluster_yaml import load_document
from nvcre_local.durations import parse_duration
from nvcre_local.scenario import (
    CoordinatorKill,
    CrashFault,
    DriverFault,
    Expectation,
    ExpectedNode,
    Fault,
    Links,
    Product,
    Scenario,
    ScenarioError,
    SlowLink,
    Source,
    XidFault,
)

MAX_BYTES = 1 << 20
MAX_NODES = 128
MAX_FAULTS = 1000

_DATA = resources.files("nvcre_local") / "data"

T = TypeVar("T")
D = TypeVar("D")
Convert = Callable[[Any], T]


class Section:
    """One mapping of the file. Every key is taken once with its type; `end` complains about what nobody took."""

    def __init__(self, content: Any, where: str) -> None:
        if not isinstance(content, dict):
            raise ScenarioError(f"{where}: expected a mapping, found {_kind(content)}")
        self._left = dict(content)
        self._known: list[str] = []
        self.where = where

    def take(self, key: str, convert: Convert[T], default: D) -> T | D:
        self._known.append(key)
        if key not in self._left:
            return default
        value = self._left.pop(key)
        try:
            return convert(value)
        except ScenarioError:
            raise
        except (TypeError, ValueError) as error:
            raise ScenarioError(f"{self.where}.{key}: {error}") from None

    def require(self, key: str, convert: Convert[T]) -> T:
        if key not in self._left:
            raise ScenarioError(f"{self.where}: {key} is missing")
        return cast("T", self.take(key, convert, None))

    def section(self, key: str) -> Section:
        """An empty one when it is not given."""
        return self.optional(key) or Section({}, f"{self.where}.{key}")

    def optional(self, key: str) -> Section | None:
        self._known.append(key)
        return Section(self._left.pop(key), f"{self.where}.{key}") if key in self._left else None

    def sections(self, key: str) -> Iterator[Section]:
        self._known.append(key)
        content = self._left.pop(key, [])
        if not isinstance(content, list):
            raise ScenarioError(f"{self.where}.{key}: expected a list, found {_kind(content)}")
        for index, item in enumerate(content):
            yield Section(item, f"{self.where}.{key}[{index}]")

    def end(self) -> None:
        if self._left:
            unknown = ", ".join(str(key) for key in self._left)
            raise ScenarioError(f"{self.where}: unknown key {unknown}; allowed: {', '.join(self._known)}")


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), f"a number ({value})")


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {_kind(value)}")
    return value


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, found {_kind(value)}")
    return value


def number(low: float, high: float) -> Convert[float]:
    def convert(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"expected a number, found {_kind(value)}")
        if not low <= value <= high:
            raise ValueError(f"{value} is not within {low:g} to {high:g}")
        return float(value)

    return convert


def integer(low: int, high: int) -> Convert[int]:
    def convert(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"expected a whole number, found {_kind(value)}")
        if not low <= value <= high:
            raise ValueError(f"{value} is not within {low} to {high}")
        return value

    return convert


def duration(value: Any) -> float:
    """`4s`, `300ms`, `1m30s` -> seconds."""
    if not isinstance(value, str):
        raise TypeError(f"expected a duration such as 4s, 300ms or 1m, found {_kind(value)}")
    return parse_duration(value)


FIGURE = number(0.01, 100_000)
"""GB/s."""


def _list_of(convert: Convert[T], most: int) -> Convert[tuple[T, ...]]:
    def convert_all(value: Any) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise TypeError(f"expected a list, found {_kind(value)}")
        if len(value) > most:
            raise ValueError(f"{len(value)} entries are more than {most}")
        return tuple(convert(item) for item in value)

    return convert_all


def _source(value: Any) -> Source:
    try:
        return Source(value)
    except ValueError:
        raise ValueError(f"{value!r} is not one of {', '.join(Source)}") from None


def products() -> dict[str, Product]:
    content = yaml.safe_load((_DATA / "products.yaml").read_text())
    return {
        name: Product(
            product=p["product"],
            driver_version=str(p["driverVersion"]),
            cuda_driver_version=p["cudaDriverVersion"],
            nvlinks=p["nvlinks"],
            memory_mib=p["memoryMiB"],
            pci=tuple(p["pci"]),
            nvlink_gbps=p["nvlinkGBps"],
            nic_gbps=p["nicGBps"],
        )
        for name, p in content.items()
    }


def kernel_lines() -> dict[int, tuple[str, ...]]:
    """Per Xid the lines the driver prints, with {pci}, {gpu}, {pid} and {name} left open."""
    content = yaml.safe_load((_DATA / "kernel_lines.yaml").read_text())
    return {code: tuple(lines) for code, lines in content.items()}


def driver_keys() -> frozenset[str]:
    """What a fault may set on the simulated driver."""
    return frozenset(yaml.safe_load((_DATA / "driver_keys.yaml").read_text()))


def read_scenario(path: Path) -> Scenario:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise ScenarioError(f"{path}: larger than {MAX_BYTES} bytes")
    return parse_scenario(raw, name=path.stem, where=str(path))


def parse_scenario(raw: bytes | str, *, name: str, where: str) -> Scenario:
    try:
        content = load_document(raw)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f"{where}:{mark.line + 1}" if mark is not None else where
        raise ScenarioError(f"{at}: not YAML: {getattr(error, 'problem', None) or error}") from None
    top = Section(content, where)
    known = products()

    def product(value: Any) -> Product:
        if value not in known:
            raise ValueError(f"{value!r} is not one of {', '.join(known)}")
        return known[value]

    model = top.take("product", product, known["h100-sxm"])
    nodes = top.take("nodes", integer(1, MAX_NODES), 4)
    gpus = top.take("gpusPerNode", integer(1, len(model.pci)), len(model.pci))
    links, node_links, slow_links = _bandwidth(top.section("bandwidth"), model, nodes)
    faults = [fault for section in top.sections("faults") for fault in _faults(section, nodes, gpus)]
    if len(faults) > MAX_FAULTS:
        raise ScenarioError(f"{where}.faults: more than {MAX_FAULTS}")
    scenario = Scenario(
        name=name,
        description=top.take("description", text, ""),
        product=model,
        nodes=nodes,
        gpus_per_node=gpus,
        links=links,
        node_links=node_links,
        slow_links=slow_links,
        run_seconds=top.take("runSeconds", number(0.1, 3600), 12.0),
        probe_seconds=top.take("probeSeconds", number(0.0, 600), 1.0),
        faults=tuple(sorted(faults, key=lambda fault: fault.after_s)),
        expect=_expect(top.optional("expect")),
    )
    top.end()
    return scenario


def _bandwidth(section: Section, model: Product, nodes: int) -> tuple[Links, dict[int, Links], tuple[SlowLink, ...]]:
    def links(part: Section, otherwise: Links) -> Links:
        found = Links(
            part.take("nvlinkGBps", FIGURE, otherwise.nvlink_gbps),
            part.take("nicGBps", FIGURE, otherwise.nic_gbps),
            part.take("uplinkGBps", FIGURE, otherwise.uplink_gbps),
        )
        part.end()
        return found

    default = links(section.section("default"), Links(model.nvlink_gbps, model.nic_gbps))
    per_node: dict[int, Links] = {}
    overrides = section.take("nodes", _mapping, _NOTHING)
    for node, content in overrides.items():
        where = f"{section.where}.nodes.{node}"
        if isinstance(node, bool) or not isinstance(node, int) or not 0 <= node < nodes:
            raise ScenarioError(f"{where}: no such node; nodes are 0 to {nodes - 1}")
        per_node[node] = links(Section(content, where), default)
    slow_links = tuple(_slow_link(part, nodes) for part in section.sections("links"))
    section.end()
    return default, per_node, slow_links


def _slow_link(section: Section, nodes: int) -> SlowLink:
    between = section.require("between", _list_of(integer(0, nodes - 1), 2))
    if len(set(between)) != 2:
        raise ScenarioError(f"{section.where}.between: two different nodes, such as [0, 1]")
    link = SlowLink((between[0], between[1]), section.require("uplinkGBps", FIGURE))
    section.end()
    return link


def _mapping(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected a mapping, found {_kind(value)}")
    return value


_NOTHING: dict[Any, Any] = {}


def _faults(section: Section, nodes: int, gpus: int) -> Iterator[Fault]:
    """One entry may be several things at the same moment: an Xid, another answer of the driver, a crash."""
    after_s = section.require("after", duration)
    if section.take("killCoordinator", flag, False):
        yield CoordinatorKill(after_s, section.take("restartAfter", duration, 1.0))
        section.end()
        return
    found: list[Fault] = []
    node = section.require("node", integer(0, nodes - 1))
    gpu = section.take("gpu", integer(0, gpus - 1), None)
    code = section.take("xid", integer(1, 999), None)
    sources = section.take("sources", _list_of(_source, 2), tuple(Source))
    lines: tuple[str, ...] = section.take("kernelLines", _list_of(text, 64), ())
    process = section.take("process", text, "all_reduce_perf")
    values = section.take("set", _mapping, _NOTHING)
    if code is not None:
        if gpu is None:
            raise ScenarioError(f"{section.where}: xid needs gpu")
        lines = lines or kernel_lines().get(code, ())
        if not lines and Source.KERNEL_LOG in sources:
            raise ScenarioError(f"{section.where}.xid: no kernel line is known for {code}; give kernelLines")
        found.append(XidFault(after_s, node, gpu, code, sources, lines, process))
    if values:
        allowed = driver_keys()
        for key in values:
            if key not in allowed:
                raise ScenarioError(f"{section.where}.set: unknown key {key}; allowed: {', '.join(sorted(allowed))}")
        found.append(DriverFault(after_s, node, gpu, values))
    if (crash := section.optional("crash")) is not None:
        found.append(_crash(crash, after_s, node))
    section.end()
    if not found:
        raise ScenarioError(f"{section.where}: nothing happens; give one of xid, set, crash, killCoordinator")
    yield from found


def _crash(section: Section, after_s: float, node: int) -> CrashFault:
    crash = CrashFault(
        after_s=after_s + section.take("after", duration, 0.0),
        node=node,
        exit_code=section.take("exitCode", integer(1, 255), 1),
        lines=section.take("lines", _list_of(text, 1000), ()),
    )
    section.end()
    return crash


def _expect(section: Section | None) -> Expectation | None:
    if section is None:
        return None

    def result(value: Any) -> str:
        if value not in ("PASSED", "FAILED"):
            raise ValueError(f"{value!r} is not PASSED or FAILED")
        return str(value)

    nodes = []
    expected = section.require("result", result)
    for node in section.sections("failedNodes"):
        nodes.append(
            ExpectedNode(
                name=node.require("name", text),
                reason=node.require("reason", text),
                component=node.take("component", _mapping, None),
                codes=node.take("codes", _list_of(integer(1, 999), 16), ()),
            )
        )
        node.end()
    conditions = {str(k): str(v) for k, v in section.take("conditions", _mapping, _NOTHING).items()}
    section.end()
    return Expectation(expected, conditions, tuple(nodes))
