"""What an operator may ask of the running agent through the control socket (control.py), and the words for it.

    state | set-healthy | release | resume | reload

Checks what was asked for and hands it to the part that does it; the commands that send it are operator_commands.py.
"""

from collections.abc import Callable, Mapping
from typing import Any

from nvcre_agent.checks.model import Component
from nvcre_agent.control import Action, RefusedError
from nvcre_agent.incidents.model import Incident
from nvcre_agent.nvml.monitor import NvmlMonitor
from nvcre_agent.nvml.snapshot import Inventory, PciAddress
from nvcre_agent.reload import Reloader
from nvcre_agent.watch import Watch
from nvcre_agent.which_gpu import UnknownGpuError, which_gpu

MAX_RELEASE_S = 24 * 3600.0
_MAX_TEXT = 64


class Operations:
    """`state` gives the document of /state."""

    def __init__(
        self, *, watch: Watch, nvml: NvmlMonitor, reloader: Reloader, state: Callable[[], Mapping[str, object]]
    ) -> None:
        self._watch = watch
        self._nvml = nvml
        self._reloader = reloader
        self._state = state

    def actions(self) -> dict[str, Action]:
        return {
            "state": self.state,
            "set-healthy": self.set_healthy,
            "release": self.release,
            "resume": self.resume,
            "reload": self.reload,
        }

    async def state(self, _request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"state": self._state()}

    async def set_healthy(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """{"by": who, "reason": why} and {"incident": id}, {"gpu": index, UUID or PCI address} or {"node": true}."""
        by, reason = _text(request, "by"), _text(request, "reason", may_lack=True)
        ids, devices = self._meant(request)
        said = f"set healthy by {by} ({reason})" if reason else f"set healthy by {by}"
        closed = self._watch.set_healthy(ids, devices, said=said)
        return {"closed": [{"id": one.id, "what": _what(one), "message": one.message} for one in closed]}

    async def release(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        for_s = request.get("for_s")
        if not isinstance(for_s, int | float) or isinstance(for_s, bool) or not 0 < for_s <= MAX_RELEASE_S:
            raise RefusedError(
                f"--for must be more than 0 and at most {MAX_RELEASE_S / 3600:g}h, not {for_s!r} seconds"
            )
        return {"released": await self._nvml.release(for_s)}

    async def resume(self, _request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"resumed": self._nvml.resume()}

    async def reload(self, _request: Mapping[str, Any]) -> Mapping[str, Any]:
        outcome = self._reloader.reload()
        if not outcome.success:
            raise RefusedError("\n  ".join(outcome.problems))
        return {"changed": list(outcome.changed), "needsRestart": list(outcome.needs_restart)}

    def _meant(self, request: Mapping[str, Any]) -> tuple[list[str], tuple[str, ...] | None]:
        """(incidents, devices whose past is forgiven too; None: the whole node)."""
        incidents = self._watch.folding.open_incidents
        match request:
            case {"incident": str(wanted)}:
                found = [one for one in incidents if one.id == wanted]
                if not found:
                    listed = ", ".join(one.id for one in incidents[:20]) or "none"
                    raise RefusedError(f"no open incident {wanted[:64]!r}; open are {listed}")
                component = found[0].component
                return [wanted], tuple(name for name in (component.uuid, component.pci_bus_id) if name)
            case {"gpu": str(wanted)}:
                bus_id, uuid = _gpu(self._watch.inventory, wanted)
                own = [one.id for one in incidents if _is_of(one.component, bus_id, uuid)]
                return own, (bus_id, uuid) if uuid else (bus_id,)
            case {"node": True}:
                return [one.id for one in incidents], None
            case _:
                raise RefusedError("say which: an incident's id, a gpu, or the node")


def _what(incident: Incident) -> str:
    """`Xid 79 of GPU 0`, `nvlink_errors of NVLink 3`."""
    code = f"{incident.kind} {incident.code}" if incident.code else str(incident.kind)
    index = "" if incident.component.index is None else f" {incident.component.index}"
    return f"{incident.check or code} of {incident.component.kind}{index}"


def _is_of(component: Component, bus_id: str, uuid: str) -> bool:
    return component.pci_bus_id == bus_id or (uuid != "" and component.uuid == uuid)


def _gpu(inventory: Inventory | None, wanted: str) -> tuple[str, str]:
    """(PCI address, UUID); a slot that NVML does not list may have incidents too."""
    try:
        gpu = which_gpu(inventory.gpus if inventory else (), wanted)
    except UnknownGpuError as error:
        try:
            return str(PciAddress.parse(wanted)), ""
        except ValueError:
            raise RefusedError(str(error)) from None
    return str(gpu.pci), gpu.uuid


def _text(request: Mapping[str, Any], key: str, *, may_lack: bool = False) -> str:
    text = request.get(key, "")
    if not isinstance(text, str) or not (text or may_lack) or len(text) > _MAX_TEXT or not text.isprintable():
        raise RefusedError(f"{key} must be a line of at most {_MAX_TEXT} characters")
    return text
