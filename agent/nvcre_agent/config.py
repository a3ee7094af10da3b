"""What the running agent is told: flags, then the environment, then a YAML file, then defaults, in this order.

SETTINGS is the one list; a setting has the same name as flag (`--heartbeat-interval`), in the environment
(`NVCRE_HEARTBEAT_INTERVAL`) and as key of the file (`heartbeat-interval: 10`). Whatever is wrong is collected and told
at once, each problem with its place, key, value and remedy. It says what may change while the agent runs (`live`) and
what a difference needs a restart for; applying it is reload.py.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml
from nvcre_protos.addresses import parse_address
from nvcre_protos.flags import read_log_level, read_seconds

from nvcre_agent.operator_file import UnusableFileError, meant, node_of, text_of

DEFAULT_FILE = Path("/etc/nvcre/agent.yaml")
MAX_FILE_BYTES = 64 * 1024
_MAX_PROBLEMS = 50
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True, slots=True)
class Config:
    config_file: Path | None
    node_name: str
    coordinator: str | None
    ca_file: Path | None
    server_name: str
    token_file: Path | None
    outbox: Path
    outbox_max_mib: float
    outbox_max_age_s: float
    kernel_log: Path
    boot_id_file: Path
    xid_catalogue: Path | None
    limits: Path | None
    listen: tuple[str, int]
    control_socket: Path
    dcgm_aliases: bool
    nccl_tests_dir: Path | None
    simulate: Path | None
    sysfs: Path | None
    procfs: Path | None
    heartbeat_interval_s: float
    ready_file: Path | None
    log_level: str


@dataclass(frozen=True, slots=True)
class Setting:
    """`read` makes the value of its text and raises ValueError; `live`: may change while the agent runs."""

    name: str
    text: str
    default: str | None = None
    metavar: str = "FILE"
    read: Callable[[str], Any] = Path
    live: bool = False
    also: str = ""  # a further variable of the environment
    switch: bool = False
    unit: str = ""

    @property
    def field(self) -> str:
        """Its name in Config."""
        return self.name.replace("-", "_") + self.unit

    @property
    def variable(self) -> str:
        return "NVCRE_" + self.name.replace("-", "_").upper()


def _heartbeat(text: str) -> float:
    return read_seconds(text, 0.05, 3600)


def _mib(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.001 <= value <= 64:
        raise ValueError(f"{text!r} must be a number of MiB from 0.001 to 64")
    return value


def _age(text: str) -> float:
    return read_seconds(text, 60, 10 * 365 * 86400)


def _switch(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise ValueError(f"{text!r} must be true or false")
    return text.lower() in _TRUE


def _address(text: str) -> str:
    parse_address(text)
    return text


SETTINGS = (
    Setting(
        "node-name",
        "name of this node, for logs and metrics; the stream's identity is the token",
        metavar="NAME",
        read=str,
    ),
    Setting(
        "coordinator",
        "gRPC address of the coordinator; without it the agent only serves metrics",
        metavar="HOST:PORT",
        read=_address,
    ),
    Setting("ca-file", "CA that signed the coordinator's certificate; read again on every connect"),
    Setting("server-name", "name the certificate must carry", "nvcre-coordinator.nvcre-system.svc", "NAME", str),
    Setting("token-file", "ServiceAccount token; read again on every connect"),
    Setting("outbox", "SQLite file for events that are not acknowledged yet", "/var/lib/nvcre/outbox.sqlite"),
    Setting("outbox-max-mib", "above it the events that accuse least are given up, oldest first", "4", "MIB", _mib),
    Setting("outbox-max-age", "older events are given up", "604800", "SECONDS", _age, unit="_s"),
    Setting(
        "kernel-log",
        "kernel log: the device, or a FIFO or file in its format, one record a line; default: /dev/kmsg, of a "
        "simulated node: kmsg beside its description",
    ),
    Setting("boot-id-file", "file that names this boot", "/proc/sys/kernel/random/boot_id"),
    Setting(
        "xid-catalogue",
        "YAML file whose entries override those of the Xid catalogue, by number",
        live=True,
    ),
    Setting(
        "limits",
        "YAML file whose numbers override the limits of the checks, by check and key",
        live=True,
    ),
    Setting(
        "listen",
        "address of /metrics, /healthz and /state; port 0 takes a free one",
        "0.0.0.0:9465",
        "HOST:PORT",
        parse_address,
    ),
    Setting("control-socket", "Unix socket of the commands of an operator; default: control.sock beside --outbox"),
    Setting(
        "dcgm-aliases",
        "also serve DCGM_FI_* metrics, for dashboards made for dcgm-exporter",
        "false",
        read=_switch,
        live=True,
        switch=True,
    ),
    Setting(
        "nccl-tests-dir",
        "directory of all_reduce_perf; else PATH is searched",
        metavar="DIR",
        live=True,
        also="NCCL_TESTS_DIR",
    ),
    Setting("simulate", "use the simulated driver over this node description; never chosen by itself"),
    Setting("sysfs", "the host's /sys; of a simulated node: sys beside its description", metavar="DIR"),
    Setting("procfs", "the host's /proc; of a simulated node: proc beside its description", metavar="DIR"),
    Setting(
        "heartbeat-interval",
        "seconds between heartbeats; the coordinator's settings win",
        "30",
        "SECONDS",
        _heartbeat,
        live=True,
        unit="_s",
    ),
    Setting("ready-file", "written as JSON with the chosen address once the agent serves"),
    Setting("log-level", "debug, info, warning or error", "info", "LEVEL", read_log_level, live=True),
)


@dataclass(frozen=True, slots=True)
class Problem:
    """`where` names flag, variable or file and line; `says` has the value and what would be right."""

    where: str
    says: str

    def __str__(self) -> str:
        return f"{self.where} {self.says}"


class ConfigError(ValueError):
    """Every problem that was found; the first ones are its text."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Config:
    """Usage errors end the process with code 2 and a sentence on stderr."""
    parser = _parser()
    flags = _flags(parser, arguments)
    try:
        return resolve(flags, environment)
    except ConfigError as error:
        parser.error("\n  ".join(map(str, error.problems)))


def flags(arguments: Sequence[str]) -> dict[str, str]:
    """The flags that were given, by name, for `resolve`."""
    return _flags(_parser(), arguments)


def resolve(flags: Mapping[str, str], environment: Mapping[str, str]) -> Config:
    """The file is read now. Raises ConfigError with everything that is wrong."""
    problems: list[Problem] = []
    file = _file_of(flags, environment)
    in_file: Mapping[str, Given] = {}
    if file is not None:
        in_file, wrong = read_file(file)
        problems += wrong
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        given = _given(setting, flags, environment) or in_file.get(setting.name)
        if given is None:
            given = Given(f"--{setting.name}", setting.default) if setting.default is not None else None
        values[setting.field] = None if given is None else _read(setting, given, problems)
    problems += _between(values)
    if problems:
        raise ConfigError(problems)
    values["control_socket"] = values["control_socket"] or beside_outbox(values["outbox"])
    values["kernel_log"] = values["kernel_log"] or default_kernel_log(values["simulate"])
    return Config(config_file=file, **values)


def beside_outbox(outbox: Path) -> Path:
    return outbox.with_name("control.sock")


def default_kernel_log(simulate: Path | None) -> Path:
    """A simulated node has its own, never that of this machine."""
    return simulate.with_name("kmsg") if simulate else Path("/dev/kmsg")


def check_file(path: Path) -> tuple[Problem, ...]:
    """What is wrong with a file by itself."""
    given, problems = read_file(path)
    for setting in SETTINGS:
        if setting.name in given:
            _read(setting, given[setting.name], problems)
    return tuple(problems)


def differences(before: Config, after: Config) -> tuple[list[str], list[str]]:
    """(settings that may change live, settings that need a restart), by name, where the two differ."""
    changed = [one for one in SETTINGS if getattr(before, one.field) != getattr(after, one.field)]
    return [one.name for one in changed if one.live], [one.name for one in changed if not one.live]


def keeping(running: Config, wanted: Config) -> Config:
    """What is in force after a reload: the live settings as wanted, the others as they were at the start."""
    live = {one.field for one in SETTINGS if one.live} | {"config_file"}
    return Config(**{one.name: getattr(wanted if one.name in live else running, one.name) for one in fields(Config)})


# --- the file


@dataclass(frozen=True, slots=True)
class Given:
    where: str
    text: str


def read_file(path: Path) -> tuple[dict[str, Given], list[Problem]]:
    """What the file gives by setting, as text, and what is wrong with its form."""
    try:
        root = node_of(text_of(path, limit=MAX_FILE_BYTES))
    except UnusableFileError as error:
        return {}, [Problem(f"{path}:", str(error))]
    if root is None:
        return {}, []
    if not isinstance(root, yaml.MappingNode):
        return {}, [Problem(f"{path}:", "must map settings to values, such as `log-level: debug`")]
    given: dict[str, Given] = {}
    problems = []
    for key, value in root.value:
        where = f"{path}:{key.start_mark.line + 1}:"
        name = str(key.value) if isinstance(key, yaml.ScalarNode) else "a key that is no text"
        if (says := _form(name, value, given)) is not None:
            problems.append(Problem(where, says))
        else:
            given[name] = Given(f"{where} {name}", str(value.value))
    return given, problems[:_MAX_PROBLEMS]


def control_socket(flags: Mapping[str, str], environment: Mapping[str, str]) -> Given:
    """Where the agent of this configuration listens, and what says so. Raises ConfigError where a file says nothing."""
    by_name = {one.name: one for one in SETTINGS}
    if (own := _given(by_name["control-socket"], flags, environment)) is not None:
        return own
    file = _file_of(flags, environment)
    in_file, wrong = read_file(file) if file is not None else ({}, [])
    if wrong and not in_file:
        raise ConfigError(wrong)
    if (own := in_file.get("control-socket")) is not None:
        return own
    outbox = _given(by_name["outbox"], flags, environment) or in_file.get("outbox")
    outbox = outbox or Given("the default", by_name["outbox"].default or "")
    return Given(outbox.where, str(beside_outbox(Path(outbox.text))))


def _form(name: str, value: Any, given: Mapping[str, Given]) -> str | None:
    if name not in (one.name for one in SETTINGS):
        return f"{name[:64]!r} is no setting; {meant(name, (one.name for one in SETTINGS))}"
    if name in given:
        return f"{name} is given twice; keep one"
    if not isinstance(value, yaml.ScalarNode):
        return f"{name} must be a single value, not a list or a mapping"
    if value.tag == "tag:yaml.org,2002:null" or not value.value:
        return f"{name} has no value; give one or remove the line"
    if not value.value.isprintable():
        return f"{name} must be one line without control characters"
    return None


# --- from text to values


def _file_of(flags: Mapping[str, str], environment: Mapping[str, str]) -> Path | None:
    if named := flags.get("config") or environment.get("NVCRE_CONFIG"):
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def _given(setting: Setting, flags: Mapping[str, str], environment: Mapping[str, str]) -> Given | None:
    if text := flags.get(setting.name):
        return Given(f"--{setting.name}", text)
    for variable in (setting.variable, setting.also):
        if text := environment.get(variable):
            return Given(variable, text)
    return None


def _read(setting: Setting, given: Given, problems: list[Problem]) -> Any:
    try:
        return setting.read(given.text)
    except ValueError as error:
        problems.append(Problem(given.where, str(error)))
        return None


def _between(values: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong only between settings."""
    if not values["node_name"]:
        yield Problem(
            "--node-name", "is missing: give the node's name (downward API spec.nodeName) or set NVCRE_NODE_NAME"
        )
    if values["coordinator"]:
        for name in ("ca-file", "token-file"):
            if not values[name.replace("-", "_")]:
                yield Problem(f"--{name}", "is missing: with --coordinator the stream needs it")


# --- the flags


def _flags(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, str]:
    return {name.replace("_", "-"): text for name, text in vars(parser.parse_args(arguments)).items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nvcre-agent run",
        description="Watches the GPUs of this node (NVML and kernel log) and tells the nvcre coordinator\n"
        "what happens. Each flag may also be given in the environment (--node-name is NVCRE_NODE_NAME)\n"
        "and in the file of --config (node-name: ...); a flag wins over the environment, that over the file.",
        usage="nvcre-agent [run] --node-name NAME [flags]",
        epilog="[live]: a change in the file is taken over at once, or with `nvcre-agent reload` or SIGHUP; others\n"
        "need a restart. `nvcre-agent --help` lists the other commands.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--config", metavar="FILE", help=f"YAML file of settings (default {DEFAULT_FILE}, where it exists)"
    )
    for one in SETTINGS:
        shown = f" (default {one.default})" if one.default is not None and not one.switch else ""
        text = f"{one.text}{shown}{' [live]' if one.live else ''}"
        if one.switch:
            parser.add_argument(f"--{one.name}", help=text, action="store_const", const="true")
        else:
            parser.add_argument(f"--{one.name}", help=text, metavar=one.metavar)
    return parser
