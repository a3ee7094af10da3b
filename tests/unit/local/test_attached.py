"""Which control plane may be used: one that runs, and that nobody else uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nvcre_kube.client import KubeClient
from nvcre_local.api_servers import CannotAttach
from nvcre_local.attached import Attachment


@pytest.fixture
def ready_file(tmp_path: Path) -> Path:
    """Of a control plane that runs."""
    (tmp_path / "admin").touch()
    file = tmp_path / "ready.json"
    content = {"url": "https://127.0.0.1:6443", "kubeconfig": "admin", "kubelets": "kubelets", "authority": "ca.crt"}
    paths = {key: str(tmp_path / content[key]) for key in ("kubeconfig", "kubelets", "authority")}
    file.write_text(json.dumps({**content, **paths}))
    return file


def test_one_cluster_at_a_time_has_it(ready_file: Path) -> None:
    first = Attachment.of(ready_file)
    assert first.served.url == "https://127.0.0.1:6443"
    with pytest.raises(CannotAttach, match="another run uses this control plane"):
        Attachment.of(ready_file)
    first.release()
    Attachment.of(ready_file).release()


async def test_one_that_answers_no_more_ends_the_run(ready_file: Path) -> None:
    attachment = Attachment.of(ready_file)
    nobody = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    nobody += "users: [{name: u, user: {}}]\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
    attachment.served.kubeconfig.write_text(nobody)
    async with await KubeClient.from_kubeconfig(attachment.served.kubeconfig) as client:
        with pytest.raises(CannotAttach, match="no answer for"):
            await attachment.watch(client, every_s=0, patience_s=0)
    attachment.release()


def test_one_that_has_ended_is_not_waited_for(ready_file: Path) -> None:
    (ready_file.parent / "admin").unlink()
    with pytest.raises(CannotAttach, match="its control plane has ended; start one"):
        Attachment.of(ready_file)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"url": "u", "kubeconfig": 1}'])
def test_another_file_is_told_from_a_ready_file(content: str, tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    file.write_text(content)
    for _ in range(2):  # the refused file is not kept locked
        with pytest.raises(CannotAttach, match="is not what python -m"):
            Attachment.of(file)


def test_a_missing_file_says_who_would_write_it(tmp_path: Path) -> None:
    with pytest.raises(CannotAttach, match="No such file or directory; python -m"):
        Attachment.of(tmp_path / "ready.json")
