"""Dialing a scripted nsqd: ``dial`` of nsq/connection/handshake.py.

The test is the nsqd, on a thread of its own where it has to answer in turn.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
import trustme

from nsq.config import Config
from nsq.connection.handshake import Ready, describe, dial, identify_request
from nsq.connection.subscription import Subscription
from nsq.errors import (
    BadBody,
    ConfigError,
    ConnectionLost,
    DialFailed,
    FrameError,
    HandshakeFailed,
    LayerError,
    NotNsqd,
    NsqError,
    Unanswered,
)
from nsq.transport import CHUNK, MemoryPeer, MemoryTransport, WrappedStream
from nsq.transport.layered import LayeredStream
from nsq.transport.tls import context_of
from nsq.wire import commands
from nsq.wire.frames import HEARTBEAT, OK, encode_error, encode_response
from nsq.wire.layers import Deflate, Layer, Snappy, Tls
from tests.fakes.nsqd import CHANNEL, TOPIC, hear_identify, message

ADDRESS = "nsqd.example:4150"
PATIENCE = 20.0
FINE = encode_response(OK)
SECRET = "s3cret"


def granting(**granted: Any) -> bytes:
    return encode_response(json.dumps({"max_rdy_count": 2500, **granted}).encode())


@contextmanager
def played_by(play: Callable[[MemoryPeer], None], transport: MemoryTransport) -> Iterator[None]:
    """Play the nsqd on a thread of its own; an error that it raises fails the test."""
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            play(transport.accept())
            outcome.set_result(None)
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="nsqd", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE)
    outcome.result(0)


def dialed(
    transport: MemoryTransport,
    config: Config | None = None,
    *,
    address: str = ADDRESS,
    timeout: float = PATIENCE,
    opened: Callable[[LayeredStream], None] = lambda _: None,
) -> Ready:
    config = config or Config()
    return dial(
        address,
        config,
        transport,
        context_of(config),
        Subscription(TOPIC, CHANNEL),
        deadline=time.monotonic() + timeout,
        opened=opened,
    )


def answering(*answers: bytes) -> tuple[MemoryTransport, Callable[[MemoryPeer], None]]:
    """An nsqd that answers IDENTIFY and SUB with these."""

    def play(peer: MemoryPeer) -> None:
        hear_identify(peer)
        peer.send(answers[0])
        for answer in answers[1:]:
            peer.expect(commands.sub(TOPIC, CHANNEL))
            peer.send(answer)

    return MemoryTransport(), play


class Silent(MemoryTransport):
    """An nsqd that sends ``after`` and then nothing. Notes read timeouts, and does not wait for them."""

    def __init__(self, after: bytes = b"") -> None:
        super().__init__()
        self.patience: list[float] = []
        self._after = after

    def connect(self, address: str, *, timeout: float) -> Any:
        patience = self.patience

        class Hurried(WrappedStream):
            def read(self, limit: int = CHUNK) -> bytes:
                assert self.read_timeout is not None
                patience.append(self.read_timeout)
                self.read_timeout = 0.0
                return super().read(limit)

        stream = Hurried(super().connect(address, timeout=timeout))
        self.peers[-1].send(self._after)
        return stream


def test_identify_has_the_options_with_times_in_milliseconds() -> None:
    options: dict[str, Any] = {"client_id": "me", "hostname": "here", "user_agent": "test/1"}
    options |= {
        "sample_rate": 10,
        "topology_region": "r",
        "topology_zone": "z",
        "deflate": True,
        "deflate_level": 3,
    }
    seconds = {"heartbeat_interval": 2.5, "msg_timeout": 90.0, "output_buffer_timeout": 0.05}
    request = identify_request(Config(**options, **seconds, output_buffer_size=4096))
    options |= {name: round(1000 * value) for name, value in seconds.items()}
    options |= {"output_buffer_size": 4096, "feature_negotiation": True, "snappy": False, "tls_v1": False}
    assert {name: getattr(request, name) for name in options} == options


@pytest.mark.parametrize(("low_latency", "size", "timeout"), [(False, 0, 25), (True, -1, 0)])
def test_nsqd_buffers_for_25_ms_or_with_low_latency_not_at_all(
    low_latency: bool, size: int, timeout: int
) -> None:
    request = identify_request(Config(low_latency=low_latency))
    assert (request.output_buffer_size, request.output_buffer_timeout) == (size, timeout)


class TestPlain:
    @pytest.mark.parametrize("chunk", [1, CHUNK])
    def test_answers_may_come_in_pieces_and_bytes_after_the_last_one_are_kept(self, chunk: int) -> None:
        transport, play = answering(granting(), FINE + b"x")
        transport._chunk_size = chunk
        with played_by(play, transport):
            ready = dialed(transport)
        assert (ready.rest or ready.stream.read()) == b"x"

    def test_heartbeats_are_answered_in_each_step_of_the_handshake(self) -> None:
        transport = MemoryTransport()
        beat = encode_response(HEARTBEAT)

        def play(peer: MemoryPeer) -> None:
            hear_identify(peer)
            peer.send(beat + beat)
            peer.expect(commands.NOP + commands.NOP)
            peer.send(granting(auth_required=True, snappy=True))
            server = Server(peer, Snappy())
            for answer, next_command in (
                (FINE, commands.auth(SECRET.encode())),
                (encode_response(b"{}"), commands.sub(TOPIC, CHANNEL)),
                (FINE, b""),
            ):
                server.say(beat + answer)
                server.expect(commands.NOP + next_command)

        with played_by(play, transport):
            dialed(transport, Config(auth_secret=SECRET, snappy=True))

    @pytest.mark.parametrize(
        ("wire", "error"),
        [
            (b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n", NotNsqd),
            (message(1), FrameError),
            (b"\x00\x00\x00\x01\x00\x00\x00\x00", FrameError),
            (b"\xff\xff\xff\xff\x00\x00\x00\x00", FrameError),
            (encode_response(b"{"), HandshakeFailed),
        ],
    )
    def test_an_answer_that_cannot_be_read_ends_the_dial(self, wire: bytes, error: type[NsqError]) -> None:
        transport, play = answering(wire)
        with played_by(play, transport), pytest.raises(error):
            dialed(transport)
        assert transport.peers[0].closed


class TestEndings:
    def test_a_server_that_refuses_or_hangs_up_ends_the_dial(self) -> None:
        transport = MemoryTransport()
        with (
            played_by(lambda peer: peer.end(), transport),
            pytest.raises(ConnectionLost, match="closed the connection during the handshake"),
        ):
            dialed(transport)
        assert transport.peers[0].closed
        transport.refuse()
        with pytest.raises(DialFailed):
            dialed(transport)

    def test_silence_ends_at_the_deadline(self) -> None:
        transport = Silent()
        with pytest.raises(Unanswered, match="did not complete the handshake in time"):
            dialed(transport)
        (patience,) = transport.patience
        assert 0 < patience <= PATIENCE
        assert transport.peers[0].closed

    def test_nothing_is_dialed_without_time_left(self) -> None:
        transport = MemoryTransport()
        with pytest.raises(Unanswered, match="did not complete the handshake in time"):
            dialed(transport, timeout=-1.0)
        assert transport.dials == []


class TestOutputBuffer:
    """An nsqd whose least output_buffer_timeout is above what we ask for refuses IDENTIFY."""

    REFUSAL = encode_error(b"E_BAD_BODY IDENTIFY output buffer timeout (25) is invalid")

    def test_nsqds_own_default_is_asked_for_after_the_refusal(self) -> None:
        transport = MemoryTransport()

        def play(peer: MemoryPeer) -> None:
            assert hear_identify(peer)["output_buffer_timeout"] == 25
            peer.send(self.REFUSAL)
            second = transport.accept()
            assert hear_identify(second)["output_buffer_timeout"] == 0
            second.send(granting())
            second.expect(commands.sub(TOPIC, CHANNEL))
            second.send(FINE)

        with played_by(play, transport):
            ready = dialed(transport)
        first, second = transport.peers
        assert first.closed
        assert not second.closed
        ready.stream.close()

    @pytest.mark.parametrize(
        ("options", "dials"), [({}, 2), ({"output_buffer_timeout": 0.0}, 1)], ids=["twice", "asked for none"]
    )
    def test_a_refusal_that_has_another_reason_is_an_error(
        self, options: dict[str, float], dials: int
    ) -> None:
        transport = MemoryTransport()

        def play(peer: MemoryPeer) -> None:
            peer.send(self.REFUSAL)
            for _ in range(dials - 1):
                transport.accept().send(self.REFUSAL)

        with played_by(play, transport), pytest.raises(BadBody):
            dialed(transport, Config(**options))
        assert len(transport.dials) == dials


class Server:
    """nsqd's side of a connection under layers."""

    def __init__(self, peer: MemoryPeer, *layers: Layer) -> None:
        self.peer = peer
        self.layers = list(layers)
        self.heard = b""
        self._read = len(peer.received)

    def say(self, data: bytes) -> None:
        for layer in reversed(self.layers):
            data = layer.wrap(data)
        self.peer.send(data)

    def listen(self, until: Callable[[], bool]) -> None:
        while not until():
            received = self.peer.wait_until(lambda got: len(got) > self._read)
            data, self._read = received[self._read :], len(received)
            for layer in self.layers:
                data = layer.unwrap(data)
                if layer.has_pending:
                    self.peer.send(layer.pending())
            self.heard += data

    def expect(self, data: bytes) -> None:
        self.listen(lambda: len(self.heard) >= len(data))
        assert self.heard.startswith(data)
        self.heard = self.heard[len(data) :]

    def hear_identify(self) -> None:
        hear_identify(self.peer)
        self._read = len(self.peer.received)

    def start_tls(self, tls: Tls) -> None:
        self.layers.append(tls)
        self.listen(lambda: tls.handshake_done)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def nsqd_with_tls(authority: trustme.CA, name: str) -> Callable[[MemoryPeer], None]:
    """An nsqd with a certificate of this name that wants a secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)

    def play(peer: MemoryPeer) -> None:
        server = Server(peer)
        server.hear_identify()
        peer.send(granting(tls_v1=True, auth_required=True))
        server.start_tls(Tls(context, server_side=True, server_hostname=None))
        server.say(FINE)
        server.expect(commands.auth(SECRET.encode()))
        server.say(encode_response(b'{"identity":"alice"}'))
        server.expect(commands.sub(TOPIC, CHANNEL))
        server.say(FINE)

    return play


@pytest.fixture
def trusting(authority: trustme.CA, tmp_path: Any) -> dict[str, Any]:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return {"tls": True, "tls_ca_file": path}


class TestLayers:
    @pytest.mark.parametrize(("name", "layer"), [("snappy", Snappy), ("deflate", Deflate)])
    @pytest.mark.parametrize("together", [False, True])
    def test_compression_begins_where_nsqd_says_so(
        self, name: str, layer: Callable[[], Layer], together: bool
    ) -> None:
        """The server's first word through the layer may share a chunk with the announcement."""
        transport = MemoryTransport()

        def play(peer: MemoryPeer) -> None:
            server = Server(peer)
            server.hear_identify()
            server.layers.append(layer())
            first = server.layers[0].wrap(FINE)
            if together:
                peer.send(granting(**{name: True}) + first)
            else:
                peer.send(granting(**{name: True}))
                peer.send(first)
            server.expect(commands.sub(TOPIC, CHANNEL))
            server.say(FINE + b"rest")

        with played_by(play, transport):
            ready = dialed(transport, Config(**{name: True}))
        assert ready.rest == b"rest"

    def test_plain_text_before_tls_is_not_taken_for_an_answer(self, trusting: dict[str, Any]) -> None:
        transport, play = answering(granting(tls_v1=True, auth_required=True) + FINE + FINE)
        with (
            played_by(play, transport),
            pytest.raises(HandshakeFailed, match=r"sent 20 bytes of plain text before TLS"),
        ):
            dialed(transport, Config(auth_secret=SECRET, **trusting))
        assert SECRET.encode() not in transport.peers[0].received

    def test_a_certificate_with_another_name_ends_the_dial_unless_that_name_is_given(
        self, authority: trustme.CA, trusting: dict[str, Any]
    ) -> None:
        transport, play = MemoryTransport(), nsqd_with_tls(authority, "other.example")
        trusting["auth_secret"] = SECRET

        def fail(peer: MemoryPeer) -> None:
            with pytest.raises(LayerError):
                play(peer)

        with played_by(fail, transport), pytest.raises(HandshakeFailed, match=r"nsqd.example:4150: tls"):
            dialed(transport, Config(**trusting))
        assert SECRET.encode() not in transport.peers[0].received
        assert transport.peers[0].closed
        with played_by(play, transport):
            dialed(transport, Config(tls_server_name="other.example", **trusting))
        assert SECRET.encode() not in transport.peers[1].received  # it was sent inside of TLS

    def test_a_socket_in_the_file_system_has_no_name(self, trusting: dict[str, Any]) -> None:
        transport, play = answering(granting(tls_v1=True))
        with played_by(play, transport), pytest.raises(ConfigError, match="give tls_server_name"):
            dialed(transport, Config(**trusting), address="unix:/run/nsqd.sock")
        assert transport.peers[0].closed

    def test_tls_that_hangs_ends_at_the_deadline(self, trusting: dict[str, Any]) -> None:
        transport = Silent(after=granting(tls_v1=True))
        with pytest.raises(Unanswered, match="did not complete the handshake in time"):
            dialed(transport, Config(**trusting))
        identify, tls = transport.patience
        assert 0 < tls <= identify <= PATIENCE
        assert transport.peers[0].closed


def test_a_description_names_the_address_once() -> None:
    assert describe("a:1", ConnectionLost("a:1 is gone")) == "a:1 is gone"
    assert describe("a:1", ConnectionLost("gone")) == "a:1: gone"
