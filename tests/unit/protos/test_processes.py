"""What every process of ours does alike: addresses, its log, the file that tells its parent where it serves."""

import argparse
import logging
from pathlib import Path

import pytest
from nvcre_protos.addresses import format_address, parse_address
from nvcre_protos.flags import Flags
from nvcre_protos.logfmt import LogfmtFormatter
from nvcre_protos.ready_file import read_ready_file, write_ready_file


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:9443", ("::1", 9443)), ("gpu-node:65535", ("gpu-node", 65535))],
)
def test_an_address_comes_back_as_it_was_written(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert format_address(*address) == text


@pytest.mark.parametrize("text", ["", "nowhere", ":80", "host:", "host:65536", "host:http", "host:-1", "host:²"])
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        parse_address(text)


def test_an_event_is_one_line_even_with_a_traceback() -> None:
    failure = (OSError, OSError("disk\nfull"), None)
    record = logging.LogRecord("nvcre", logging.ERROR, "", 0, "write failed path=%s", ("/a\nb",), failure)
    record.created, record.msecs = 0.0, 7.0
    line = LogfmtFormatter().format(record)
    assert line.startswith(r"time=1970-01-01T00:00:00.007Z level=error logger=nvcre write failed path=/a\nb traceback=")
    assert "\n" not in line


def test_a_ready_file_is_absent_or_whole(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    assert read_ready_file(file) is None
    write_ready_file(file, {"metrics": "127.0.0.1:9465"})
    assert read_ready_file(file) == {"metrics": "127.0.0.1:9465"}
    assert list(tmp_path.iterdir()) == [file]


def parsed(words: list[str], **environment: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    flags = Flags(parser, environment)
    flags.add("root", "", metavar="DIR", required=True)
    flags.add_repeatable("node", "", "NAME")
    flags.add_switch("trainer", "")
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "environment", "read"),
    [
        (["--root", "a"], {}, ("a", [], False)),
        (["--root", "a", "--node", "x", "--node", "y", "--trainer"], {}, ("a", ["x", "y"], True)),
        ([], {"NVCRE_ROOT": "a", "NVCRE_NODE": "x,y", "NVCRE_TRAINER": "true"}, ("a", ["x", "y"], True)),
        (["--root", "b"], {"NVCRE_ROOT": "a", "NVCRE_NODE": "", "NVCRE_TRAINER": "0"}, ("b", [], False)),
        (["--root", "a", "--node", "y"], {"NVCRE_NODE": "x"}, ("a", ["x", "y"], False)),
    ],
)
def test_each_flag_comes_from_the_environment_too(words: list[str], environment: dict[str, str], read: object) -> None:
    given = parsed(words, **environment)
    assert (given.root, given.node, given.trainer) == read


def test_what_is_required_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed([])
    assert ended.value.code == 2
    assert "--root" in capsys.readouterr().err
