"""An nsqd that sends anything, over every layer: the client raises only its own errors, and keeps working.

make chaos ARGS='-k fuzz_client'                 # a million frames, and their rate
NSQ_FUZZ_SEED=7 NSQ_FUZZ_FRAMES=100000 make chaos ARGS='-k fuzz_client'
"""

from __future__ import annotations

import logging
import os
import random
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq.config import Config
from nsq.connection.conn import Conn, ConnDelegate
from nsq.connection.subscription import Subscription
from nsq.errors import NsqError, ServerError
from nsq.message import Message
from nsq.threads.waiters import join_threads
from nsq.wire.frames import encode_message
from nsq.wire.layers import MAX_OUTPUT
from tests.chaos.mutations import Mutator, resident
from tests.chaos.telling import Tell
from tests.fakes.connection import run_loops
from tests.fakes.hostile_nsqd import LAYERS, HostileNsqd
from tests.fakes.session import HOST, tls_contexts

_MAX_FRAME = 1024 * 1024
_PATIENCE = 60.0
_FRAMES = 150  # of one conversation


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(data), kind) + data


def message(number: int, body: bytes) -> bytes:
    return encode_message(1_700_000_000_000_000_000 + number, 1, b"%016x" % number, body)


HEARTBEAT = frame(0, b"_heartbeat_")
INTERESTING = [
    HEARTBEAT,
    frame(0, b"OK"),
    frame(0, b"CLOSE_WAIT"),
    frame(0, b""),
    frame(1, b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"),
    frame(1, b"E_INVALID cannot SUB in current state"),
    frame(1, b""),
    frame(1, b"\xff\xfe"),
    frame(2, b"short"),
    frame(3, b"no such type"),
    message(7, b""),
    message(7, b"the same id again"),
    struct.pack(">i", 0),
    struct.pack(">i", -1),
    struct.pack(">i", 3),
    struct.pack(">i", _MAX_FRAME + 1),
    struct.pack(">i", 2**31 - 1),
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\x00" * 64,
]


def originals(seed: str, count: int = 60) -> list[bytes]:
    """Conversations as an nsqd leads them: mostly messages, some of them twice."""
    chance = random.Random(f"{seed} originals")
    return [b"".join(_frames(chance)) for _ in range(count)]


def _frames(chance: random.Random) -> Iterator[bytes]:
    for number in range(_FRAMES):
        kind = chance.random()
        if kind < 0.75:
            body = chance.randbytes(chance.choice([0, 10, 200]))
            yield message(number if kind < 0.7 else number // 2, body)
        elif kind < 0.9:
            yield HEARTBEAT
        else:
            yield chance.choice(INTERESTING[:6])


class Witness(ConnDelegate):
    """The delegate: answers messages at random, and expects one end."""

    def __init__(self, chance: random.Random) -> None:
        self.seen: Counter[str] = Counter()
        self.closed = threading.Event()
        self.cause: NsqError | None = None
        self._chance = chance

    def on_messages(self, conn: Conn, messages: list[Message]) -> None:
        self.seen["messages"] += len(messages)
        for each in messages:
            answer = self._chance.random()
            try:
                if answer < 0.6:
                    each.finish()
                elif answer < 0.7:
                    each.requeue(0.1)
                elif answer < 0.8:
                    each.touch()
                if answer < 0.05:
                    each.finish()  # once too often
            except NsqError as error:
                self.seen[type(error).__name__] += 1

    def on_ok(self, conn: Conn, count: int) -> None:
        self.seen["responses"] += count

    def on_response(self, conn: Conn, data: bytes) -> None:
        self.seen["responses"] += 1

    def on_error(self, conn: Conn, error: ServerError) -> None:
        assert isinstance(error, ServerError)
        self.seen["errors"] += 1

    def on_heartbeat(self, conn: Conn) -> None:
        self.seen["heartbeats"] += 1

    def on_close(self, conn: Conn, cause: NsqError | None) -> None:
        self.seen["ends"] += 1
        self.cause = cause
        self.closed.set()

    def on_finished(self, conn: Conn, message: Message, success: bool) -> bool:
        self.seen["finished"] += 1
        return False

    def on_requeued(self, conn: Conn, message: Message, delay_ms: int, backoff: bool) -> bool:
        self.seen["requeued"] += 1
        return False


class Fuzz:
    def __init__(self, seed: str, layers: str) -> None:
        self.seed, self.name = seed, layers
        self.layers = LAYERS[layers]
        self.mutator = Mutator(f"{seed} {layers}", originals(seed), opening=b"", interesting=INTERESTING)
        self.random = random.Random(f"{seed} {layers} conduct")
        self.config = Config(
            max_frame_size=_MAX_FRAME,
            tls="tls_v1" in self.layers,
            snappy="snappy" in self.layers,
            deflate="deflate" in self.layers,
        )
        self.number = 0
        self.seen: Counter[str] = Counter()

    def run(self, frames: int) -> None:
        while self.frames < frames:
            self.number += 1
            try:
                self._converse()
            except BaseException as error:
                raise AssertionError(
                    f"seed {self.seed!r}, {self.name}, conversation {self.number}: {error!r}"
                ) from error

    @property
    def frames(self) -> int:
        """Count valid frames, and those that ended a connection, behind which nothing was read."""
        return sum(self.seen[what] for what in ("messages", "responses", "errors", "heartbeats", "ends"))

    def _converse(self) -> None:
        spoiled = bytearray(frame(0, b'{"max_rdy_count":2500,"msg_timeout":60000,"snappy":true}'))
        self.mutator.spoil(spoiled)
        nsqd = HostileNsqd(
            self.layers,
            tls_contexts()[0],
            spoil_grant=bytes(spoiled) if self.random.random() < 0.05 else None,
        )
        witness = Witness(self.random)
        conn = Conn(
            f"{HOST}:4150",
            self.config,
            witness,
            transport=nsqd,
            context=tls_contexts()[1],
            subscription=Subscription("orders", "billing"),
        )
        try:
            conn.connect(time.monotonic() + _PATIENCE)
        except NsqError as error:
            self.seen[f"not connected: {type(error).__name__}"] += 1
            return
        self._attack(nsqd)
        conn.send_rdy(self.random.choice([1, 10, 2500, 2500, 2500]))
        threads = run_loops(conn)
        assert witness.closed.wait(_PATIENCE), "it does not end"
        assert not join_threads(threads, time.monotonic() + _PATIENCE)
        assert witness.seen["ends"] == 1
        assert conn.deliveries.in_flight == 0
        if not conn.deliveries.close_wait:  # after CLOSE_WAIT the connection may end by itself
            assert isinstance(witness.cause, NsqError), witness.cause
        self.seen += witness.seen
        self.seen[type(witness.cause).__name__] += 1

    def _attack(self, nsqd: HostileNsqd) -> None:
        """Spoiled below the layers, or on the wire."""
        wire = bytearray(nsqd.wrap(self.mutator.conversation() or b"\0"))
        if self.layers and self.random.random() < 0.5:
            self.mutator.spoil(wire)
        nsqd.say(chunk for chunk in self.mutator.chunks(bytes(wire)) if chunk)


@pytest.fixture(autouse=True)
def no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The read loop survives its own mistakes, and logs them."""
    with caplog.at_level(logging.ERROR, "nsq"):
        yield
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("layers", LAYERS)
def test_the_client_survives_thousands_of_spoiled_frames(layers: str) -> None:
    fuzz = Fuzz("thousands", layers)
    fuzz.run(5000)
    assert fuzz.seen["messages"] > 200
    assert fuzz.seen["FrameError"] > 0


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("layers", LAYERS)
def test_the_client_survives_a_million_spoiled_frames(layers: str, tell: Tell) -> None:
    frames = int(os.environ.get("NSQ_FUZZ_FRAMES", "1000000")) // len(LAYERS) + 1
    fuzz = Fuzz(os.environ.get("NSQ_FUZZ_SEED", "a million"), layers)
    fuzz.run(min(frames, 8000))
    memory, began = resident(), time.monotonic()
    fuzz.run(frames)
    grown = resident() - memory
    rate = (frames - 8000) / max(0.001, time.monotonic() - began)
    seen = ", ".join(f"{name} {count:,}" for name, count in fuzz.seen.most_common())
    tell(f"{layers}: {fuzz.frames:,} frames, {rate:.0f}/s, {grown / 1e6:.1f} MB more memory; {seen}")
    assert grown < 50e6


class Meter(Witness):
    """A log handler that only measures the longest line."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.most = 0

    def on_response(self, conn: Conn, data: bytes) -> None:
        super().on_response(conn, data)
        self.most = max(self.most, _peak())


def _peak() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bomb(unit: bytes, count: int) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return b"".join([*(deflater.compress(unit) for _ in range(count)), deflater.flush(zlib.Z_SYNC_FLUSH)])


@pytest.mark.parametrize(
    "count", [pytest.param(200), pytest.param(1500, marks=[pytest.mark.chaos, pytest.mark.timeout(300)])]
)
def test_a_decompression_bomb_is_taken_in_spoonfuls(count: int) -> None:
    """Megabytes of frames from kilobytes on the wire: at no moment more than a few of them are there."""
    unit = frame(0, b"x" * (_MAX_FRAME - 4))
    wire = bomb(unit, count)
    assert len(wire) * 200 < len(unit) * count
    nsqd = HostileNsqd(LAYERS["deflate"], tls_contexts()[0])
    meter = Meter(random.Random(1))
    conn = Conn(
        f"{HOST}:4150",
        Config(max_frame_size=_MAX_FRAME, deflate=True),
        meter,
        transport=nsqd,
        subscription=Subscription("orders", "billing"),
    )
    conn.connect(time.monotonic() + _PATIENCE)
    nsqd.say([wire])  # another raw stream's blocks may follow its own: they refer to nothing before them
    before = _peak()
    threads = run_loops(conn)
    assert meter.closed.wait(_PATIENCE * 4)
    assert not join_threads(threads, time.monotonic() + _PATIENCE)
    assert meter.seen["responses"] == count
    assert meter.most - before < 24 * MAX_OUTPUT
