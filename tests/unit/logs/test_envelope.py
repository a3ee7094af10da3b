"""What nodes and collectors put around the lines of a saved log does not change what the log says."""

import json
from collections.abc import Callable, Iterator

import pytest
from nvcre_logs import nccl_document
from nvcre_logs.envelope import Source, opened
from nvcre_logs.nccl_log import NcclLog
from nvcre_logs.saved_log import guess

from .nccl_printer import Run, expected_rows, text
from .test_training_logs import PROFILES, column, megatron, parsed

TIME = "2026-02-11T08:02:11.123456789+05:30"


def docker(line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stdout", "time": TIME})


def source(log: str, chunk: int) -> Source:
    data = log.encode()

    def chunks() -> Iterator[bytes]:
        return (data[start : start + chunk] for start in range(0, len(data), chunk))

    return chunks


@pytest.mark.parametrize("chunk", [13, 1 << 20])
@pytest.mark.parametrize("run", [Run(), Run(era="2018"), Run("alltoall", "2022-08", hosts=("10-1-2-3",))], ids=str)
@pytest.mark.parametrize(
    "around",
    [
        docker,
        lambda line: f"{TIME} stdout F {line}",
        lambda line: f"{TIME} stdout P {line[:20]}\n{TIME} stderr F warning\n{TIME} stdout F {line[20:]}",
        lambda line: f"{TIME} stdout F [1,0]<stdout>:{line}",
        lambda line: f"nccl-1  | {line}",
        lambda line: f"Feb {1 + len(line) % 28:2} 08:02:11 gpu-7 nccl[8841]: {line}".rstrip(),
        lambda line: f"Wed Feb 11 08:02:{len(line) % 60:02} 2026[1,0]<stdout>:{line}",
        lambda line: f"[pod/a-0/c] 2026-02-11 08:02:11,{len(line):03} - INFO - {line}",
        lambda line: f"\x1b[32m[gpu-a:0]\x1b[0m {line}",
        lambda line: f"gpu-a: {line}",
    ],
)
def test_a_table_in_an_envelope(around: Callable[[str], str], run: Run, chunk: int) -> None:
    log = guess(source("\n".join(map(around, text(run).splitlines())) + "\n", chunk), PROFILES).log
    assert isinstance(log, NcclLog)
    (test,) = nccl_document.document(log, "case")["tests"]
    assert (test["rows"], test["status"]) == (expected_rows(run), "ok")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("chunk", [13, 1 << 20])
def test_a_table_that_a_shell_of_windows_saved(encoding: str, chunk: int) -> None:
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    data = (mark + text(Run()).replace("\n", "\r\n")).encode(encoding)
    log = guess(lambda: (data[start : start + chunk] for start in range(0, len(data), chunk)), PROFILES).log
    assert log.ok if isinstance(log, NcclLog) else False


def test_a_node_s_file_tells_when_a_step_was() -> None:
    found = parsed("".join(docker(megatron(step).rstrip("\n")) + "\n" for step in (1, 2)))
    assert (column(found, "step"), column(found, "line")) == ([1, 2], [1, 2])
    assert column(found, "timestamp") == ["2026-02-11T02:32:11.123457+00:00"] * 2


@pytest.mark.parametrize(
    "log",
    [
        "",
        text(Run()),
        "pip install\n" + text(Run()),
        f"{TIME} [1,0]<stdout>:" + text(Run()),
        '{"log": 3}\n{"log": "a"',
        '{"config": {}}',
        f"{TIME} stdout of the program\n",
        "x" * 300 + text(Run()),
    ],
)
def test_a_log_without_one_is_left_as_it_is(log: str) -> None:
    given = source(log, 1 << 20)
    assert opened(given) is given
