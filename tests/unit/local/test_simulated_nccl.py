"""The shims print what nccl-tests 2.19 prints, with figures that behave like those of real links."""

import json
import re
from pathlib import Path

import pytest
from nvcre_local.scenario_file import parse_scenario
from nvcre_local.simulated_nccl import programs, text
from nvcre_local.simulated_nccl.arguments import EndWith, PerfArguments, parse_mpirun, parse_size, parse_test
from nvcre_local.simulated_nccl.directory import Directory, Handshake, PodIdentity, SimulationBroken, Worker
from nvcre_local.simulated_nccl.fabric import Fabric, NodeLinks
from nvcre_local.simulation import SimulationDirectory

CORPUS = Path(__file__).parents[2] / "corpus"
CAPTURED = (CORPUS / "ns03-allgather-b200-two-nodes-2.19.log").read_text().splitlines(keepends=True)
H100 = NodeLinks("node-0", 8, 480.0, 48.0)
GIB = 1 << 30


@pytest.fixture
def world(tmp_path: Path) -> SimulationDirectory:
    """A simulation directory of two nodes whose runs take no time."""
    scenario = parse_scenario("{nodes: 2, runSeconds: 0.1, probeSeconds: 0.0}", name="s", where="s")
    directory = SimulationDirectory(tmp_path / "simulation", scenario)
    directory.write()
    return directory


def run(world: SimulationDirectory, capsys, *words: str, node: str | None = "node-0", **environment: str):
    options = ["--node", node] if node else []
    code = programs.main([str(world.root), *options, *words], environment)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


# -- the text ------------------------------------------------------------------------------------------------


def test_rows_are_printed_as_in_a_captured_run():
    """Every row of the capture comes out of its own figures, character by character."""
    rows = [line for line in CAPTURED if re.match(r"\s+\d", line)]
    assert len(rows) == 6
    for row in rows:
        size, _, _, _, _, *cells = row.split()
        sides = [text.Measured(*(float(cell) for cell in side[:3])) for side in (cells[:4], cells[4:])]
        printed = text.row_start(int(size), PerfArguments(operation="none"))
        # the capture is an all_gather: its count is per rank, ours is the whole message
        printed = printed[:14] + f"{int(size) // 4 // 16:12d}" + printed[26:]
        printed += "".join(text.row_side(side, checked=True) for side in sides)
        assert printed + "\n" == row


def test_heading_device_lines_and_footer_are_those_of_a_captured_run():
    assert "".join(CAPTURED[21:25]) == text.HEADING
    devices = [
        text.Device(rank, 4233 + rank, "node1.example.org", rank, f"0000:{5 + rank:02x}:00", "NVIDIA B200")
        for rank in range(8)
    ]
    assert text.device_lines(devices) == "".join(CAPTURED[5:13])
    assert text.footer("all_gather_perf", 364.479) == "".join(CAPTURED[31:])


def test_the_banner_is_that_of_a_captured_run():
    arguments = PerfArguments(min_bytes=536870912, max_bytes=17179869184, step_factor=2)
    assert text.banner("all_gather_perf", arguments) == "".join(CAPTURED[:5])


@pytest.mark.parametrize(
    ("value", "width", "shown"),
    [
        (0.0, 7, "   0.00"),
        (68.754, 7, "  68.75"),
        (1441.128, 7, "1441.13"),
        (10961.44, 7, "10961.4"),
        (123456.7, 7, " 123457"),
        (1234567.8, 7, "1234568"),
        (372.53, 6, "372.53"),
        (1372.53, 6, "1372.5"),
    ],
)
def test_a_cell_shows_as_many_of_two_decimals_as_fit(value, width, shown):
    assert text.cell(value, width) == shown


def test_a_long_device_list_is_cut_at_2047_bytes():
    devices = [text.Device(n, 1, "host", n, "0000:1b:00", "NVIDIA H100 80GB HBM3") for n in range(64)]
    printed = text.device_lines(devices)
    assert len(printed) == 2047
    assert printed.endswith("...\n")


# -- the command line ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"), [("8M", 8 << 20), ("8G", 8 << 30), ("1k", 1024), ("1024", 1024), ("x", -1), ("-1", -1)]
)
def test_sizes_are_binary(words, expected):
    assert parse_size(words) == expected


def test_flags_are_read_in_every_form_that_getopt_takes():
    parsed = parse_test(
        "p", ["-b", "8", "-e8G", "-f", "2", "--ngpus", "8", "--iters=5", "-w", "3", "-c", "0", "-t", "1"]
    )
    assert (parsed.min_bytes, parsed.max_bytes, parsed.step_factor) == (8, 8 << 30, 2)
    assert (parsed.gpus, parsed.iterations, parsed.warmup_iterations, parsed.check) == (8, 5, 3, 0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (PerfArguments(min_bytes=8, max_bytes=64, step_factor=2), [8, 16, 32, 64]),
        (PerfArguments(min_bytes=100, max_bytes=300, step_bytes=100), [100, 200, 300]),
        (PerfArguments(min_bytes=10, max_bytes=10), [8]),
        (PerfArguments(min_bytes=0, max_bytes=8, step_factor=2), [0]),
    ],
)
def test_sizes_step_as_asked_and_hold_whole_elements(arguments, expected):
    assert arguments.sizes() == expected


@pytest.mark.parametrize(
    ("words", "code", "stderr"),
    [
        (["-b", "foo"], 255, "invalid size specified for 'minbytes'"),
        (["-e", "foo"], 255, "invalid size specified for 'maxbytes'"),
        (["-b", "2", "-e", "1"], 255, "invalid sizes for 'minbytes' and 'maxbytes': 2 > 1"),
        (["--what"], 0, "what"),
        (["-h"], 0, ""),
    ],
)
def test_bad_arguments_end_as_the_tool_ends(words, code, stderr):
    with pytest.raises(EndWith) as end:
        parse_test("all_reduce_perf", words)
    assert end.value.code == code
    assert stderr in end.value.stderr


def test_mpiruns_own_options_are_told_from_the_programs():
    line = "-np 16 --mca btl tcp,self -x NCCL_NVLS_ENABLE=0 -x PATH --allow-run-as-root all_reduce_perf_mpi -b 8"
    asked = parse_mpirun(line.split())
    assert (asked.program, asked.arguments, asked.processes) == ("all_reduce_perf_mpi", ("-b", "8"), 16)
    assert asked.environment == {"NCCL_NVLS_ENABLE": "0"}


# -- the figures ---------------------------------------------------------------------------------------------


def busbw(fabric: Fabric, size: int = 8 * GIB) -> float:
    return text.Measured.of(size, fabric.time_us(size, "out-of-place"), fabric.busbw_factor).busbw_gbps


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 480),
        ({"NCCL_NVLS_ENABLE": "0"}, 370),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, 48),
        ({"NCCL_P2P_DISABLE": "1"}, 480),
    ],
)
def test_one_node_reaches_what_its_environment_leaves_on(environment, expected):
    assert busbw(Fabric.over((H100,), 8, environment)) == pytest.approx(expected, rel=0.02)


def test_small_messages_are_slow():
    assert busbw(Fabric((H100,), 8), 1 << 20) == pytest.approx(43, rel=0.1)  # measured: 42.97 (corpus ns01)


def test_many_nodes_are_as_fast_as_their_nics_and_as_the_slowest_of_them():
    others = tuple(NodeLinks(f"node-{n}", 8, 480.0, 48.0) for n in range(3))
    assert busbw(Fabric(others, 24)) == pytest.approx(8 * 48, rel=0.02)
    slow = NodeLinks("node-3", 8, 210.0, 48.0)
    assert busbw(Fabric((*others, slow), 32)) == pytest.approx(210, rel=0.02)


def test_a_run_can_be_repeated():
    fabric = Fabric((H100,), 8)
    assert fabric.time_us(GIB, "in-place") == fabric.time_us(GIB, "in-place")
    assert fabric.time_us(GIB, "in-place") != fabric.time_us(GIB, "out-of-place")


def test_one_rank_has_no_bus_bandwidth():
    assert Fabric((H100,), 1).busbw_factor == 0


# -- the programs --------------------------------------------------------------------------------------------


def test_a_probe_prints_a_table_of_its_nodes_gpus(world, capsys):
    code, out, err = run(world, capsys, "all_reduce_perf", "-b", "1G", "-e", "4G", "-f", "2", "-g", "8")
    assert (code, err) == (0, "")
    assert out.count("NVIDIA H100 80GB HBM3") == 8
    assert [line.split()[0] for line in out.splitlines() if line.startswith(" ")] == [str(n * GIB) for n in (1, 2, 4)]
    assert out.endswith("# Collective test concluded: all_reduce_perf\n#\n\n")


def test_a_gpu_that_fell_off_the_bus_is_missing(world, capsys):
    world.driver_event("node-0", {"gpu": 5, "set": {"lost": True}})
    code, out, err = run(world, capsys, "all_reduce_perf", "-g", "8")
    assert (code, out) == (5, "")
    assert err == "Invalid number of GPUs: 8 requested but only 7 were found.\n"


def test_a_node_without_a_description_is_a_clear_error(world, capsys):
    code, _, err = run(world, capsys, "all_reduce_perf", node="node-9")
    assert code == 1
    assert "the scenario did not describe this node" in err


def test_a_pod_must_say_where_it_runs(world, capsys):
    code, _, err = run(world, capsys, "sshd", node=None)
    assert code == 1
    assert "NVCRE_NODE_NAME is not set" in err


def test_the_launcher_prints_one_table_over_all_workers_and_ends_them(world, capsys):
    handshake = Handshake(Directory(world.root), "j-workload")
    for rank in range(2):
        handshake.start(Worker(rank, f"node-{rank}", 100 * (rank + 1)))
    code, out, _ = run(
        world, capsys, "mpirun", "-np", "16", "all_reduce_perf_mpi", "-b", "8G", "-e", "8G",
        node=None, NVCRE_NODE_NAME="node-0", NVCRE_POD_NAME="j-workload-launcher-0-0-x7k2p",
    )  # fmt: skip
    assert code == 0
    assert "# Collective test starting: all_reduce_perf_mpi" in out
    assert re.findall(r"Rank +(\d+) .* on +(\S+) device +0", out) == [("0", "node-0"), ("8", "node-1")]
    assert handshake.done


def test_a_workers_death_is_followed_by_what_nccl_and_mpirun_say(world, capsys, monkeypatch):
    monkeypatch.setattr(programs, "PEER_NOTICES_AFTER_S", 0.0)
    handshake = Handshake(Directory(world.root), "j-workload")
    for rank in range(2):
        handshake.start(Worker(rank, f"node-{rank}", 100 * (rank + 1)))
    handshake.fail(Worker(1, "node-1", 200), 3)
    code, out, err = run(
        world, capsys, "mpirun", "-np", "16", "all_reduce_perf_mpi",
        node=None, NVCRE_NODE_NAME="node-0", NVCRE_POD_NAME="j-workload-launcher-0-0",
    )  # fmt: skip
    assert code == 3
    assert "NCCL WARN socketProgress: Connection closed by remote peer node-1<" in out
    assert "node-0: Test NCCL failure common.cu:303 'remote process exited or there was a network error" in out
    assert re.search(r"^ \.\. node-0 pid \d+: Test failure", out, re.MULTILINE)
    assert "mpirun detected that one or more processes exited with non-zero status" in err
    assert not handshake.done


def test_a_worker_dies_as_the_scenario_orders(world, capsys):
    world.crash("node-1", exit_code=3, lines=["{host}: it broke, pid {pid}"])
    code, out, _ = run(
        world, capsys, "sshd", "-De", node=None, NVCRE_NODE_NAME="node-1", NVCRE_POD_NAME="j-workload-node-0-1-abcde"
    )
    assert code == 3
    assert re.search(r"^node-1: it broke, pid \d+$", out, re.MULTILINE)
    handshake = Handshake(Directory(world.root), "j-workload")
    assert handshake.failed() == 1
    assert json.loads((handshake.path / "started-1").read_text())["node"] == "node-1"


def test_a_deleted_job_leaves_no_trace_for_the_next_of_its_name(world):
    handshake = Handshake(Directory(world.root), "j-workload")
    handshake.start(Worker(0, "node-0", 1))
    handshake.finish()
    world.crash("node-0", exit_code=1, lines=[])
    world.forget_workload("j-workload")
    assert (handshake.workers(), handshake.done) == ([], False)
    assert Directory(world.root).crash("node-0") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("my-job-workload-node-0-3-abcde", PodIdentity("my-job-workload", "node", 3)),
        ("my-job-workload-launcher-0-0-12345", PodIdentity("my-job-workload", "launcher", 0)),
        ("node-node-0-1", PodIdentity("node", "node", 1)),
    ],
)
def test_a_pods_name_says_jobset_part_and_rank(name, expected):
    assert PodIdentity.parse(name) == expected


def test_a_foreign_pod_name_is_refused():
    with pytest.raises(SimulationBroken, match="is not a Pod of a JobSet"):
        PodIdentity.parse("whatever")


# -- the directory -------------------------------------------------------------------------------------------


def test_kernel_records_have_rising_sequence_numbers_and_times(world):
    world.kernel("node-1", ["NVRM: one", "NVRM: two"])
    records = [
        re.fullmatch(r"(\d+),(\d+),(\d+),-;(.*)", line) for line in world.kernel_log("node-1").read_text().splitlines()
    ]
    assert all(records)
    assert [record[2] for record in records] == ["1000", "1001", "1002"]
    assert [record[1] for record in records] == ["6", "3", "3"]
    assert sorted(int(record[3]) for record in records) == [int(record[3]) for record in records]
    assert records[-1][4] == "NVRM: two"


def test_each_gpu_of_the_cluster_has_its_own_uuid(world):
    uuids = {
        gpu["uuid"] for node in ("node-0", "node-1") for gpu in json.loads(world.driver_file(node).read_text())["gpus"]
    }
    assert len(uuids) == 16
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid) for uuid in uuids)
