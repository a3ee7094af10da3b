"""Free ports for programs that cannot say which one they took."""

import socket

from nvcre_local.control_plane.ports import FIRST, LAST, free_ports


def test_ports_are_different_and_outside_the_range_of_outgoing_connections():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(FIRST <= port <= LAST for port in ports)


def test_they_can_be_listened_on():
    for port in free_ports(3):
        with socket.create_server(("127.0.0.1", port)):
            pass
