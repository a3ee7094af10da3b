"""What the fleet side knows of one node."""

import pytest
from nvcre_coordinator.fleet.node_record import NodeRecord


@pytest.mark.parametrize(
    ("told", "rebooted"),
    [
        (["a"], False),
        (["a", "a"], False),
        (["a", "b"], True),
        (["a", ""], False),  # nobody could read it
        (["", "a"], False),
        (["a", "", "a"], False),
        (["a", "", "b"], True),
    ],
)
def test_a_reboot_is_another_boot_id_and_not_a_missing_one(told: list[str], rebooted: bool) -> None:
    record = NodeRecord("node-0")
    for boot_id in told:
        record.booted(boot_id)
    assert record.rebooted is rebooted
