"""The network of ``nsq.testing`` between plain sockets: the effect of every fault on both ends."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nsq.errors import Closed
from nsq.testing import Fault, Link, Network, Schedule
from nsq.testing.network import KINDS
from tests.integration.patience import PATIENCE, eventually


class Ends:
    """Both ends of connections through a link."""

    def __init__(self, listener: socket.socket, link: Link) -> None:
        self.listener, self.link = listener, link
        self.opened: list[socket.socket] = []

    def dial(self, timeout: float = PATIENCE) -> socket.socket:
        host, port = self.link.address.split(":")
        client = socket.create_connection((host, int(port)), timeout)
        self.opened.append(client)
        return client

    def pair(self) -> tuple[socket.socket, socket.socket]:
        client = self.dial()
        server, _ = self.listener.accept()
        server.settimeout(PATIENCE)
        self.opened.append(server)
        return client, server


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as made:
        yield made


@contextmanager
def listening(network: Network) -> Iterator[Ends]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        host, port = listener.getsockname()
        ends = Ends(listener, network.link(f"{host}:{port}"))
        yield ends
        for each in ends.opened:
            each.close()


@pytest.fixture
def ends(network: Network) -> Iterator[Ends]:
    with listening(network) as made:
        yield made


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        assert piece, f"it ended after {data!r}"
        data += piece
    return data


def ended(sock: socket.socket) -> str:
    """Return how the connection ends; bytes before that are dropped."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        return "reset"
    return "closed"


def hears_nothing(sock: socket.socket, seconds: float = 0.1) -> None:
    sock.settimeout(seconds)
    with pytest.raises(TimeoutError):
        sock.recv(1)
    sock.settimeout(PATIENCE)


def test_a_network_without_faults_passes_everything_including_the_end(ends: Ends) -> None:
    client, server = ends.pair()
    data = os.urandom(3_000_000)
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert exactly(server, len(data)) == data
    sender.join()
    client.shutdown(socket.SHUT_WR)
    assert ended(server) == "closed"
    server.sendall(b"one direction is still open")
    assert exactly(client, 27) == b"one direction is still open"
    server.close()
    assert ended(client) == "closed"
    eventually(lambda: ends.link.connections, lambda seen: seen == [])


def test_a_reset_travels_through(ends: Ends) -> None:
    client, server = ends.pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    assert ended(server) == "reset"


def test_cut_and_reset(ends: Ends) -> None:
    for fault, seen in (("cut", "closed"), ("reset", "reset")):
        client, server = ends.pair()
        client.sendall(b"hello")
        assert exactly(server, 5) == b"hello"
        assert ends.link.inflict(Fault(fault)) == 1
        assert (ended(client), ended(server)) == (seen, seen)


def test_a_fault_can_hit_a_single_connection(ends: Ends) -> None:
    (client, server), (other, other_server) = ends.pair(), ends.pair()
    ends.link.connections[0].cut()
    assert (ended(client), ended(server)) == ("closed", "closed")
    other.sendall(b"still here")
    assert exactly(other_server, 10) == b"still here"


def test_half_closed_one_direction_goes_on(ends: Ends) -> None:
    client, server = ends.pair()
    ends.link.half_close("client")
    assert ended(client) == "closed"
    client.sendall(b"hello")
    assert exactly(server, 5) == b"hello"
    ends.link.half_close("server")
    assert ended(server) == "closed"


def test_a_half_open_connection_ends_on_one_side_only(ends: Ends) -> None:
    client, server = ends.pair()
    ends.link.half_open("server")
    assert ended(server) == "reset"
    client.sendall(b"x" * 3_000_000)
    hears_nothing(client)
    client.close()
    eventually(lambda: ends.link.connections, lambda seen: seen == [])


def test_a_stalled_connection_goes_on_when_it_is_healed(ends: Ends) -> None:
    client, server = ends.pair()
    ends.link.stall(towards="server")
    client.sendall(b"hello")
    server.sendall(b"the other direction")
    assert exactly(client, 19) == b"the other direction"
    hears_nothing(server)
    later, later_server = ends.pair()
    later.sendall(b"stalled too")
    hears_nothing(later_server)
    ends.link.heal()
    assert exactly(server, 5) == b"hello"
    assert exactly(later_server, 11) == b"stalled too"


def test_bytes_can_be_corrupted_and_truncated(ends: Ends) -> None:
    client, server = ends.pair()
    ends.link.corrupt(2, towards="server")
    client.sendall(bytes(50))
    assert sum(byte.bit_count() for byte in exactly(server, 50)) == 2
    ends.link.truncate(3, towards="server")
    client.sendall(b"hello")
    assert exactly(server, 3) == b"hel"
    assert (ended(server), ended(client)) == ("closed", "closed")


def test_connections_can_be_refused_for_a_while(ends: Ends) -> None:
    client, server = ends.pair()
    ends.link.refuse(300.0)
    with pytest.raises(ConnectionRefusedError):
        ends.dial()
    client.sendall(b"those that there are go on")
    exactly(server, 26)
    ends.link.heal()
    ends.pair()
    ends.link.refuse(0.05)

    def reached() -> bool:
        with suppress(ConnectionRefusedError):
            ends.dial()
            return True
        return False

    eventually(reached)


def test_connections_can_be_ignored_and_served_late(ends: Ends) -> None:
    ends.link.ignore()
    client = ends.dial()
    client.sendall(b"hello")
    hears_nothing(client)
    assert ends.link.connections == []
    ends.link.heal()
    server, _ = ends.listener.accept()
    ends.opened.append(server)
    server.settimeout(PATIENCE)
    assert exactly(server, 5) == b"hello"


def test_swallowed_bytes_never_arrive(ends: Ends) -> None:
    for _ in range(2):  # also when it is done once more
        ends.link.swallow()
        with pytest.raises(TimeoutError):
            ends.dial(0.2)
    ends.link.heal()
    ends.pair()


def test_a_client_is_reset_when_its_target_does_not_listen(network: Network) -> None:
    with listening(network) as ends:
        ends.listener.close()
        with pytest.raises(ConnectionResetError):  # while it dials, or right afterwards
            ends.dial().recv(1)


def test_a_unix_socket_can_be_a_target(network: Network, tmp_path: Path) -> None:
    path = str(tmp_path / "nsqd.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(PATIENCE)
        ends = Ends(listener, network.link(path))
        client, server = ends.pair()
        client.sendall(b"hello")
        assert exactly(server, 5) == b"hello"
        ends.link.reset()
        assert ended(client) == "reset"
        client.close()
        server.close()


def test_everything_at_once_and_what_was_done(network: Network) -> None:
    with listening(network) as one, listening(network) as two:
        pairs = [one.pair(), two.pair()]
        assert network.cut() == 2
        assert [ended(sock) for pair in pairs for sock in pair] == ["closed"] * 4
        assert [(hit.link, hit.fault.kind, hit.connections) for hit in network.history] == [
            (one.link.address, "cut", 1),
            (two.link.address, "cut", 1),
        ]


def test_closed_it_says_so_and_has_ended_all(ends: Ends, network: Network) -> None:
    client, server = ends.pair()
    network.close()
    network.close()
    assert (ended(client), ended(server)) == ("closed", "closed")
    with pytest.raises(Closed):
        ends.link.cut()
    with pytest.raises(ConnectionRefusedError):
        ends.dial()


def test_a_schedule_ends_with_its_network(network: Network, ends: Ends) -> None:
    ends.pair()
    with network.playing(Schedule(3, kinds=["stall"], pause=(0.0, 0.001))):
        eventually(lambda: network.history)
        network.close()
        eventually(lambda: "nsq-network-schedule" not in [each.name for each in threading.enumerate()])


def test_a_forked_child_holds_no_connection_open(ends: Ends) -> None:
    client, server = ends.pair()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)  # lives until the parent has looked
        os._exit(0)
    try:
        ends.link.reset()
        assert (ended(client), ended(server)) == ("reset", "reset")
        ends.pair()
    finally:
        os.close(reading)
        os.close(writing)
        os.waitpid(child, 0)


def test_a_schedule_is_carried_out_and_healed(network: Network, ends: Ends) -> None:
    schedule = Schedule(3, kinds=KINDS, pause=(0.0, 0.01), seconds=(0.01, 0.05))
    with network.playing(schedule):
        while len(network.history) < 60:
            with suppress(OSError):
                client = ends.dial(0.05)
                client.settimeout(0.05)
                client.sendall(b"x" * 1000)
                client.recv(1)
    count = len(network.history)
    assert [hit.fault.kind for hit in network.history[:-1]] == [
        strike.fault.kind for strike, _ in zip(schedule, range(count - 1), strict=False)
    ]
    assert network.history[-1].fault.kind == "heal"
    client = ends.dial()
    client.sendall(b"hello")
    client.shutdown(socket.SHUT_WR)
    while received(ends) != b"hello":
        pass  # of those that were dialled before


def received(ends: Ends) -> bytes:
    """Everything that comes over the next connection until its end, whichever that is."""
    server, _ = ends.listener.accept()
    ends.opened.append(server)
    server.settimeout(PATIENCE)
    data = b""
    with suppress(ConnectionError):
        while piece := server.recv(65536):
            data += piece
    return data
