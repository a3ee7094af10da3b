"""HOST:PORT as people and processes write it; an IPv6 host stands in brackets."""


class ListenError(Exception):
    """An address cannot be listened on; the message names the flag and what to do."""


def parse_address(text: str) -> tuple[str, int]:
    """The host without brackets, and the port.  Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} must be HOST:PORT, for example 127.0.0.1:8080 or [::1]:0")
    return host.removeprefix("[").removesuffix("]"), int(port)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
