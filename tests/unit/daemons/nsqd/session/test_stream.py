from __future__ import annotations

import pytest

from nsq.daemons.nsqd.session.stream import BadMagic, Stream
from nsq.errors import LayerError
from nsq.wire import commands
from nsq.wire.commands import Command, Limits
from nsq.wire.layers import Tls
from tests.fakes.session import FakeLink, tls_contexts

NOP: Command = (b"NOP", [], None)


class Setup:
    """A stream behind its magic."""

    def __init__(self, capacity: int | None = None) -> None:
        self.link = FakeLink(capacity)
        self.stream = Stream(self.link, Limits())
        assert self.read(commands.MAGIC_V2) == []

    def read(self, data: bytes = b"") -> list[Command]:
        return [command for batch in self.stream.read(data) for command in batch]


# The magic


@pytest.mark.parametrize(
    "wire", [b"  V3", b"GET / HTTP/1.1\r\n", b"\n", b" x", b"  V\x00more", b"\x16\x03\x01"]
)
def test_a_wrong_magic_is_refused_at_its_first_wrong_byte(wire: bytes) -> None:
    with pytest.raises(BadMagic):
        list(Stream(FakeLink(), Limits()).read(wire))


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
    setup.stream.write(b"bc")
    assert setup.link.written == []
    setup.stream.flush()
    setup.stream.flush()
    assert setup.link.written == [b"abc"]
    setup.stream.write(b"x" * 70_000)
    assert len(setup.link.written) == 2
    setup.stream.write(b"y" * 70_000)
    assert len(setup.link.written) == 3


# What is held


def test_held_bytes_are_sent_in_order_when_their_ticket_is_released() -> None:
    setup = Setup()
    setup.stream.write(b"a")
    setup.stream.hold()
    setup.stream.write(b"b")
    setup.stream.seal(1)
    setup.stream.write(b"cd")
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
