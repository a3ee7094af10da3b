"""Taking over a changed configuration: all or nothing, live settings at once, the others named."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from nvcre_agent import config, reload
from nvcre_agent.checks import limits
from nvcre_agent.config import Config, parse
from nvcre_agent.reload import Reloader
from nvcre_agent.xid import catalogue


@pytest.fixture(autouse=True)
def _shipped() -> Iterator[None]:
    yield
    catalogue.use(None)
    limits.use(None)


def reloader(reread: Callable[[], Config], running: Config | None = None) -> tuple[Reloader, list[Config]]:
    applied: list[Config] = []
    return Reloader(running or parse(["--node-name", "n"], {}), reread, applied.append), applied


def test_live_settings_are_applied_and_the_others_named() -> None:
    before = parse(["--node-name", "n"], {})
    one, applied = reloader(lambda: replace(before, log_level="debug", outbox=Path("/x")), before)
    outcome = one.reload()
    assert (outcome.success, outcome.changed, outcome.needs_restart) == (True, ("log-level",), ("outbox",))
    assert applied == [replace(before, log_level="debug")] == [one.running]


def test_a_wrong_configuration_is_refused_as_a_whole_and_the_old_one_kept(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("log-level: debug\nheartbeat-interval: soon\n")
    one, applied = reloader(lambda: config.resolve({"config": str(file), "node-name": "n"}, {}))
    running = one.running
    [problem] = one.reload().problems
    assert problem.startswith(f"{file}:2: heartbeat-interval 'soon' must be")
    assert (applied, one.running) == ([], running)
    file.write_text("log-level: debug\n")
    assert one.reload().success
    assert one.running.log_level == "debug"


def test_of_two_named_files_none_is_taken_over_where_one_is_wrong(tmp_path: Path) -> None:
    rules, numbers = tmp_path / "xid.yaml", tmp_path / "limits.yaml"
    rules.write_text('xid: {94: {blame: "Yes"}}')
    numbers.write_text("pcie_replays: {per_min: many}")
    flags = ["--node-name", "n", "--xid-catalogue", str(rules), "--limits", str(numbers)]
    one, _ = reloader(lambda: parse(flags, {}))
    [problem] = one.reload().problems
    assert problem.startswith(f"--limits {numbers}: pcie_replays: per_min must be a number")
    assert catalogue.catalogue().xid[94].blame == "Conditional"
    numbers.write_text("pcie_replays: {per_min: 77}")
    assert one.reload().changed == ("xid-catalogue", "limits")
    assert (catalogue.catalogue().xid[94].blame, limits.in_use().pcie_replays_per_min) == ("Yes", 77)


def test_the_xid_catalogue_is_read_again_though_its_name_stays_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "xid.yaml"
    file.write_text('xid: {94: {blame: "Yes"}}')
    named = parse(["--node-name", "n", "--xid-catalogue", str(file)], {})
    one, applied = reloader(lambda: replace(named, log_level="debug"), named)
    assert one.reload().success
    assert catalogue.catalogue().xid[94].blame == "Yes"
    file.write_text("xid: {94: {blame: No}}")
    [problem] = one.reload().problems
    assert "xid 94: blame must be a text in quotes" in problem
    assert catalogue.catalogue().xid[94].blame == "Yes"
    assert len(applied) == 1


async def test_a_storm_of_signals_is_one_reload_that_sees_the_last_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload reads files in the event loop: a thousand held it for seconds."""
    monkeypatch.setattr(reload, "SETTLE_S", 0.01)
    before = parse(["--node-name", "n"], {})
    wanted, reread = "info", 0

    def read() -> Config:
        nonlocal reread
        reread += 1
        return replace(before, log_level=wanted)

    one, _ = reloader(read, before)
    for level in ("debug", "warning") * 500:
        wanted = level
        one.soon()
    for again in (1, 2):
        async with asyncio.timeout(60):
            while reread < again:  # noqa: ASYNC110 - until the timer has run
                await asyncio.sleep(0.01)
        assert (reread, one.running.log_level) == (again, "warning")
        one.soon()
    one.close()


async def test_a_changed_file_is_noticed_as_an_editor_and_as_a_mounted_configmap_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "SETTLE_S", 0.0)
    (tmp_path / "..v1").mkdir()
    (tmp_path / "..v1/agent.yaml").write_text("log-level: info")
    (tmp_path / "..data").symlink_to("..v1")
    file = tmp_path / "agent.yaml"
    file.symlink_to("..data/agent.yaml")
    reread = asyncio.Event()
    running = replace(parse(["--node-name", "n"], {}), config_file=file)

    def read() -> Config:
        reread.set()
        return running

    one, _ = reloader(read, running)
    if not one.watch():
        pytest.skip("fs.inotify.max_user_instances is used up")
    try:
        (tmp_path / "outbox.sqlite-wal").write_text("of no interest")
        await asyncio.sleep(0.05)
        assert not reread.is_set()
        (tmp_path / "..new").symlink_to("..v1")
        (tmp_path / "..new").rename(tmp_path / "..data")  # what kubelet does
        await asyncio.wait_for(reread.wait(), 30)
        reread.clear()
        (tmp_path / "agent.yaml~").write_text("log-level: debug")
        (tmp_path / "agent.yaml~").rename(file)  # what an editor does
        await asyncio.wait_for(reread.wait(), 30)
    finally:
        one.close()
