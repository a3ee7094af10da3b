"""Which HTTP proxy leads to an API server: asked once for a connection, not before each of its requests."""

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def environment_proxy(url: str) -> str | None:
    """As https_proxy, http_proxy and no_proxy say, in either case."""
    parts = urlsplit(url)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)
