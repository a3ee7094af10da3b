"""Which API server, and as whom: what a kubeconfig says, or the files in a Pod, for the client of ``kubernetes.aio``.

It reads only; client.py makes the connection.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import kube_config
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config


class ConfigError(Exception):
    """The kubeconfig or the in-cluster files cannot be used; the text says which and why."""


@asynccontextmanager
async def of_kubeconfig(path: Path | None, context: str | None) -> AsyncIterator[tuple[Configuration, str]]:
    """And the namespace that it names, while the client is made: only then keys and certificates are read.

    ``None``: as KubeClient.from_kubeconfig. Raises ConfigError, also for what making the client raises.
    """
    _refuse_absent([path] if path is not None else _default_kubeconfigs())
    configuration = Configuration()
    try:
        loader = await load_kube_config(
            config_file=None if path is None else str(path),
            context=context,
            client_configuration=configuration,
            persist_config=False,
        )
        namespace = (loader.current_context.get("context") or {}).get("namespace") or "default"
        yield configuration, str(namespace)
    except (ConfigException, OSError, yaml.YAMLError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"kubeconfig {path or '(default)'}: {error}") from error
    except RecursionError:  # PyYAML, and the library's own walk over what it read
        raise ConfigError(f"kubeconfig {path or '(default)'}: nested too deeply") from None
    finally:
        # The library writes keys and certificates that lie inside a kubeconfig to $TMPDIR and removes them at exit
        # only, which a killed process never reaches. By now they are loaded.
        kube_config._cleanup_temp_files()


def of_pod() -> Configuration:
    """With its ServiceAccount. Raises ConfigError."""
    configuration = Configuration()
    try:
        load_incluster_config(client_configuration=configuration)
    except ConfigException as error:
        raise ConfigError(f"not in a cluster: {error}") from error
    return configuration


def _default_kubeconfigs() -> list[Path]:
    """Where every client of Kubernetes looks."""
    named = os.environ.get("KUBECONFIG")
    return [Path(part) for part in named.split(os.pathsep) if part] if named else [Path("~/.kube/config")]


def _refuse_absent(files: list[Path]) -> None:
    if not any(file.expanduser().exists() for file in files):
        named = os.pathsep.join(map(str, files))
        raise ConfigError(f"kubeconfig {named}: no such file; name one with --kubeconfig or in $KUBECONFIG")
