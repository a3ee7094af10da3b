"""Which pod and container a pid belongs to, in the spellings of both cgroup versions and drivers."""

from pathlib import Path

import pytest
from nvcre_agent.process_owner import NOBODY, Owner, ProcessOwners, owner_in

POD = "0c1b7f5e-1111-2222-3333-444455556666"
CONTAINER = "ab" * 32


@pytest.mark.parametrize(
    ("cgroup", "owner"),
    [
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0c1b7f5e_1111_2222_3333_444455556666.slice"
            f"/cri-containerd-{CONTAINER}.scope",
            Owner(POD, CONTAINER),
        ),
        (f"0::/../../kubepods-pod{POD.replace('-', '_')}.slice/crio-{CONTAINER}.scope", Owner(POD, CONTAINER)),
        (f"12:devices:/kubepods/besteffort/pod{POD}/{CONTAINER}\n1:name=systemd:/x", Owner(POD, CONTAINER)),
        (f"0::/kubepods/pod{POD}", Owner(POD, "")),
        ("0::/user.slice/user-1000.slice/session-3.scope", NOBODY),
        (f"0::/system.slice/docker-{CONTAINER}.scope", NOBODY),
        ("", NOBODY),
    ],
)
def test_the_owner_stands_in_the_cgroup_s_path(cgroup: str, owner: Owner) -> None:
    assert owner_in(cgroup) == owner


def test_a_process_that_is_gone_has_no_owner_and_a_known_one_is_not_read_again(tmp_path: Path) -> None:
    owners = ProcessOwners(tmp_path)
    assert owners.owner(7) == NOBODY
    cgroup = tmp_path / "8" / "cgroup"
    cgroup.parent.mkdir()
    cgroup.write_text(f"0::/kubepods/pod{POD}/{CONTAINER}\n")
    assert owners.owner(8) == Owner(POD, CONTAINER)
    cgroup.unlink()
    assert owners.owner(8) == Owner(POD, CONTAINER)
    for pid in range(100, 300):
        assert owners.owner(pid) == NOBODY
