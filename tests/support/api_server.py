"""The embedded API server as a process, for tests that need an API: started with a ready-file, ended with SIGTERM."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CRD_DIRS = (REPOSITORY / "daemonset/crds", REPOSITORY / "local/nvcre_local/crds")
ADMIN_TOKEN = "admin-secret"
KUBELET_TOKEN = "kubelet-secret"
PATIENCE_S = 20.0


@dataclass(frozen=True)
class ApiServer:
    url: str
    tls_url: str
    authority: str
    kubeconfig: Path
    kubelet_token_file: Path
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def api_server(
    directory: Path, *, listen: str = "127.0.0.1:0", crd_dirs: Sequence[Path] = CRD_DIRS
) -> Iterator[ApiServer]:
    """Up in well under a second; its files lie in `directory`, its state is gone afterwards."""
    tokens, kubelet_token = directory / "tokens", directory / "kubelet-token"
    ready, log, kubeconfig = directory / "apiserver.json", directory / "apiserver.log", directory / "kubeconfig"
    tokens.write_text(f'{ADMIN_TOKEN},admin,uid-admin,"system:masters"\n')
    kubelet_token.write_text(f"{KUBELET_TOKEN}\n")
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "nvcre_local.apiserver", "--listen", listen, "--token-file", str(tokens)]
    command += ["--kubelet-token-file", str(kubelet_token), "--ready-file", str(ready)]
    for crd_dir in crd_dirs:
        command += ["--crd-dir", str(crd_dir)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=clean_environment())
    try:
        wait_for_file(ready, process, log)
        said = json.loads(ready.read_text())
        kubeconfig.write_text(json.dumps(kubeconfig_for(said["url"])))
        kubeconfig.chmod(0o600)
        yield ApiServer(said["url"], said["tls_url"], said["ca"], kubeconfig, kubelet_token, process, log)
    finally:
        end(process)


def kubeconfig_for(url: str, *, token: str = ADMIN_TOKEN) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
        "current-context": "x",
    }


def clean_environment() -> dict[str, str]:
    """Ours without what would change a process of ours."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("NVCRE_", "KUBE"))}


def wait_for_file(file: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the process has written its ready-file; fails with its log when it ends instead."""
    until = time.monotonic() + PATIENCE_S
    while not file.exists():
        if process.poll() is not None:
            raise AssertionError(f"ended with {process.returncode}:\n{log.read_text(errors='replace')[-4000:]}")
        if time.monotonic() > until:
            raise AssertionError(f"not ready after {PATIENCE_S} s:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.01)


def end(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, and SIGKILL for one that does not listen; the exit code."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()
