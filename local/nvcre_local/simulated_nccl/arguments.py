"""The command lines of nccl-tests (2.19) and of mpirun, as far as a benchmark run uses them.

Parses as the programs do, oddities included: an unknown option of nccl-tests prints the usage and ends with 0, a bad
size ends with 255. Decides nothing about figures.
"""

from __future__ import annotations

import getopt
from dataclasses import dataclass, field

# Options of all_reduce_perf that take a value: https://github.com/NVIDIA/nccl-tests#arguments, version 2.19.
SHORT = "t:g:b:e:i:f:n:m:w:N:p:c:o:d:r:z:y:T:hG:C:a:R:x:D:V:J:S:M:u:I:K:"
LONG = {
    "nthreads": "t",
    "ngpus": "g",
    "minbytes": "b",
    "maxbytes": "e",
    "stepbytes": "i",
    "stepfactor": "f",
    "iters": "n",
    "agg_iters": "m",
    "warmup_iters": "w",
    "run_cycles": "N",
    "parallel_init": "p",
    "check": "c",
    "op": "o",
    "datatype": "d",
    "root": "r",
    "blocking": "z",
    "stream_null": "y",
    "timeout": "T",
    "cudagraph": "G",
    "report_cputime": "C",
    "average": "a",
    "local_register": "R",
}
TYPE_BYTES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "half": 2,
    "float": 4,
    "double": 8,
    "bfloat16": 2,
}
OPERATIONS = ("sum", "prod", "min", "max", "avg", "mulsum")
UNITS = {"k": 1 << 10, "K": 1 << 10, "m": 1 << 20, "M": 1 << 20, "g": 1 << 30, "G": 1 << 30}

USAGE = """USAGE: {program} 
	[-t,--nthreads <num threads>] 
	[-g,--ngpus <gpus per thread>] 
	[-b,--minbytes <min size in bytes>] 
	[-e,--maxbytes <max size in bytes>] 
	[-i,--stepbytes <increment size>] 
	[-f,--stepfactor <increment factor>] 
	[-n,--iters <iteration count>] 
	[-m,--agg_iters <aggregated iteration count>] 
	[-w,--warmup_iters <warmup iteration count>] 
	[-N,--run_cycles <cycle count> run & print each cycle (default: 1; 0=infinite)] 
	[-c,--check <check iteration count>] 
	[-o,--op <sum/prod/min/max/avg/mulsum/all>] 
	[-d,--datatype <nccltype/all>] 
	[-h,--help]
"""  # noqa: W291  (the tool prints these trailing blanks)


class EndWith(Exception):
    """The program prints and exits: `stdout`, `stderr` and the exit code."""

    def __init__(self, code: int, *, stdout: str = "", stderr: str = "") -> None:
        super().__init__(stdout or stderr)
        self.code = code
        self.stdout = stdout
        self.stderr = stderr


@dataclass(frozen=True, slots=True)
class PerfArguments:
    """One all_reduce_perf run. Defaults: nccl-tests 2.19."""

    threads: int = 1
    gpus: int = 1
    min_bytes: int = 32 << 20
    max_bytes: int = 32 << 20
    step_bytes: int = 1 << 20
    step_factor: int = 1
    iterations: int = 20
    warmup_iterations: int = 1
    aggregated_iterations: int = 1
    cycles: int = 1
    check: int = 1
    graph: int = 0
    datatype: str = "float"
    operation: str = "sum"

    @property
    def step(self) -> str:
        """As the parameter line shows it: `2(factor)` or `1048576(bytes)`."""
        return f"{self.step_factor}(factor)" if self.step_factor > 1 else f"{self.step_bytes}(bytes)"

    def sizes(self) -> list[int]:
        """Message sizes in bytes, in the order they are measured."""
        sizes: list[int] = []
        size = self.min_bytes
        while size <= self.max_bytes and len(sizes) < 10_000:
            sizes.append(size - size % TYPE_BYTES[self.datatype])
            larger = size * self.step_factor if self.step_factor > 1 else size + self.step_bytes
            if larger <= size:
                break
            size = larger
        return sizes


@dataclass(frozen=True, slots=True)
class MpiArguments:
    """What mpirun was asked to start: `program` with `arguments`, `processes` times, with more `environment`."""

    program: str
    arguments: tuple[str, ...]
    processes: int | None = None
    environment: dict[str, str] = field(default_factory=dict)


def parse_size(text: str) -> int:
    """`8M` -> 8388608; -1 when the tool would not take it."""
    unit = 1
    if text[-1:] in UNITS:
        unit = UNITS[text[-1]]
        text = text[:-1]
    try:
        size = int(float(text) * unit)
    except (ValueError, OverflowError):
        return -1
    return size if size >= 0 else -1


def _number(text: str) -> int:
    """C's strtol: what does not start with a number is 0."""
    digits = ""
    for position, char in enumerate(text.strip()):
        if not (char.isdecimal() or (position == 0 and char in "+-")):
            break
        digits += char
    return int(digits) if digits.lstrip("+-") else 0


def parse_test(program: str, arguments: list[str]) -> PerfArguments:
    """Raises EndWith where the tool would print and leave."""
    try:
        options, _ = getopt.gnu_getopt(arguments, SHORT, [f"{name}=" for name in LONG] + ["help"])
    except getopt.GetoptError as error:
        # getopt_long complains on stderr, returns '?', and the tool takes that for a question about its usage.
        complaint = f"{program}: {error.msg}\n"
        raise EndWith(0, stdout="invalid option '?'\n" + USAGE.format(program=program), stderr=complaint) from None
    given: dict[str, str] = {}
    for name, value in options:
        short = name.lstrip("-") if len(name) == 2 else LONG.get(name[2:], "h")
        if short == "h":
            raise EndWith(0, stdout=USAGE.format(program=program))
        given[short] = value
    sizes = {}
    for short, name in (("b", "minbytes"), ("e", "maxbytes"), ("i", "stepBytes")):
        if short in given:
            sizes[short] = parse_size(given[short])
            if sizes[short] < 0:
                raise EndWith(255, stderr=f"invalid size specified for '{name}'\n")
    defaults = PerfArguments()
    parsed = PerfArguments(
        threads=_number(given.get("t", "1")),
        gpus=_number(given.get("g", "1")),
        min_bytes=sizes.get("b", defaults.min_bytes),
        max_bytes=sizes.get("e", defaults.max_bytes),
        step_bytes=sizes.get("i", defaults.step_bytes),
        step_factor=_number(given.get("f", "1")),
        iterations=_number(given.get("n", str(defaults.iterations))),
        warmup_iterations=_number(given.get("w", str(defaults.warmup_iterations))),
        aggregated_iterations=_number(given.get("m", "1")),
        cycles=_number(given.get("N", "1")),
        check=_number(given.get("c", "1")),
        graph=_number(given.get("G", "0")),
        datatype=given.get("d", defaults.datatype),
        operation=given.get("o", defaults.operation),
    )
    if parsed.min_bytes > parsed.max_bytes:
        raise EndWith(
            255,
            stderr=f"invalid sizes for 'minbytes' and 'maxbytes': {parsed.min_bytes} > {parsed.max_bytes}\n",
        )
    if parsed.datatype not in TYPE_BYTES or parsed.operation not in OPERATIONS:
        # "all" (every type, every operation) is not simulated; the tool takes unknown names for it.
        raise EndWith(6, stderr=f"{program}: type {parsed.datatype}, op {parsed.operation}: not simulated\n")
    return parsed


_MPI_WITH_VALUES = {
    "-np": 1, "-n": 1, "-c": 1, "--np": 1, "-N": 1, "--npernode": 1, "-npernode": 1, "-H": 1, "--host": 1,
    "--hostfile": 1, "-hostfile": 1, "--machinefile": 1, "-x": 1, "--mca": 2, "-mca": 2, "--prtemca": 2, "--bind-to": 1,
    "-bind-to": 1, "--map-by": 1, "-map-by": 1, "--rank-by": 1, "--wdir": 1, "-wdir": 1, "--prefix": 1, "--timeout": 1,
}  # fmt: skip


def parse_mpirun(arguments: list[str]) -> MpiArguments:
    """Options up to the first word that is none are mpirun's; the rest is the program."""
    processes: int | None = None
    environment: dict[str, str] = {}
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        option = arguments[position]
        values = arguments[position + 1 : position + 1 + _MPI_WITH_VALUES.get(option, 0)]
        if option in ("-np", "-n", "-c", "--np"):
            processes = _number(values[0]) if values else None
        elif option == "-x" and values and "=" in values[0]:
            name, _, value = values[0].partition("=")
            environment[name] = value
        position += 1 + _MPI_WITH_VALUES.get(option, 0)
    if position >= len(arguments):
        rule = "-" * 74
        raise EndWith(1, stderr=f"{rule}\nmpirun could not find anything to do.\n{rule}\n")
    return MpiArguments(arguments[position], tuple(arguments[position + 1 :]), processes, environment)
