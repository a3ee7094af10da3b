"""Which GPU does a person mean: by index, UUID or PCI address, as any tool prints it."""

from collections.abc import Iterable

from nvcre_agent.nvml.snapshot import GpuIdentity, PciAddress


class UnknownGpuError(ValueError):
    """The text names what was asked for, and the GPUs there are."""


def which_gpu(gpus: Iterable[GpuIdentity], wanted: str) -> GpuIdentity:
    known = tuple(gpus)
    for gpu in known:
        if wanted in (str(gpu.index), gpu.uuid) or _address(wanted) == gpu.pci:
            return gpu
    listed = "; ".join(f"{gpu.index} = {gpu.uuid} = {gpu.pci}" for gpu in known) or "none, NVML has named no GPU yet"
    raise UnknownGpuError(f"no GPU {wanted[:64]!r} on this node; there are {listed}")


def _address(text: str) -> PciAddress | None:
    try:
        return PciAddress.parse(text)
    except ValueError:
        return None
