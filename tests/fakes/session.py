"""A whole nsqd without a network: its sessions, the links under them, and clients that speak V2 in memory."""

from __future__ import annotations

import functools
import io
import json
import ssl
import struct
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

import trustme

from nsq.daemons.nsqd.core.bound import Bound
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.session.authorization import AuthError, Credentials, Grant
from nsq.daemons.nsqd.session.session import Environment, Session
from nsq.daemons.serve.logs import DaemonLog
from nsq.wire import commands
from nsq.wire.frames import ErrorReply, FrameParser, RawMessage, Response
from nsq.wire.layers import Deflate, Layer, Snappy, Stack, Tls
from tests.fakes.clock import FakeClock

HOST = "nsqd.example"
OK = Response(b"OK")
HEARTBEAT = Response(b"_heartbeat_")

T = TypeVar("T")
Frame = Response | ErrorReply | RawMessage
Answer = Callable[[Grant | AuthError], None]


@functools.cache
def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return TLS contexts of a server, and of a client that trusts it and has a certificate."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert(HOST).configure_cert(server)
    authority.configure_trust(server)
    server.verify_mode = ssl.CERT_OPTIONAL
    authority.configure_trust(client)
    authority.issue_cert("client.example", common_name="orders").configure_cert(client)
    return server, client


def drained(work: Generator[object, None, T]) -> T:
    """Run a generator; return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            value: T = end.value
            return value


class FakeAuthority:
    """An auth server that answers when the test allows it."""

    def __init__(self) -> None:
        self.asked: list[Credentials] = []
        self._open: list[Answer] = []
        self.clock = FakeClock()  # its world's

    def ask(self, credentials: Credentials, answer: Answer) -> None:
        self.asked.append(credentials)
        self._open.append(answer)

    def decide(self, grant: Grant, topic: str, channel: str, answer: Answer) -> None:
        def decided() -> None:
            drained(grant.decide(topic, channel))
            answer(grant)

        self.clock.call_soon(decided)

    def answer(self, verdict: Grant | AuthError) -> None:
        self._open.pop(0)(verdict)


class FakeLink:
    """Records written data, and fails on impossible calls.

    With a ``capacity`` it is full and congested from that number of bytes until the client reads them.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.written: list[bytes] = []
        self.congested = False
        self.reading = True
        self.finished = False

    def write(self, data: bytes) -> None:
        assert not self.finished, "written after the end"
        assert data, "an empty write"
        self.written.append(data)
        if self.capacity is not None and sum(map(len, self.written)) >= self.capacity:
            self.congested = True

    @property
    def full(self) -> bool:
        return self.congested

    def pause_reading(self) -> None:
        assert self.reading, "paused twice"
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading, "resumed without a pause"
        self.reading = True

    def finish(self) -> None:
        assert not self.finished, "finished twice"
        self.finished = True

    def take(self) -> bytes:
        data = b"".join(self.written)
        self.written.clear()
        return data


class FakeSyncNotifier:
    """A disk that makes things last when the test says so."""

    def __init__(self) -> None:
        self.rounds = 0
        self._waiting: list[tuple[int, Callable[[int], None]]] = []

    def on_synced(self, call: Callable[[int], None], /) -> int:
        self._waiting.append((self.rounds + 1, call))
        return self.rounds + 1

    @property
    def waiters(self) -> int:
        return len(self._waiting)

    def sync(self, *, fails: bool = False) -> None:
        self.rounds += 1
        waiting, self._waiting = self._waiting, []
        for ticket, call in waiting:
            call(-1 if fails else ticket)


class World:
    """One nsqd, its clock and its log."""

    def __init__(self, *, authority: FakeAuthority | None = None, tls: bool = False, **options: Any) -> None:
        if tls:
            options |= {"tls_cert": "a certificate", "tls_key": "its key"}
        if authority is not None:
            options["auth_http_addresses"] = ("auth.example:80",)
        self.clock = FakeClock()
        if authority is not None:
            authority.clock = self.clock
        self.options = NsqdOptions(**options)
        self.broker = Broker(
            self.clock,
            max_channel_consumers=self.options.max_channel_consumers,
            latency_percentiles=self.options.e2e_processing_latency_percentiles,
            latency_window=self.options.e2e_processing_latency_window_time,
        )
        if self.options.max_channel_depth:
            self.broker.bound = Bound(self.options.max_channel_depth, self.clock, lambda text: None)
        self.log = io.StringIO()
        self.environment = Environment(
            self.options,
            self.broker,
            self.clock,
            DaemonLog("", "debug", self.log),
            tls=tls_contexts()[0] if tls else None,
            authority=authority,
        )

    def client(self, address: str = "10.0.0.7:5000", **client: Any) -> Client:
        return Client(self, address, **client)


class Client:
    """``send`` encrypts, splits into chunks, and waits while the session does not read, as a socket does."""

    def __init__(
        self,
        world: World,
        address: str,
        *,
        magic: bytes = commands.MAGIC_V2,
        chunk: int | None = None,
        capacity: int | None = None,
    ) -> None:
        self._world = world
        self.chunk = chunk
        self.link = FakeLink(capacity)
        self.session = Session(world.environment, self.link, address)
        self._stack = Stack()
        self._parser: FrameParser[RawMessage] = FrameParser(RawMessage)
        self._plain = b""
        self._unsent = bytearray()
        if magic:
            self.send(magic)

    # To nsqd.

    def send(self, *data: bytes) -> None:
        self.send_raw(self._stack.wrap(b"".join(data)))

    def send_raw(self, wire: bytes) -> None:
        self._unsent += wire
        self._transmit()

    def overtake(self, *data: bytes) -> None:
        """Deliver data although reading is paused, as data that a socket had already read."""
        self.session.receive(self._stack.wrap(b"".join(data)))

    def _transmit(self) -> None:
        while self._unsent and self.link.reading and not self.link.finished:
            size = self.chunk or len(self._unsent)
            piece = bytes(self._unsent[:size])
            del self._unsent[:size]
            self.session.receive(piece)

    def drop(self) -> None:
        """Disconnect without a message."""
        self.session.lost()

    # From nsqd.

    def run_due(self) -> None:
        """Run both sides until neither has anything to do."""
        while True:
            self._world.clock.run_due()
            self._transmit()
            if not self._take() and not self._world.clock.busy:
                return

    def _take(self) -> bool:
        wire = self.link.take()
        self._plain += self._drained(wire)
        if self._stack.has_pending:
            self.send_raw(self._stack.pending())
        if self.link.congested:
            self.link.congested = False
            self.session.writable()
            return True
        return bool(wire)

    def _drained(self, wire: bytes) -> bytes:
        plain = [self._stack.unwrap(wire)] if wire else []
        while self._stack.more:
            plain.append(self._stack.unwrap(b""))
        return b"".join(plain)

    def frame(self) -> Frame | None:
        """Return the next frame, or None if nsqd has sent no more."""
        self.run_due()
        if len(self._plain) < 4:
            assert not self._plain
            return None
        end = 4 + struct.unpack_from(">i", self._plain)[0]
        assert len(self._plain) >= end, "half a frame"
        (frame,) = self._parser.feed(self._plain[:end])
        self._plain = self._plain[end:]
        return frame

    def frames(self) -> list[Frame]:
        found = []
        while (frame := self.frame()) is not None:
            found.append(frame)
        return found

    def messages(self) -> list[RawMessage]:
        found = self.frames()
        assert all(isinstance(frame, RawMessage) for frame in found), found
        return found  # type: ignore[return-value]

    def refused(self, *data: bytes) -> bytes:
        """Send data that nsqd must answer with one error and a disconnect."""
        self.send(*data)
        (frame,) = self.frames()
        assert isinstance(frame, ErrorReply)
        assert self.link.finished
        return frame.data

    # Handshakes.

    def identify(self, behind: bytes = b"", **fields: Any) -> dict[str, Any]:
        """Send IDENTIFY and return the answer; ``behind`` goes unchanged in the same chunk."""
        body = json.dumps({"feature_negotiation": True, **fields}).encode()
        self.send(commands.identify(body) + behind)
        frame = self.frame()
        assert isinstance(frame, Response), frame
        reply: dict[str, Any] = json.loads(frame.data)
        return reply

    def upgrade(self, layers: Iterable[str] = (), **fields: Any) -> None:
        """IDENTIFY with ``tls_v1``, ``snappy`` or ``deflate``, and read the OK that comes through each."""
        layers = tuple(layers)
        wanted: dict[str, Any] = dict.fromkeys(layers, True)
        self.identify(**wanted, **fields)
        for name in layers:
            self.push(new_layer(name))
            assert self.frame() == OK

    def push(self, layer: Layer) -> None:
        """Move the data after the answer that announced the layer into the layer."""
        self.run_due()
        rest, self._plain = self._plain, b""
        if rest:
            self._plain = layer.unwrap(rest)
        self._stack.push(layer)
        if layer.has_pending:
            self.send_raw(self._stack.pending())


def new_layer(name: str) -> Any:
    if name == "tls_v1":
        return Tls(tls_contexts()[1], server_side=False, server_hostname=HOST)
    return Snappy() if name == "snappy" else Deflate()
