"""The limits as shipped, and an operator's file over them: what may change, and which word of a wrong file is named."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from nvcre_agent.checks import limits
from nvcre_agent.checks.baseline import Baseline
from nvcre_agent.checks.model import Finding
from nvcre_agent.checks.rules import evaluate
from support.checked_node import healthy, identity, snapshot


@pytest.fixture(autouse=True)
def as_shipped() -> Iterator[None]:
    yield
    limits.override(None)


def override(directory: Path, text: str) -> None:
    file = directory / "limits.yaml"
    file.write_text(text)
    limits.override(file)


def test_the_numbers_of_the_field() -> None:
    shipped = limits.shipped()
    assert (shipped.pcie_replays_per_min, shipped.nvlink_errors_delta, shipped.nvlink_errors_crc_per_s) == (8, 1, 100)
    assert (shipped.retired_pages_hard, shipped.retired_pages_soft, shipped.row_remap_limit_rows) == (63, 15, 512)
    assert (shipped.hw_slowdown_per_min, shipped.ib_port_down_seconds) == (0.6, 240)
    flapping = (shipped.ib_port_flapping_outages, shipped.ib_port_flapping_outage_s, shipped.ib_port_flapping_window_s)
    assert flapping == (3, 25, 12 * 3600)


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    override(tmp_path, "pcie_replays: {per_min: 20, clear_after_s: 5}\ntemperature_margin: {celsius_of: {B300: 3}}")
    changed, shipped = limits.in_use(), limits.shipped()
    assert (changed.pcie_replays_per_min, changed.hysteresis["pcie_replays"].clear_after_s) == (20, 5)
    assert changed.temperature_margin_celsius_of == {**shipped.temperature_margin_celsius_of, "B300": 3}
    assert changed.hysteresis["gpu_missing"] == shipped.hysteresis["gpu_missing"]
    limits.override(None)
    assert limits.in_use() == shipped


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("- 1", "must be a mapping of checks"),
        ("pcie_replay: {per_min: 1}", "unknown check 'pcie_replay'; did you mean pcie_replays?"),
        ("phase_of_moon: {}", "unknown check 'phase_of_moon'; known are gpu_lost"),
        ("pcie_replays: 7", "pcie_replays: must be a mapping of raise_after_s, clear_after_s, per_min"),
        ("pcie_replays: {per_minute: 1}", "pcie_replays: unknown key 'per_minute'; known are"),
        ("pcie_replays: {per_min: many}", "pcie_replays: per_min must be a number, not 'many'"),
        ("pcie_replays: {per_min: true}", "per_min must be a number, not True"),
        ("pcie_replays: {per_min: .nan}", "per_min must be a number, not nan"),
        ("pcie_replays: {raise_after_s: -1}", "raise_after_s must be a number of seconds, not -1"),
        ("recovery_action: {names: {9: x}}", "recovery_action: unknown key 'names'"),
        ("fabric_health: {fields: []}", "fabric_health: unknown key 'fields'"),
        ("fabric_registration: {waits: false}", "fabric_registration: unknown key 'waits'"),
        ("temperature_margin: {celsius_of: {H100: hot}}", "celsius_of must map words of product names to numbers"),
        ("{", "limits.yaml"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_the_old_limits_stay(tmp_path: Path, text: str, named: str) -> None:
    override(tmp_path, "pcie_replays: {per_min: 20}")
    with pytest.raises(limits.LimitsError, match=r"limits\.yaml") as refused:
        override(tmp_path, text)
    assert named in str(refused.value)
    assert limits.in_use().pcie_replays_per_min == 20


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(limits.LimitsError, match=r"nowhere\.yaml"):
        limits.override(tmp_path / "nowhere.yaml")


def test_a_product_is_known_by_whole_words_of_its_name(tmp_path: Path) -> None:
    override(tmp_path, "temperature_margin: {celsius_of: {L40: 20, B200: 20}}")
    for product in ("NVIDIA L40S", "NVIDIA GB200"):
        seen = snapshot(healthy(0, identity=identity(0, product=product), temperature_margin_c=10))
        said = evaluate(seen, Baseline().advance(seen), limits.in_use())
        assert not any(isinstance(one, Finding) for one in said)


@pytest.mark.parametrize(
    ("product", "margin_c", "found"),
    [
        ("NVIDIA B200", -2, False),
        ("NVIDIA B200", -3, True),
        ("NVIDIA GB200", -2, True),
        ("NVIDIA GH200 480GB", -1, False),
        ("NVIDIA H100 80GB HBM3", -2, True),
        ("NVIDIA L40S", -2, True),
    ],
)
def test_the_temperature_margin_is_the_products_own(product: str, margin_c: int, found: bool) -> None:
    seen = snapshot(healthy(0, identity=identity(0, product=product), temperature_margin_c=margin_c))
    said = evaluate(seen, Baseline().advance(seen), limits.shipped())
    assert any(isinstance(one, Finding) for one in said) is found
