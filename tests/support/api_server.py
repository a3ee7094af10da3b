"""The embedded API server as a process, for tests that need an API: started with a ready-file, ended with SIGTERM."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.processes import clean_environment, end, wait_for_file

REPOSITORY = Path(__file__).parents[2]
CRD_DIRS = (REPOSITORY / "daemonset/crds", REPOSITORY / "local/nvcre_local/crds")
ADMIN_TOKEN = "admin-secret"
KUBELET_TOKEN = "kubelet-secret"


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
        said = wait_for_file(ready, process, log)
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
