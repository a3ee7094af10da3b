"""Ports for programs that cannot be told to take any free one and say which."""

from __future__ import annotations

import contextlib
import random
import socket

from nvcre_local.control_plane.certificates import LOOPBACK

FIRST, LAST = 20000, 31999
"""Below the range from which Linux takes the ports of outgoing connections (net.ipv4.ip_local_port_range), so that one
that is free now is not gone a moment later."""
TRIES = 2000


class NoFreePorts(Exception):
    """Hundreds of ports were tried."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on; all are held until the last is found."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.sample(range(FIRST, LAST + 1), TRIES):
            probe = held.enter_context(socket.socket())
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise NoFreePorts(f"only {len(found)} of {count} ports are free between {FIRST} and {LAST} on {LOOPBACK}")
