from __future__ import annotations

import pytest

from nsq.daemons.nsqd.session.stream import BadMagic, Stream
from nsq.errors import LayerError
from nsq.wire import commands
from nsq.wire.commands import Command, Limits
from nsq.wire.layers import Deflate, Snappy, Stack, Tls
from tests.fakes.session import HOST, FakeLink, tls_contexts

NOP: Command = (b"NOP", [], None)
IDENTIFY = commands.identify(b"{}")


class Setup:
    """A stream behind its magic."""

    def __init__(self, capacity: int | None = None) -> None:
        self.link = FakeLink(capacity)
        self.stream = Stream(self.link, Limits())
        assert self.read(commands.MAGIC_V2) == []

    def read(self, data: bytes = b"") -> list[Command]:
        return [command for batch in self.stream.read(data) for command in batch]


# The magic


@pytest.mark.parametrize("sizes", [[4], [1, 1, 1, 1], [2, 6], [3, 5]])
def test_the_magic_may_arrive_in_pieces(sizes: list[int]) -> None:
    stream, wire = Stream(FakeLink(), Limits()), commands.MAGIC_V2 + b"NOP\n"
    found: list[list[Command]] = []
    for size in [*sizes, len(wire)]:
        found += stream.read(wire[:size])
        wire = wire[size:]
    assert found == [[NOP]]


@pytest.mark.parametrize(
    "wire", [b"  V3", b"GET / HTTP/1.1\r\n", b"\n", b" x", b"  V\x00more", b"\x16\x03\x01"]
)
def test_a_wrong_magic_is_refused_at_its_first_wrong_byte(wire: bytes) -> None:
    with pytest.raises(BadMagic):
        list(Stream(FakeLink(), Limits()).read(wire))


# Pausing


def test_bytes_received_during_a_pause_are_kept() -> None:
    setup = Setup()
    setup.stream.pause()
    assert not setup.link.reading
    assert setup.read(b"NOP\nNO") == []
    assert setup.read(b"P\n") == []
    setup.stream.resume()
    assert setup.link.reading
    assert setup.read() == [NOP, NOP]


def test_pausing_in_the_middle_of_a_chunk_keeps_the_rest() -> None:
    setup = Setup()
    found = []
    for batch in setup.stream.read(IDENTIFY + b"NOP\n" + IDENTIFY + b"NOP\n"):
        found.append([verb for verb, _, _ in batch])
        setup.stream.pause()
    assert found == [[b"IDENTIFY"]]
    setup.stream.resume()
    assert [verb for verb, _, _ in setup.read()] == [b"NOP", b"IDENTIFY", b"NOP"]


# Errors


# Layers


def test_bytes_behind_the_command_that_adds_a_layer_belong_to_the_layer() -> None:
    setup, client = Setup(), Deflate()
    for batch in setup.stream.read(IDENTIFY + client.wrap(b"NOP\nNOP\nRDY")):
        if batch[0][0] == b"IDENTIFY":
            setup.stream.push(Deflate())
        else:
            assert batch == [NOP, NOP]
    assert setup.stream.layered
    assert setup.read(client.wrap(b" 5\n")) == [(b"RDY", [b"5"], None)]


def test_plain_commands_behind_an_upgrade_are_no_commands_of_the_layer() -> None:
    setup = Setup()
    batches = setup.stream.read(IDENTIFY + b"NOP\n" * 3)
    assert [verb for verb, _, _ in next(batches)] == [b"IDENTIFY"]
    with pytest.raises(LayerError):
        setup.stream.push(Snappy())


def test_bytes_written_before_a_layer_are_sent_without_it() -> None:
    setup, client = Setup(), Deflate()
    setup.stream.write(b"before")
    setup.stream.push(Deflate())
    setup.stream.write(b"behind")
    setup.stream.flush()
    assert setup.link.written[0] == b"before"
    assert client.unwrap(setup.link.written[1]) == b"behind"


def test_bytes_behind_a_handshake_are_read_after_it() -> None:
    setup = Setup()
    client = Tls(tls_contexts()[1], server_side=False, server_hostname=HOST)
    done: list[Tls] = []
    layer = Tls(tls_contexts()[0], server_side=True, server_hostname=None)
    setup.stream.push_tls(layer, done.append)
    assert setup.stream.handshaking
    setup.stream.write(b"held back")
    for _ in range(5):
        assert setup.read(client.pending()) == []
        setup.stream.flush()
        client.unwrap(setup.link.take())
        if client.handshake_done and not done:
            # The client's last flight and its first command in one piece.
            assert setup.read(client.wrap(b"NOP\n")) == [NOP]
    assert done == [layer]
    assert not setup.stream.handshaking
    setup.stream.write(b", then sent")
    setup.stream.flush()
    assert client.unwrap(setup.link.take()).endswith(b", then sent")


def test_a_failed_handshake_sends_an_alert() -> None:
    setup = Setup()
    setup.stream.push_tls(Tls(tls_contexts()[0], server_side=True, server_hostname=None), lambda layer: None)
    with pytest.raises(LayerError):
        setup.read(b"\x16\x03\x01\x00\x05hello")
    setup.stream.finish()
    assert setup.link.take()[:1] == b"\x15"  # an alert
    assert setup.link.finished


# Writing


def test_output_is_collected_until_it_is_flushed_or_large() -> None:
    setup = Setup()
    setup.stream.write(b"a")
    setup.stream.write_all([b"b", b"c"])
    assert setup.link.written == []
    setup.stream.flush()
    setup.stream.flush()
    assert setup.link.written == [b"abc"]
    setup.stream.write_all([b"x" * 1000] * 70)
    assert len(setup.link.written) == 2
    setup.stream.write(b"y" * 70_000)
    assert len(setup.link.written) == 3


def test_finishing_sends_everything_says_goodbye_and_reads_no_more() -> None:
    setup = Setup()
    client = Stack(Tls(tls_contexts()[1], server_side=False, server_hostname=HOST))
    setup.stream.push_tls(Tls(tls_contexts()[0], server_side=True, server_hostname=None), lambda layer: None)
    while client.has_pending or setup.link.written:
        setup.read(client.pending())
        setup.stream.flush()
        client.unwrap(setup.link.take())
    setup.stream.write(b"farewell")
    setup.stream.finish()
    assert client.unwrap(setup.link.take()) == b"farewell"
    assert client.peer_closed
    assert setup.link.finished
    assert setup.read(client.wrap(b"NOP\n")) == []


def test_finishing_over_a_broken_layer_still_finishes() -> None:
    setup = Setup()
    setup.stream.push(Snappy())
    with pytest.raises(LayerError):
        setup.read(b"garbage")
    setup.stream.write(b"cannot be wrapped any more")
    setup.stream.finish()
    assert setup.link.finished
    assert setup.link.written == []


# What is held


def test_held_bytes_are_sent_in_order_when_their_ticket_is_released() -> None:
    setup = Setup()
    setup.stream.write(b"a")
    setup.stream.hold()
    setup.stream.write(b"b")
    setup.stream.seal(1)
    setup.stream.write_all([b"c", b"d"])
    setup.stream.hold()
    setup.stream.hold()
    setup.stream.write(b"e")
    setup.stream.flush()
    assert setup.link.written == [b"a"]
    setup.stream.release(1)
    assert setup.link.written == [b"a", b"bcd"]
    setup.stream.seal(2)
    setup.stream.write(b"f")
    setup.stream.release(3)
    setup.stream.write(b"g")
    setup.stream.flush()
    assert setup.link.written == [b"a", b"bcd", b"ef", b"g"]


def test_bytes_that_are_not_sealed_are_not_released() -> None:
    setup = Setup()
    setup.stream.hold()
    setup.stream.write(b"a")
    setup.stream.release(9)
    assert (setup.link.written, setup.stream.unsealed) == ([], True)


def test_two_waits_for_one_sync_are_one_release() -> None:
    setup = Setup()
    for _ in range(2):
        setup.stream.hold()
        setup.stream.write(b"OK")
        setup.stream.seal(1)
    setup.stream.finish()
    for _ in range(2):
        setup.stream.release(1)
    assert (setup.link.finished, setup.link.written) == (True, [b"OKOK"])


def test_a_stream_finishes_even_if_held_replies_cannot_be_sent() -> None:
    setup = Setup()
    setup.stream.push(Snappy())
    setup.stream.hold()
    setup.stream.write(b"OK")
    setup.stream.seal(1)
    with pytest.raises(LayerError):
        setup.read(b"garbage")
    setup.stream.finish()
    setup.stream.release(1)
    assert setup.link.finished
