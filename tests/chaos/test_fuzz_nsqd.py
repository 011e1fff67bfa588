"""Randomly changed conversations: no client harms nsqd or another client.

make chaos ARGS='-k fuzz'                # a million, and their rate
NSQ_FUZZ_SEED=7 NSQ_FUZZ_INPUTS=100000 make chaos ARGS='-k fuzz'
"""

from __future__ import annotations

import gc
import os
import random
import socket
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from nsq.daemons.nsqd.patterns import Pattern
from nsq.daemons.nsqd.session.authorization import AuthError, Grant, Rule
from nsq.daemons.nsqd.session.session import Session
from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from nsq.wire import commands
from nsq.wire.frames import RawMessage
from nsq.wire.layers import Deflate, Layer, Snappy
from tests.chaos.mutations import Mutator, resident
from tests.chaos.telling import Tell
from tests.fakes.session import OK, FakeAuthority, FakeLink, FakeSyncNotifier, World
from tests.integration.clients import connected, consumer, dial, finish_all
from tests.integration.judged import only_ours

pytestmark = only_ours("Go's nsqd is not what is tested here")

_ROUND = 500
_EVERYTHING = Rule(Pattern(""), (Pattern(""),), frozenset({"publish", "subscribe"}))


class Bystanders:
    """A producer and a consumer that do what they should, and expect the same of nsqd."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.producer, self.consumer = world.client("10.0.0.1:1"), world.client("10.0.0.2:2")
        self.sent = 0
        if world.environment.authority is not None:
            return  # they would have to introduce themselves; there the others are enough
        self.producer.identify(heartbeat_interval=-1)
        self.consumer.identify(heartbeat_interval=1000 * 60)
        self.consumer.send(commands.sub("bystanders", "channel"), commands.rdy(2))
        self.sync()
        assert self.consumer.frames() == [OK]

    def sync(self) -> None:
        if isinstance(self.world.environment.sync_notifier, FakeSyncNotifier):
            self.world.environment.sync_notifier.sync()

    def live(self) -> None:
        self.consumer.send(b"NOP\n")

    def check(self) -> None:
        """A message gets through, and only that one."""
        if self.world.environment.authority is not None:
            return
        self.sent += 1
        body = b"message %d" % self.sent
        self.producer.send(commands.pub("bystanders", body))
        self.sync()
        assert self.producer.frames() == [OK]
        found = [frame for frame in self.consumer.frames() if isinstance(frame, RawMessage)]
        assert [message.body for message in found] == [body]
        self.consumer.send(commands.fin(found[0].id), b"NOP\n")
        assert self.consumer.frames() == []


class Fuzz:
    """One nsqd in this process and a stream of conversations; an AssertionError names the one at fault."""

    def __init__(self, seed: str, **world: Any) -> None:
        self.seed = seed
        self.mutator = Mutator(seed)
        self.random = random.Random(f"{seed} conduct")
        self.durable = world.pop("durable", False)
        self.authority = FakeAuthority() if world.pop("auth", False) else None
        self.world = World(authority=self.authority, tls=True, **world)
        if self.durable:
            self.world.environment.sync_notifier = FakeSyncNotifier()
        self.bystanders = Bystanders(self.world)
        self.sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self.number = 0

    def run(self, inputs: int) -> None:
        while self.number < inputs:
            for _ in range(min(_ROUND, inputs - self.number)):
                self.number += 1
                data = self.mutator.conversation()
                try:
                    self._converse(data)
                except Exception as error:
                    raise AssertionError(
                        f"seed {self.seed!r}, input {self.number}: {error!r} on {data[:2000]!r}"
                    ) from error
            self._clean_up()

    def _converse(self, data: bytes) -> None:
        link = FakeLink(self.random.choice([None, None, 100, 5000]))
        session = Session(self.world.environment, link, "10.0.0.9:9")
        self.sessions.add(session)
        for chunk in self._wire(data):
            if link.finished:
                break
            session.receive(chunk)
            self._let_time_pass(session, link)
        if self.random.random() < 0.1:
            session.close()
        session.lost()
        self.world.clock.run_due()

    def _wire(self, data: bytes) -> Iterator[bytes]:
        """Some of it through a layer that was negotiated, and whole or spoiled behind that."""
        choice = self.random.random()
        if choice < 0.8:
            yield from self.mutator.chunks(data)
            return
        name, layer = self.random.choice([("snappy", Snappy()), ("deflate", Deflate())])
        yield commands.MAGIC_V2 + commands.identify(b'{"feature_negotiation":true,"%s":true}' % name.encode())
        wrapped = bytearray(_wrap(layer, data.removeprefix(commands.MAGIC_V2)))
        if choice > 0.9:
            wrapped[self.random.randrange(len(wrapped))] ^= 1 << self.random.randrange(8)
        yield from self.mutator.chunks(bytes(wrapped))

    def _let_time_pass(self, session: Session, link: FakeLink) -> None:
        clock, choice = self.world.clock, self.random.random()
        if self.durable and choice < 0.7:
            self.bystanders.sync()
        if self.authority is not None and choice < 0.8:
            self._answer_auth()
        if choice < 0.02:
            clock.advance(self.random.choice([0.5, 31.0]))
            self.bystanders.live()
        clock.run_due()
        while link.congested:
            link.take()
            link.congested = False
            session.writable()
            clock.run_due()

    def _answer_auth(self) -> None:
        assert self.authority is not None
        while self.authority._open:
            grant = Grant((_EVERYTHING,), self.world.clock.now() + self.random.choice([0.1, 100.0]))
            nothing = Grant((), self.world.clock.now() + 100.0)
            self.authority.answer(self.random.choice([grant, grant, nothing, AuthError("no answer")]))

    def _clean_up(self) -> None:
        """Nothing of those clients is left, and the bystanders have noticed nothing."""
        self.bystanders.check()
        if self.durable:
            self.bystanders.sync()
        if self.authority is not None:
            self._answer_auth()
        broker = self.world.broker
        for name in list(broker.topics):
            topic = broker.topics[name]
            assert not [each for channel in topic.channels.values() for each in channel.subscribers] or (
                name == "bystanders"
            )
            if name != "bystanders":
                broker.delete_topic(name)
        for _ in range(5):  # longer than any alarm that was called off
            self.world.clock.advance(31.0)
            self.bystanders.live()
        self.world.log.seek(0)
        self.world.log.truncate()
        timers = [each for _, _, each in self.world.clock._timers if not each.cancelled]
        assert len(timers) <= 8, timers
        gc.collect()
        assert len(self.sessions) == 0


def _wrap(layer: Layer, data: bytes) -> bytes:
    return layer.wrap(data) or b"\x00"


WORLDS: dict[str, dict[str, Any]] = {"plain": {}, "durable": {"durable": True}, "auth": {"auth": True}}


@pytest.mark.parametrize("world", WORLDS)
def test_nsqd_survives_a_thousand_spoiled_conversations(world: str) -> None:
    Fuzz("a thousand", **WORLDS[world]).run(1000)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("world", WORLDS)
def test_nsqd_survives_a_million_spoiled_conversations(world: str, tell: Tell) -> None:
    inputs = int(os.environ.get("NSQ_FUZZ_INPUTS", "1000000")) // len(WORLDS)
    fuzz = Fuzz(os.environ.get("NSQ_FUZZ_SEED", "a million"), **WORLDS[world])
    fuzz.run(min(inputs, 5000))
    memory, began = resident(), time.monotonic()
    fuzz.run(inputs)
    grown = resident() - memory
    rate = (inputs - 5000) / max(0.001, time.monotonic() - began)
    tell(f"{world}: {inputs:,} conversations, {rate:.0f}/s, {grown / 1e6:.1f} MB more memory")
    assert grown < 50e6


@pytest.mark.parametrize(
    "inputs",
    [pytest.param(200), pytest.param(20_000, marks=[pytest.mark.chaos, pytest.mark.timeout(900)])],
)
@pytest.mark.parametrize("durable", [False, True], ids=["normal", "durable"])
def test_nsqd_survives_spoiled_conversations_over_real_sockets(
    nsqd_factory: Factory[Nsqd], durable: bool, inputs: int
) -> None:
    nsqd = nsqd_factory(durable=durable, log_level="info", mem_queue_size=50, max_bytes_per_file=100_000)
    mutator = Mutator(f"sockets {inputs}")
    with connected(nsqd) as producer, consumer(nsqd, "bystanders", rdy=2) as listener:
        for number in range(inputs):
            _send(nsqd.tcp_address, mutator)
            if number % 20 == 0:
                producer.send(commands.pub("bystanders", b"%d" % number) + b"NOP\n")
                while producer.frame().data != b"OK":
                    pass
                message = listener.frame()
                while message.type != 2:
                    message = listener.frame()
                assert message.message.body == b"%d" % number
                finish_all(listener, [message.message])
                listener.send(b"NOP\n")
    assert nsqd.get("/ping").body == b"OK"
    assert "Traceback" not in nsqd.log
    assert "dropped" not in nsqd.log


def _send(address: str, mutator: Mutator) -> None:
    with dial(address) as client, suppress(ConnectionError):
        for chunk in mutator.chunks(mutator.conversation()):
            client.sendall(chunk)
        if mutator.random.random() < 0.5:
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
