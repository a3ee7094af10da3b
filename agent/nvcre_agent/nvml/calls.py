"""One NVML call: its answer, or why there is none.  Every call of the agent goes through `read`.

Used only inside the NVML child process: any call here can block for ever.  Error codes become the `Unread` that keeps
apart what accuses a GPU and what does not; nothing is retried and nothing judged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from nvcre_agent.nvml.snapshot import Unread

T = TypeVar("T")

_UNREAD = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: Unread.NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Unread.NOT_SUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Unread.NOT_SUPPORTED,
    pynvml.NVML_ERROR_GPU_IS_LOST: Unread.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: Unread.RESET_REQUIRED,
    pynvml.NVML_ERROR_NO_PERMISSION: Unread.NO_PERMISSION,
}


def unread(code: int) -> Unread:
    return _UNREAD.get(code, Unread.FAILED)


def read(call: Callable[..., T], *args: object) -> T | Unread:
    """The answer of one NVML call or why there is none."""
    try:
        return call(*args)
    except pynvml.NVMLLibraryMismatchError:  # what pynvml makes of a missing symbol behind an unversioned name
        return Unread.NOT_SUPPORTED
    except pynvml.NVMLError as error:
        return unread(error.value)
    except UnicodeDecodeError:  # a string that is not text, seen on dying InfoROMs
        return Unread.FAILED


def read_newer(name: str, *args: object) -> Any:
    """A call that not every version of pynvml has."""
    call = getattr(pynvml, name, None)
    return Unread.NOT_SUPPORTED if call is None else read(call, *args)
