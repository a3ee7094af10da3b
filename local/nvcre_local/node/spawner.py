"""The parent of all container processes: a small process of its own that starts them, reaps them and outlives nothing.

Run by `nvcre_local.node.processes` as a bare script (`python -I spawner.py FD`), so only the standard library is
imported. It is single-threaded, which makes fork safe, and small, which makes it fast. It is a *child subreaper*: what
a container leaves behind (daemons, orphans of a killed shell) becomes its child and is found again by the mark in its
environment. When the control socket closes, however the runtime ended, everything below is killed, then it ends.

Messages on the socket (SOCK_SEQPACKET) are JSON objects, one a packet:
    {"op": "spawn", "id": ..., "mark": ...} with two descriptors: a memfd of {"path", "argv", "env", "cwd"}, and the
        pipe for the output
    {"op": "kill", "id": ..., "signal": 15}
and back
    {"id", "event": "started", "pid"}, or {"id", "event": "refused", "errno"}
    {"id", "event": "exited", "code", "at"}
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MARK = "NVCRE_POD_DIR"
SWEEP_AGAIN_S = 0.1

_libc = ctypes.CDLL(None, use_errno=True)


def exit_code(status: int) -> int:
    """The shell's convention, which Kubernetes shows too: 128 + n for a process that signal n ended."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def children(pid: int) -> list[int]:
    """Direct children of all threads of a process; none when it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
    except OSError:
        pass  # it ended while we looked
    return found


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    waiting = children(pid)
    while waiting:
        child = waiting.pop()
        found.append(child)
        waiting += children(child)
    return found


def become_subreaper() -> None:
    """From now on every orphan below this process becomes its child."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """Until no child is left: a subreaper gets every orphan, so nobody can hide. Reaps, so it is for the end only."""
    while True:
        for pid in descendants(os.getpid()):
            send_signal(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def mark_of(pid: int) -> str | None:
    """The pod directory a process was started with; None where it has none or hides its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = file.read()
    except OSError:
        return None
    for entry in environ.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == MARK.encode():
            return value.decode(errors="surrogateescape")
    return None


def send_signal(pid: int, number: int, *, group: bool = False) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def execute(request: dict[str, Any], log_fd: int, report_fd: int, parent: int) -> NoReturn:
    """The forked child: a session of its own, no input, both outputs into the log, then the program."""
    error = 0
    try:
        os.setsid()
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(137)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(request["cwd"])
        os.execve(request["path"], request["argv"], request["env"])  # noqa: S606 (never through a shell)
    except OSError as failure:
        error = failure.errno or 1
    except ValueError:  # a text that no program can be given
        error = 22
    os.write(report_fd, str(error).encode())
    os._exit(127)


class Spawner:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._outgoing: deque[bytes] = deque()
        self._containers: dict[int, tuple[str, str]] = {}  # pid -> (id, mark)
        self._pids: dict[str, int] = {}
        self._sweep_due = False

    def serve(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        become_subreaper()
        poll = select.poll()
        poll.register(wake_read, select.POLLIN)
        while True:
            poll.register(self._control, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
            ready = dict(poll.poll(SWEEP_AGAIN_S * 1000 if self._sweep_due else None))
            if wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
            self._reap()
            events = ready.get(self._control.fileno(), 0)
            if events & select.POLLOUT:
                self._flush()
            if events & (select.POLLIN | select.POLLHUP | select.POLLERR) and not self._receive():
                break
        kill_descendants()

    def _receive(self) -> bool:
        """Carries out one message; False when the runtime is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, 65536, 2, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        try:
            message = json.loads(data)
            match message["op"]:
                case "spawn":
                    self._spawn(message["id"], message["mark"], fds[0], fds[1])
                case "kill" if pid := self._pids.get(message["id"]):
                    send_signal(pid, message["signal"], group=True)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _spawn(self, container: str, mark: str, request_fd: int, log_fd: int) -> None:
        with open(request_fd, "rb", closefd=False) as file:
            file.seek(0)
            request = json.loads(file.read())
        report_read, report_write = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as failure:
            os.close(report_read)
            os.close(report_write)
            self._send({"id": container, "event": "refused", "errno": failure.errno})
            return
        if pid == 0:
            execute(request, log_fd, report_write, parent)
        os.close(report_write)
        failure_text = b""
        while chunk := os.read(report_read, 64):
            failure_text += chunk
        os.close(report_read)
        if failure_text:
            os.waitpid(pid, 0)
            self._send({"id": container, "event": "refused", "errno": int(failure_text)})
            return
        self._containers[pid] = (container, mark)
        self._pids[container] = pid
        self._send({"id": container, "event": "started", "pid": pid})

    def _reap(self) -> None:
        self._sweep_due = False
        while True:
            try:
                # Look before reaping: a zombie keeps its number, so killing the group cannot hit a stranger.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                break
            pid = found.si_pid
            if pid in self._containers:
                send_signal(pid, signal.SIGKILL, group=True)
            _, status = os.waitpid(pid, 0)
            if pid in self._containers:
                container, _ = self._containers.pop(pid)
                del self._pids[container]
                self._send({"id": container, "event": "exited", "code": exit_code(status), "at": time.time()})
        self._sweep()

    def _sweep(self) -> None:
        """Kill what ended containers left behind: our children that are no container, marked by a pod without one."""
        strays = [pid for pid in children(os.getpid()) if pid not in self._containers]
        if not strays:
            return
        alive = {mark for _, mark in self._containers.values()}
        for stray in strays:
            if mark_of(stray) not in alive:
                for pid in (stray, *descendants(stray)):
                    send_signal(pid, signal.SIGKILL)
                self._sweep_due = True

    def _send(self, message: dict[str, Any]) -> None:
        self._outgoing.append(json.dumps(message).encode())
        self._flush()

    def _flush(self) -> None:
        while self._outgoing:
            try:
                self._control.send(self._outgoing[0])
            except BlockingIOError:
                return
            except OSError:  # the runtime is gone; the closed socket is noticed by the next receive
                self._outgoing.clear()
                return
            self._outgoing.popleft()


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)  # else every container would hold our end of it
    control.setblocking(False)
    Spawner(control).serve()


if __name__ == "__main__":
    main()
