"""Ports for programs that cannot be told to take any free one and say which.

A port stays ours for the life of this process, also before its program listens and while it is restarted: we keep a
socket on it that does not listen. Linux lets a listener beside such a socket when both say SO_REUSEADDR, as listeners
of Go programs do, and lets nobody in who does not say so, as we do not when we look for ports.
"""

from __future__ import annotations

import random
import socket

from nvcre_local.control_plane.certificates import LOOPBACK

FIRST, LAST = 20000, 31999
"""Below the range from which Linux takes the ports of outgoing connections (net.ipv4.ip_local_port_range), so that one
that is free now is not gone a moment later."""
TRIES = 2000

_held: list[socket.socket] = []


class NoFreePorts(Exception):
    """Hundreds of ports were tried."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on, nor holds."""
    found: list[int] = []
    for port in random.sample(range(FIRST, LAST + 1), TRIES):
        probe = socket.socket()
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            probe.close()
            continue
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _held.append(probe)
        found.append(port)
        if len(found) == count:
            return found
    raise NoFreePorts(f"only {len(found)} of {count} ports are free between {FIRST} and {LAST} on {LOOPBACK}")
