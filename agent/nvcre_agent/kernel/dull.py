"""Which lines of a saved log can say nothing? The shortcut for the bulk of a log: most lines are none of ours.

A line is dull when it has none of the words that any parser, note or quote begins with, and has one of the common
envelopes, which tells who wrote it. For every other line the answer is None and it is read in full. That both ways
give the same answer for every log is a test (tests/unit/agent/kernel/test_dull.py).
"""

import re

from nvcre_agent.kernel.envelope import Writer

# One of them is in every line that parsers.py, context.py or kernel_log_reading.py does something with.
WORDS = (
    "NVRM", "nvidia", "mlx5", "infiniband", "lost carrier", "NETDEV", "emory", "Killed", "mce", "EDAC", "Hardware",
    "AER", "PCIe", "Xid", "fallen", "INFO: task", "segfault", "dropped", "suppressed", "Failed to allocate", "NMI",
    "panic", "watchdog", "rcu: ", "temperature", "pciehp", "DPC", "reset", "Linux version", "repeated",
)  # fmt: skip
_UPTIME = re.compile(r"(?:<[0-7]>)?\[ {0,16}\d{1,12}\.\d{1,9}\] [^\[\s]")
_HEADER = re.compile(
    r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.]{8,15}(?:Z|[+-]\d\d:?\d\d)) [\w.-]+ "
)
_PROGRAM = re.compile(r"[\w.-]{1,64}\[\d{1,10}\]: ")


def writer_of_dull(line: str) -> Writer | None:
    for word in WORDS:
        if word in line:
            return None
    match line[0]:
        case "[" | "<" if _UPTIME.match(line) is not None:
            return Writer.KERNEL
        case "{" if line.endswith("}") and "\\u" not in line and '"MESSAGE":"' in line:
            return Writer.KERNEL if '"_TRANSPORT":"kernel"' in line and '"SYSLOG_FACILITY":"0"' in line else None
        case _ if (header := _HEADER.match(line)) is not None:
            if line.startswith("kernel: ", header.end()):
                return Writer.KERNEL
            return Writer.PROCESS if _PROGRAM.match(line, header.end()) is not None else None
    return None
