"""Runs a command that must not outlive the agent: `python leash.py PARENT_PID COMMAND [ARG...]`.

The kernel kills the command when the agent dies, however it dies; a forgotten nccl-tests would hold all GPUs of the
node.  A small program of its own, because code between fork and exec in a process with threads is not safe.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(1)
    try:
        os.execv(command[0], command)  # noqa: S606  the command is the probe's own
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
