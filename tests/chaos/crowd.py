"""Clients that work with an nsqd which is killed again and again, and record what it confirmed.

What is random comes from a seed, so a seed that fails fails again, as far as time itself is not what decided.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from nsq.testing import Nsqd, Reply, V2Client
from nsq.testing.v2 import Message, PeerClosed
from nsq.wire import commands

TOPICS = ("orders", "events", "audit")
CHANNELS = ("one", "two")
GONE = (PeerClosed, OSError, EOFError)
_HARMLESS = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED")
_NAP = 0.02


class Ledger:
    """Confirmed and received messages; the threads share it under its lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.confirmed: dict[str, set[bytes]] = defaultdict(set)  # by topic
        self.finished: dict[tuple[str, str], set[bytes]] = defaultdict(set)  # by channel
        self.deliveries: Counter[tuple[str, str, bytes]] = Counter()
        self.faults: list[str] = []

    def confirm(self, topic: str, bodies: list[bytes]) -> None:
        with self.lock:
            self.confirmed[topic].update(bodies)

    def deliver(self, place: tuple[str, str], body: bytes) -> None:
        with self.lock:
            self.deliveries[(*place, body)] += 1

    def finish(self, place: tuple[str, str], body: bytes) -> None:
        """Record the message before its FIN is sent: nsqd may or may not have received it."""
        with self.lock:
            self.finished[place].add(body)

    def fault(self, text: str) -> None:
        with self.lock:
            self.faults.append(text)

    @property
    def losses(self) -> list[tuple[str, str, bytes]]:
        return [
            (topic, channel, body)
            for topic, bodies in self.confirmed.items()
            for channel in CHANNELS
            for body in sorted(bodies - self.finished[topic, channel])
        ]

    @property
    def messages(self) -> int:
        with self.lock:
            return sum(map(len, self.confirmed.values()))

    @property
    def duplicates(self) -> int:
        return sum(self.deliveries.values()) - len(self.deliveries)


class Worker:
    """A thread that works until ``stop``, over as many connections as it takes."""

    def __init__(self, nsqd: Nsqd, ledger: Ledger, name: str, seed: str) -> None:
        self.address, self.http = nsqd.tcp_address, nsqd
        self.ledger = ledger
        self.name = name
        self.random = random.Random(f"{seed} {name}")
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def stop(self) -> None:
        self.ended.set()

    def join(self) -> None:
        self._thread.join(100)
        assert not self._thread.is_alive(), f"{self.name} hangs"

    def _run(self) -> None:
        while not self.ended.is_set():
            try:
                self.work()
            except GONE:
                self.ended.wait(_NAP)
            except Exception as error:
                self.ledger.fault(f"{self.name}: {error!r}")
                return

    def work(self) -> None:
        raise TypeError("what a worker does is its own")


class Producer(Worker):
    """PUB, MPUB and DPUB, one by one or many before the first answer."""

    count = 0

    def work(self) -> None:
        with V2Client(self.address) as client:
            while not self.ended.is_set():
                batch = [self._order() for _ in range(self.random.choice([1, 1, 1, 5, 30]))]
                client.send(b"".join(command for command, _, _ in batch))
                for _, topic, bodies in batch:
                    client.expect_ok()
                    self.ledger.confirm(topic, bodies)
                self.ended.wait(self.random.choice([0, 0, 0, 0.01]))

    def _order(self) -> tuple[bytes, str, list[bytes]]:
        topic, kind = self.random.choice(TOPICS), self.random.random()
        bodies = [self._body() for _ in range(self.random.randint(1, 20) if kind < 0.3 else 1)]
        if kind < 0.3:
            return commands.mpub(topic, bodies), topic, bodies
        if kind < 0.5:
            return commands.dpub(topic, self.random.randint(0, 700), bodies[0]), topic, bodies
        return commands.pub(topic, bodies[0]), topic, bodies

    def _body(self) -> bytes:
        self.count += 1
        return b"%s %d %s" % (self.name.encode(), self.count, b"." * self.random.choice([0, 10, 300]))


class Consumer(Worker):
    """FIN, REQ with and without a delay, TOUCH, or no answer at all."""

    def __init__(self, nsqd: Nsqd, ledger: Ledger, place: tuple[str, str], number: int, seed: str) -> None:
        self.place = place
        super().__init__(nsqd, ledger, f"consumer-{'/'.join(place)}-{number}", seed)

    def work(self) -> None:
        with V2Client(self.address) as client:
            client.identify(msg_timeout=1000)
            client.send(commands.sub(*self.place))
            client.expect_ok()
            client.send(commands.rdy(self.random.choice([1, 5, 100])))
            for message in messages(client, self.ended.is_set):
                self.ledger.deliver(self.place, message.body)
                client.send(self._answer(message))

    def _answer(self, message: Message) -> bytes:
        choice = self.random.random()
        if choice < 0.1:
            return commands.req(message.id, self.random.choice([0, 0, 50, 500]))
        if choice < 0.13:
            return b""
        self.ledger.finish(self.place, message.body)
        touch = commands.touch(message.id) if choice < 0.2 else b""
        return touch + commands.fin(message.id)


class Administrator(Worker):
    """Makes, pauses and deletes topics and channels; after every start all must be as it was confirmed."""

    def __init__(self, nsqd: Nsqd, ledger: Ledger, seed: str) -> None:
        self.paused: dict[str, bool | None] = {}  # by topic; None when nobody knows; not there if deleted
        self.depth: Counter[str] = Counter()
        self.unknown: set[str] = set()
        self.actions = 0
        super().__init__(nsqd, ledger, "administrator", seed)

    def work(self) -> None:
        self._compare()
        while not self.ended.is_set():
            topic = f"passing{self.random.randrange(4)}"
            self.unknown.add(topic)
            self._act(topic)
            self.unknown.discard(topic)
            self.actions += 1

    def _post(self, target: str, body: bytes = b"") -> Reply:
        reply = self.http.post(target, body)
        assert reply.status == 200, (target, reply)
        return reply

    def _act(self, topic: str) -> None:
        if topic not in self.paused:
            self._post(f"/topic/create?topic={topic}")
            self._post(f"/channel/create?topic={topic}&channel=c")
            self.paused[topic], self.depth[topic] = False, 0
        elif self.random.random() < 0.5:
            self._post(f"/mpub?topic={topic}", b"a\nb\nc")
            self.depth[topic] += 3
        elif self.random.random() < 0.6:
            paused = not self.paused[topic]
            self._post(f"/channel/{'' if paused else 'un'}pause?topic={topic}&channel=c")
            self.paused[topic] = paused
        elif self.random.random() < 0.3:
            self._post(f"/channel/empty?topic={topic}&channel=c")
            self.depth[topic] = 0
        else:
            self._post(f"/topic/delete?topic={topic}")
            del self.paused[topic], self.depth[topic]

    def _compare(self) -> None:
        """Compare the records with nsqd. An action without a reply may have been done or not; all else is
        certain.
        """
        reply = self.http.get("/stats?format=json&include_clients=false")
        found = {
            topic["topic_name"]: topic
            for topic in reply.json()["topics"] or []
            if topic["topic_name"].startswith("passing")
        }
        for topic in self.unknown:
            self._forget(topic)
            if topic in found:
                self._post(f"/topic/delete?topic={topic}")
                del found[topic]
        self.unknown.clear()
        seen = {name: (topic["channels"][0]["paused"], self._waiting(topic)) for name, topic in found.items()}
        promised = {name: (paused, self.depth[name]) for name, paused in self.paused.items()}
        if seen != promised:
            self.ledger.fault(f"after a start there is {seen}, promised was {promised}")

    def _forget(self, topic: str) -> None:
        self.paused.pop(topic, None)
        self.depth.pop(topic, None)

    def _waiting(self, topic: dict[str, list[dict[str, int]]]) -> int:
        return topic["channels"][0]["depth"]


def messages(client: V2Client, ended: Callable[[], bool]) -> Iterator[Message]:
    """Yield messages until the connection ends, and answer heartbeats."""
    while not ended():
        try:
            frame = client.frame(0.1)
        except TimeoutError:
            continue
        if frame.type == 2:
            yield frame.message
        elif frame.type == 0:
            client.send(b"NOP\n")
        elif not frame.data.startswith(_HARMLESS):
            raise AssertionError(f"an error nobody asked for: {frame.data!r}")


def drain(nsqd: Nsqd, ledger: Ledger, place: tuple[str, str], within: float = 100.0) -> None:
    """Take and finish all that is left in a channel."""
    topic, channel = place
    deadline = time.monotonic() + within

    def empty() -> bool:
        assert time.monotonic() < deadline, f"{place} is not empty after {within} s"
        query = f"/stats?format=json&include_clients=false&topic={topic}&channel={channel}"
        (found,) = nsqd.get(query).json()["topics"]
        (own,) = found["channels"]
        # A busy nsqd has not yet passed all on from the topic to its channels.
        return not found["depth"] + own["depth"] + own["in_flight_count"] + own["deferred_count"]

    with V2Client(nsqd.tcp_address) as client:
        client.send(commands.sub(topic, channel))
        client.expect_ok()
        client.send(commands.rdy(2500))
        while not empty():
            with contextlib.suppress(TimeoutError):
                while True:
                    frame = client.frame(0.2)
                    if frame.type != 2:
                        continue
                    message = frame.message
                    ledger.deliver(place, message.body)
                    ledger.finish(place, message.body)
                    client.send(commands.fin(message.id))
