"""nsqds in memory that the test controls, and that record received commands."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from nsq.transport import MemoryPeer, MemoryTransport
from nsq.wire import commands
from nsq.wire.commands import CommandParser, Limits
from nsq.wire.frames import (
    CLOSE_WAIT,
    HEARTBEAT,
    OK,
    encode_error,
    encode_message,
    encode_response,
)

A, B, C = "nsqd-a:4150", "nsqd-b:4150", "nsqd-c:4150"
TOPIC, CHANNEL = "orders", "billing"
NOP, CLS = b"NOP", b"CLS"
_HEAD = len(commands.MAGIC_V2 + b"IDENTIFY\n") + 4


def id_of(number: int) -> bytes:
    return b"%016d" % number


def rdy(count: int) -> bytes:
    return b"RDY %d" % count


def fin(number: int) -> bytes:
    return b"FIN " + id_of(number)


def req(number: int, delay_ms: int) -> bytes:
    return b"REQ %s %d" % (id_of(number), delay_ms)


def touch(number: int) -> bytes:
    return b"TOUCH " + id_of(number)


def message(number: int, body: bytes = b"body", *, attempts: int = 1) -> bytes:
    """Return the frame of a message."""
    return encode_message(1_700_000_000_000_000_000 + number, attempts, id_of(number), body)


class Connected:
    """nsqd's end of one connection, after the answer to IDENTIFY."""

    def __init__(self, peer: MemoryPeer, **granted: Any) -> None:
        self.peer = peer
        self.address = peer.address
        self.identify = hear_identify(peer)
        peer.send(encode_response(json.dumps({"max_rdy_count": 2500, **granted}).encode()))

    def say(self, data: bytes) -> None:
        self.peer.send(encode_response(data))

    def ok(self) -> None:
        self.say(OK)

    def heartbeat(self) -> None:
        self.say(HEARTBEAT)

    def refuse(self, text: str) -> None:
        self.peer.send(encode_error(text.encode()))

    def hang_up(self) -> None:
        self.peer.end()
        self.peer.wait_closed()


class PublishedTo(Connected):
    """nsqd's end of a producer's connection."""

    def __init__(self, peer: MemoryPeer, **granted: Any) -> None:
        super().__init__(peer, **granted)
        self._parsed = len(peer.received)
        self._parser = CommandParser(Limits())
        self._publishes: deque[list[bytes]] = deque()

    def next_publish(self) -> list[bytes]:
        """Return the bodies of the next PUB, DPUB or MPUB since the last call."""
        while not self._publishes:
            received = self.peer.wait_until(lambda got: len(got) > self._parsed)
            for verb, _, body in self._parser.feed(received[self._parsed :]):
                if verb != NOP:
                    self._publishes.append([body] if isinstance(body, bytes) else body[0 : len(body)])
            self._parsed = len(received)
        return self._publishes.popleft()

    def expect(self, body: bytes, topic: str = TOPIC) -> None:
        """Expect PUB as the next command."""
        self.peer.expect(commands.pub(topic, body))

    def answer(self, body: bytes) -> None:
        self.expect(body)
        self.ok()

    def heartbeat(self) -> None:
        super().heartbeat()
        self.peer.expect(commands.NOP)


class Nsqd(Connected):
    """nsqd's end of a consumer's connection, after SUB.

    The test must expect all commands in the order of the wire; ``expect`` fails on any other command.
    """

    def __init__(self, peer: MemoryPeer, **granted: Any) -> None:
        super().__init__(peer, **granted)
        peer.expect(commands.sub(TOPIC, CHANNEL))
        peer.send(encode_response(OK))
        self._begin = len(peer.received)
        self._heard = 0

    @property
    def commands(self) -> list[bytes]:
        """Return the commands since the handshake, without repeated RDYs."""
        return self._news(self.peer.received)

    def _news(self, received: bytes) -> list[bytes]:
        """Leave out an RDY that equals the last one, which is for servers that count RDY down."""
        rdy, news = b"", []
        for line in _lines(received[self._begin :]):
            if line != rdy:
                news.append(line)
            if line.startswith(b"RDY"):
                rdy = line
        return news

    def expect(self, *lines: bytes) -> None:
        """Expect exactly these next commands."""
        until = self._heard + len(lines)

        def enough(received: bytes) -> bool:
            heard = self._news(received)
            return len(heard) >= until or heard[self._heard :] != list(lines)[: len(heard) - self._heard]

        self.peer.wait_until(enough)
        assert self.commands[self._heard : until] == list(lines)
        self._heard = until

    def expect_in_any_order(self, *lines: bytes) -> None:
        """Expect these next commands."""
        until = self._heard + len(lines)
        self.peer.wait_until(lambda received: len(self._news(received)) >= until)
        assert sorted(self.commands[self._heard : until]) == sorted(lines)
        self._heard = until

    def expect_no_more(self) -> None:
        """Check that no unexpected command has arrived."""
        assert self.commands[self._heard :] == []

    def deliver(self, *numbers: int, attempts: int = 1, body: bytes = b"body") -> None:
        """Send these messages in one chunk."""
        self.peer.send(b"".join(message(number, body, attempts=attempts) for number in numbers))

    def close_wait(self) -> None:
        self.say(CLOSE_WAIT)

    def see_off(self) -> None:
        """Expect CLS, answer it, and expect the end of the connection."""
        self.expect(CLS)
        self.close_wait()
        self.peer.wait_closed()
        self.expect_no_more()


def accept(transport: MemoryTransport, **granted: Any) -> Nsqd:
    """Accept the next connection."""
    return Nsqd(transport.accept(), **granted)


def accept_publisher(transport: MemoryTransport, **granted: Any) -> PublishedTo:
    """Accept the next connection of a producer."""
    return PublishedTo(transport.accept(), **granted)


def hear_identify(peer: MemoryPeer) -> dict[str, Any]:
    """Read the client's IDENTIFY without an answer."""
    received = peer.wait_until(lambda got: len(got) >= _HEAD)
    end = _HEAD + int.from_bytes(received[_HEAD - 4 : _HEAD], "big")
    received = peer.wait_until(lambda got: len(got) >= end)
    peer.expect(received[:end])
    assert received.startswith(commands.MAGIC_V2 + b"IDENTIFY\n")
    identify: dict[str, Any] = json.loads(received[_HEAD:end])
    return identify


def _lines(received: bytes) -> list[bytes]:
    """Split complete commands; after a handshake none has a body."""
    return received.split(b"\n")[:-1]
