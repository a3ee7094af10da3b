"""Which GPU does a person mean: by index, UUID or PCI address, as any tool prints it."""

from collections.abc import Iterable

from nvcre_agent.nvml.snapshot import GpuIdentity, PciAddress


class UnknownGpuError(ValueError):
    """The text names what was asked for, and the GPUs there are."""


def which_gpu(gpus: Iterable[GpuIdentity], wanted: str) -> GpuIdentity:
    """An index may have two: that of a GPU that is gone may be another one's since the driver was loaded again."""
    known = tuple(gpus)
    found = [gpu for gpu in known if wanted in (str(gpu.index), gpu.uuid) or _address(wanted) == gpu.pci]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownGpuError(f"more than one GPU is called {wanted[:64]!r}; give the UUID:{_listed(found)}")
    raise UnknownGpuError(
        f"no GPU {wanted[:64]!r} on this node; there are{_listed(known) or ' none, NVML has named no GPU yet'}"
    )


def _listed(gpus: Iterable[GpuIdentity]) -> str:
    """A line for each."""
    return "".join(f"\n  {gpu.index}  {gpu.uuid}  {gpu.pci}" for gpu in gpus)


def _address(text: str) -> PciAddress | None:
    try:
        return PciAddress.parse(text)
    except ValueError:
        return None
