"""Which GPU an operator means; what could be two is nobody."""

import pytest
from nvcre_agent.nvml.snapshot import GpuIdentity, PciAddress
from nvcre_agent.which_gpu import UnknownGpuError, which_gpu

HERE = GpuIdentity(3, "GPU-z", PciAddress(0, 0x1F, 0), "H100", "2")
GONE = GpuIdentity(3, "GPU-a", PciAddress(0, 0x1E, 0), "H100", "1")  # lost; the next one has its index since the reload


@pytest.mark.parametrize("wanted", ["GPU-z", "0000:1f:00.0", "00000000:1F:00.0"])
def test_a_gpu_is_found_by_any_of_its_names(wanted: str) -> None:
    assert which_gpu((GONE, HERE), wanted) is HERE
    assert which_gpu((HERE,), "3") is HERE


@pytest.mark.parametrize(
    ("gpus", "wanted", "said"),
    [
        (
            (GONE, HERE),
            "3",
            "more than one GPU is called '3'; give the UUID:\n  3  GPU-a  00000000:1E:00.0\n  3  GPU-z  ",
        ),
        ((HERE,), "MIG-1", "no GPU 'MIG-1' on this node; there are\n  3  GPU-z  "),
        ((), "3", "no GPU '3' on this node; there are none, NVML has named no GPU yet"),
    ],
)
def test_what_is_no_gpu_or_two_is_refused_with_those_there_are(
    gpus: tuple[GpuIdentity, ...], wanted: str, said: str
) -> None:
    with pytest.raises(UnknownGpuError, match=said):
        which_gpu(gpus, wanted)
