"""A person's kubectl: the one that is built with the control plane, or the machine's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nvcre_local.control_plane.cache import Cache, NotBuilt
from nvcre_local.control_plane.projects import read, select

from .servers import PATIENCE_S, Server


def program() -> str:
    """Skips the test where there is none."""
    try:
        return str(Cache.of().program(select(read())["kubernetes"], "kubectl"))
    except NotBuilt:
        found = shutil.which("kubectl")
    if found is None:
        pytest.skip("no kubectl: neither built (make control-plane) nor on PATH")
    return found


class Kubectl:
    """`home` is where it caches what it discovers of a server."""

    def __init__(self, server: Server, home: Path, namespace: str) -> None:
        self._command = [program(), f"--kubeconfig={server.kubeconfig}", f"--namespace={namespace}"]
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home)}

    def run(self, *words: str, stdin: str = "", editor: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = self._environment | ({"KUBE_EDITOR": str(editor)} if editor else {})
        return subprocess.run(
            [*self._command, *words],
            input=stdin,
            env=environment,
            text=True,
            capture_output=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )

    def __call__(self, *words: str, stdin: str = "", editor: Path | None = None) -> str:
        """What it prints. It has to succeed."""
        done = self.run(*words, stdin=stdin, editor=editor)
        assert done.returncode == 0, f"kubectl {' '.join(words)}\n{done.stderr}"
        return done.stdout

    def refused(self, *words: str, stdin: str = "") -> str:
        """What it complains of. It has to fail."""
        done = self.run(*words, stdin=stdin)
        assert done.returncode != 0, done.stdout
        return done.stderr

    @contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A command that does not end by itself."""
        process = subprocess.Popen([*self._command, *words], env=self._environment, text=True, stdout=subprocess.PIPE)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()
