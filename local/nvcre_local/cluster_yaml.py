"""YAML as Kubernetes reads it: JSON's types only. A date stays text (a LogProfile's layout looks like one)."""

from __future__ import annotations

from typing import Any

import yaml


class PlainLoader(yaml.SafeLoader):
    """A SafeLoader that does not make dates of text."""


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_documents(raw: bytes | str) -> list[Any]:
    """All documents that are not empty. Raises yaml.YAMLError."""
    return [c for c in yaml.load_all(raw, Loader=PlainLoader) if c is not None]
