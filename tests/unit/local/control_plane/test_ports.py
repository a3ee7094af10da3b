"""Free ports for programs that cannot say which one they took."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from nvcre_local.control_plane.certificates import LOOPBACK
from nvcre_local.control_plane.ports import FIRST, LAST, free_ports


@contextmanager
def listening(port: int, *, as_go_does: bool) -> Iterator[None]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, as_go_does)
        listener.bind((LOOPBACK, port))
        listener.listen()
        yield


def test_ports_are_different_and_outside_the_range_of_outgoing_connections():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(FIRST <= port <= LAST for port in ports)


def test_the_program_that_a_port_is_for_listens_there_and_again_when_it_is_restarted():
    (port,) = free_ports(1)
    for _ in range(2):
        with listening(port, as_go_does=True), socket.create_connection((LOOPBACK, port)):
            pass


def test_nobody_else_finds_it_free():
    (port,) = free_ports(1)
    with pytest.raises(OSError, match="in use"), listening(port, as_go_does=False):
        pass
