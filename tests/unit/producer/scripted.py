"""nsqds in memory whose answers the test gives, and producers that publish to them."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from nsq.errors import DialFailed
from nsq.producer import ConnectionStats, Producer
from nsq.transport import MemoryPeer, MemoryStream, MemoryTransport
from nsq.wire import commands
from nsq.wire.frames import HEARTBEAT, OK, encode_error, encode_response

from .fakes import PATIENCE, A


def producer(transport: MemoryTransport, *addresses: str, **options: Any) -> Producer:
    """One that dials again at once, is patient with a slow test, and sends every publish by itself."""
    mine = {
        "reconnect_initial": 0.001,
        "reconnect_max": 0.01,
        "publish_timeout": PATIENCE,
        "coalesce": False,
    }
    patient = {"dial_timeout": 3 * PATIENCE, "write_timeout": 3 * PATIENCE}
    return Producer(*(addresses or (A,)), transport=transport, **{**mine, **patient, **options})


class HeldTransport(MemoryTransport):
    """Dials of ``held`` addresses lead nowhere until ``release``."""

    def __init__(self, *held: str) -> None:
        super().__init__()
        self._held = held
        self._released = threading.Event()
        self.release = self._released.set

    def connect(self, address: str, *, timeout: float) -> MemoryStream:
        if address in self._held and not self._released.wait(PATIENCE):
            raise DialFailed(f"cannot connect to {address}: no answer")
        return super().connect(address, timeout=timeout)


class Nsqd:
    """The nsqd's end of one connection, its handshake done."""

    def __init__(self, peer: MemoryPeer, **granted: object) -> None:
        self.peer = peer
        self.address = peer.address
        peer.expect(commands.MAGIC_V2 + b"IDENTIFY\n")
        size = int.from_bytes(peer.wait_until(lambda got: len(got) >= 17)[13:17], "big")
        received = peer.wait_until(lambda got: len(got) >= 17 + size)
        peer.expect(received[13:])
        peer.send(encode_response(json.dumps({"max_rdy_count": 2500, **granted}).encode()))

    def expect(self, body: bytes, topic: str = "orders") -> None:
        """The next command is PUB."""
        self.peer.expect(commands.pub(topic, body))

    def ok(self) -> None:
        self.peer.send(encode_response(OK))

    def answer(self, body: bytes) -> None:
        self.expect(body)
        self.ok()

    def say(self, data: bytes) -> None:
        self.peer.send(encode_response(data))

    def heartbeat(self) -> None:
        self.say(HEARTBEAT)
        self.peer.expect(commands.NOP)

    def refuse(self, text: str) -> None:
        self.peer.send(encode_error(text.encode()))

    def hang_up(self) -> None:
        self.peer.end()
        self.peer.wait_closed()


def accept(transport: MemoryTransport, **granted: object) -> Nsqd:
    return Nsqd(transport.accept(), **granted)


def accept_all(transport: MemoryTransport, count: int) -> dict[str, Nsqd]:
    """The next so many connections, by address."""
    nsqds = [accept(transport) for _ in range(count)]
    return {nsqd.address: nsqd for nsqd in nsqds}


def who_got(body: bytes, nsqds: dict[str, Nsqd]) -> Nsqd:
    """Whichever of them was sent this last."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for nsqd in nsqds.values():
            with contextlib.suppress(AssertionError):
                nsqd.peer.wait_until(lambda got: got.endswith(body), timeout=0.01)
                return nsqd
    raise AssertionError(f"none of {', '.join(nsqds)} got {body!r}")


def wait_for(p: Producer, condition: Callable[[dict[str, ConnectionStats]], bool]) -> None:
    """Until its connections, by address, are like that, as far as its threads have noticed."""
    deadline = time.monotonic() + PATIENCE
    while not condition(connections := {each.address: each for each in p.stats().connections}):
        assert time.monotonic() < deadline, connections
        on_pools_thread(p)


def wait_for_state(p: Producer, state: str, *addresses: str) -> None:
    wait_for(p, lambda connections: all(connections[each].state == state for each in addresses))
    on_pools_thread(p)


def on_pools_thread(p: Producer) -> None:
    """Return when the pool's thread has done all that it was told to before, and what follows from it."""
    assert p._pool._changed.wait_for(lambda: p._pool._up, time.monotonic() + PATIENCE)
    for _ in range(2):
        reached = threading.Event()
        p._pool._to_do.put(reached.set)
        assert reached.wait(PATIENCE)


def time_is_up(p: Producer) -> None:
    """For all that has been published, which is something."""
    deadline = time.monotonic() + PATIENCE
    while not p._pool.pending:
        assert time.monotonic() < deadline
        on_pools_thread(p)
    for publish in p._pool.pending.copy():
        publish.deadline = 0.0
        publish.wake()
    p._pool._to_do.put(p._pool._look_at_deadlines)


def in_thread(call: Callable[[], object]) -> Future[object]:
    """As concurrent.futures would, with a thread that is gone when its call returns."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="publisher", daemon=True).start()
    return future


def in_threads(*calls: Callable[[], object]) -> list[Any]:
    """What the calls return, all made at the same time."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        start.wait(PATIENCE)
        return call()

    futures = [in_thread(partial(run, call)) for call in calls]
    return [future.result(PATIENCE) for future in futures]


def publishing(p: Producer, body: bytes = b"body", **options: Any) -> Future[object]:
    """Have a thread publish this."""
    return in_thread(partial(p.publish, "orders", body, **options))


def connected(p: Producer, transport: MemoryTransport) -> Nsqd:
    first = publishing(p, b"first")
    nsqd = accept(transport)
    nsqd.answer(b"first")
    first.result(PATIENCE)
    return nsqd
