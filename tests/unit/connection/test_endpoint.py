"""Endpoints: which nsqds are dialed and when, without threads; then endpoints with threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.config import Config
from nsq.connection.backoff import DialBackoff, Pauses
from nsq.connection.conn import Conn, ConnDelegate
from nsq.connection.endpoint import DIALS, Endpoint, Endpoints, Key, LoopThreads, Status, Wanted
from nsq.connection.subscription import Subscription
from nsq.errors import ConnectionLost, DialFailed, NsqError
from nsq.log import Logger
from nsq.threads.owner import Owner
from nsq.threads.waiters import join_threads
from nsq.transport import MemoryTransport
from nsq.wire.frames import encode_response
from tests.fakes.clock import Clock
from tests.fakes.nsqd import CHANNEL, TOPIC, A, B, Nsqd, accept, hear_identify
from tests.fakes.threads import PATIENCE

C = "nsqd-c:4150"
INITIAL, LONGEST = 0.25, 60.0
LOST = ConnectionLost("gone")
PAUSES = Pauses(INITIAL, LONGEST, lambda: 1.0)
PATIENT = Pauses(LONGEST, LONGEST, lambda: 1.0)


@dataclass(frozen=True)
class Partition(Subscription):
    """A subscription to one partition, as a client with several connections to one nsqd has them."""

    number: int

    @property
    def key(self) -> int:
        return self.number

    @property
    def identify(self) -> dict[str, object]:
        return {"extend_support": True}

    def command(self) -> bytes:
        return b"SUB %b %b %d\n" % (self.topic.encode(), self.channel.encode(), self.number)


ORDERS = Subscription(TOPIC, CHANNEL)


def wanting(*addresses: str, **facts: Any) -> dict[Key, Wanted]:
    return {(each := Wanted(address, **facts)).key: each for address in addresses}


class World:
    """Endpoints without threads, whose dials end when the test says so."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.removed: list[str] = []
        self.searches = 0
        self.urgent = False
        owner: Any = None
        self.endpoints: Endpoints[Endpoint] = Endpoints(
            "test",
            owner,
            lambda wanted: Endpoint(wanted, Config(), self.clock, PAUSES.draw),
            self.clock,
            removed=lambda endpoint: self.removed.append(endpoint.address),
            search=self._search,
            urgent=lambda: self.urgent,
        )

    def _search(self) -> None:
        self.searches += 1

    def want(self, *addresses: str, **facts: Any) -> None:
        self.endpoints.want(wanting(*addresses, **facts))

    def __getitem__(self, address: str) -> Endpoint:
        return self.endpoints.table[address, None]

    def dials(self, after: float = 0.0) -> list[str]:
        """Have endpoints dial that are due; return all that dial now and did not before."""
        self.clock.now += after
        before = {each for each in self.endpoints.all if each.dialing}
        self.endpoints.dial_due()
        return [each.address for each in self.endpoints.all if each.dialing and each not in before]

    def refuse(self, *addresses: str) -> None:
        for endpoint in map(self.__getitem__, addresses):
            endpoint.status = Status.WAITING
            endpoint.backoff.failed(DialFailed("refused"), self.clock.now)
            self.endpoints.note(endpoint, ended=True)

    def connect(self, *addresses: str) -> None:
        for endpoint in map(self.__getitem__, addresses):
            endpoint.status = Status.CONNECTED
            self.endpoints.note(endpoint, ended=False)

    def lose(self, address: str) -> None:
        endpoint = self[address]
        endpoint.status = Status.WAITING
        endpoint.backoff.lost(LOST, self.clock.now)
        self.endpoints.note(endpoint, ended=True)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(LoopThreads, "start", lambda _: None)
    return World()


@given(st.floats(0.0, 1.0), st.integers(1, 3000))
def test_chance_takes_half_of_a_pause_at_most_and_a_success_makes_up_for_all_failures(
    chance: float, failures: int
) -> None:
    backoff = DialBackoff(Pauses(INITIAL, LONGEST, lambda: chance).draw_late)
    for _ in range(failures):
        backoff.failed(LOST, 0.0, final=True)
    whole = min(INITIAL * 2.0 ** min(failures - 1, 20), LONGEST)
    assert whole / 2 <= backoff.pause <= whole
    backoff.succeeded()
    assert (backoff.failures, backoff.reason, backoff.final) == (0, None, False)


class TestDialing:
    def test_a_wanted_nsqd_is_dialed_at_once_and_once(self, world: World) -> None:
        for _ in range(2):
            world.want(A)
            world.want(A, B)
        assert (world.dials(), world.dials(), world.endpoints.next_due()) == ([A, B], [], float("inf"))

    def test_an_nsqd_that_refuses_is_dialed_again_with_growing_pauses(self, world: World) -> None:
        world.want(A)
        pauses = []
        for _ in range(10):
            assert world.dials() == [A]
            world.refuse(A)
            pauses.append(world.endpoints.next_due() - world.clock.now)
            assert world.dials(after=pauses[-1] - 0.001) == []
            world.clock.now += 0.002
        assert pauses == pytest.approx([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0])

    def test_only_so_many_dial_at_a_time_and_those_that_failed_least_come_first(self, world: World) -> None:
        refusing = [f"refusing-{number}:4150" for number in range(DIALS)]
        world.want(*refusing)
        assert world.dials() == refusing
        many = [f"nsqd-{number}:4150" for number in range(2 * DIALS)]
        world.want(*refusing, *many)
        assert world.dials() == []
        world.refuse(*refusing)
        assert world.dials(after=INITIAL) == many[:DIALS]
        world.refuse(many[0])
        world.connect(many[1])
        assert world.dials() == many[DIALS : DIALS + 2]

    def test_a_pause_is_shorter_while_a_publish_waits(self, world: World) -> None:
        world.want(A)
        for _ in range(8):
            world.dials()
            world.refuse(A)
            world.clock.now = world.endpoints.next_due()
        world.clock.now = world[A].backoff.failed_at + 1.0
        assert world.dials() == []
        world.urgent = True
        assert world.dials() == [A]

    def test_an_nsqd_without_a_thread_is_dialed_later(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refused: list[tuple[str, bool]] = []

        def start(threads: LoopThreads) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(LoopThreads, "start", start)
            patched.setattr(Endpoint, "refused", lambda _, error, news: refused.append((str(error), news)))
            world.want(A)
            assert world.dials() == []
        assert refused == [(f"{A} is not dialed: no thread for it: can't start new thread", True)]
        assert world.dials(after=INITIAL) == [A]


class TestWanting:
    def test_an_nsqd_that_is_not_wanted_is_kept_while_its_connection_lasts(self, world: World) -> None:
        world.want(A, B, C)
        world.dials()
        world.connect(A)
        world.refuse(B)
        world.want()
        assert [each.address for each in world.endpoints.all] == [A, C]
        world.refuse(C)
        world.lose(A)
        assert (world.endpoints.all, world.removed) == ((), [B, C, A])
        assert world.dials(after=LONGEST) == []

    def test_an_nsqd_that_is_wanted_again_in_time_keeps_its_endpoint(self, world: World) -> None:
        world.want(A)
        world.dials()
        world.connect(A)
        before = world[A]
        world.want()
        world.want(A)
        world.lose(A)
        assert world[A] is before
        assert world.dials() == [A]

    def test_an_nsqd_that_is_no_longer_listed_is_searched_and_not_dialed(self, world: World) -> None:
        world.want(A)
        world.dials()
        world.connect(A)
        world.want(A, dial=False)
        world.lose(A)
        searched = []
        for now in range(30):
            before = world.searches
            assert world.dials(after=1.0 if now else 0.0) == []
            searched += [now] * (world.searches > before)
        assert searched == [0, 1, 2, 3, 5, 9, 17]  # less and less often
        assert world[A].backoff.reason is LOST
        world.want(A)  # it has restarted
        assert world.dials() == [A]

    def test_an_nsqd_that_is_given_too_is_dialed_at_once(self, world: World) -> None:
        world.want(A, listed=True)
        world.dials()
        world.refuse(A)
        world.want(A, listed=True)
        assert world.dials() == []
        world.want(A, listed=True, given=True)
        assert world.dials() == [A]

    def test_an_nsqd_whose_report_is_under_way_is_neither_dialed_nor_removed(self, world: World) -> None:
        world.want(A)
        world.dials()
        world.connect(A)
        world[A].status = Status.WAITING
        world.want(A, given=True)
        assert world.dials() == []
        world.want()
        assert world.removed == []
        world.lose(A)
        assert world.removed == [A]

    def test_one_nsqd_can_have_several_endpoints(self, world: World) -> None:
        wanted = [Wanted(A, Partition(TOPIC, CHANNEL, number)) for number in (0, 1)]
        world.endpoints.want({each.key: each for each in wanted})
        assert [each.label for each in world.endpoints.all] == [f"{A}/0", f"{A}/1"]
        assert world.dials() == [A, A]

    def test_expected_counts_connections_and_first_dials(self, world: World) -> None:
        world.want(A, B, C)
        counts = [world.endpoints.expected()]
        for step in (
            world.dials,
            lambda: [world.connect(A), world.refuse(B)],
            lambda: world.dials(after=INITIAL),
            lambda: world.connect(B),
            lambda: [world.want(B, C), world.lose(A)],
        ):
            step()
            counts.append(world.endpoints.expected())
        assert counts == [3, 3, 2, 2, 3, 2]

    def test_its_words_tell_where_an_nsqd_comes_from_and_how_it_is(self, world: World) -> None:
        world.want(A, given=True, listed=True)
        words = [world[A].words(1000.0)]
        world.dials()
        words.append(world[A].words(1000.0))
        world.refuse(A)
        words.append(world[A].words(1000.05))
        world.dials(after=INITIAL)
        world.connect(A)
        world.want()
        words.append(world[A].words(1000.05))
        assert words == [
            f"nsqd {A} (given and listed): next dial in 0.0 s",
            f"nsqd {A} (given and listed): dialing",
            f"nsqd {A} (given and listed): next dial in 0.2 s; last error: {A}: refused",
            f"nsqd {A} (no longer listed): connected; last error: {A}: refused",
        ]


class Dialed(Endpoint, ConnDelegate):
    """Notes what happens to it."""

    def __init__(self, wanted: Wanted, client: Client) -> None:
        super().__init__(wanted, Config(), time.monotonic, client.pauses.draw)
        self.notes: list[object] = []
        self._client = client

    def make_conn(self) -> Conn:
        transport = self._client.transport
        return Conn(self.address, self._config, self, transport=transport, subscription=self.subscription)

    def connected(self, conn: Conn) -> None: ...

    def refused(self, error: NsqError, news: bool) -> None:
        self.notes.append((str(error), news))

    def ended(self, conn: Conn, cause: NsqError | None) -> None:
        self.backoff.lost(cause, time.monotonic())
        self.notes.append(cause)


class Client:
    """An owner, and endpoints with threads."""

    def __init__(self) -> None:
        self.transport: Any = MemoryTransport()
        self.pauses = Pauses(0.0, 0.0, lambda: 0.0)
        self.stopping = False
        self.owner = Owner("test-owner", Logger("nsq.test"), turn=self._turn)
        self.endpoints: Endpoints[Dialed] = Endpoints(
            "test", self.owner, lambda wanted: Dialed(wanted, self), time.monotonic
        )

    def _turn(self) -> float | None:
        if self.stopping:
            self.endpoints.stop()
            return None
        self.endpoints.dial_due()
        return self.endpoints.next_due()

    def want(self, wanted: dict[Key, Wanted]) -> None:
        self.owner.start()
        self.owner.do(lambda: self.endpoints.want(wanted), time.monotonic() + PATIENCE)

    def dial(self, address: str = A, subscription: Subscription = ORDERS) -> Dialed:
        wanted = Wanted(address, subscription)
        self.want({wanted.key: wanted})
        return self.endpoints.table[wanted.key]

    def connected(self, endpoint: Dialed) -> tuple[Nsqd, Conn]:
        """Accept its connection, and wait until that carries commands."""
        nsqd = accept(self.transport)
        self.until(lambda: endpoint.status is Status.CONNECTED)
        assert endpoint.conn is not None
        endpoint.conn.put(b"NOP\n")
        nsqd.peer.expect(b"NOP\n")
        return nsqd, endpoint.conn

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.endpoints.threads if each.is_alive()]

    def until(self, condition: Any) -> None:
        assert self.owner.changed.wait_for(condition, time.monotonic() + PATIENCE)

    def close(self) -> None:
        self.stopping = True
        self.owner.wake()
        deadline = time.monotonic() + PATIENCE
        assert not self.owner.join(deadline)
        for endpoint in self.endpoints.all:
            endpoint.cut_off()
        assert not self.endpoints.join(deadline)
        assert self.names == []


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.close()


def refuse_threads(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    """Let no thread start whose name has this word."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if word in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


class TestThreads:
    def test_two_threads_named_after_the_nsqd_serve_all_its_connections(self, client: Client) -> None:
        endpoint = client.dial()
        nsqd, _ = client.connected(endpoint)
        threads = client.endpoints.threads
        assert client.names == [f"test-read-{A}", f"test-write-{A}"]
        nsqd.peer.end()
        client.connected(endpoint)
        assert client.endpoints.threads == threads
        assert len(endpoint.notes) == 1

    def test_hundreds_of_nsqds_that_refuse_keep_no_more_threads_than_may_dial(self, client: Client) -> None:
        client.pauses = PATIENT
        client.transport.refuse()
        many = [f"nsqd-{number}:4150" for number in range(300)]
        client.want(wanting(*many))
        client.transport.wait_for_dials(len(many))
        client.until(lambda: all(each.loops is None for each in client.endpoints.all))
        assert 0 < len(client.names) <= 2 * DIALS
        assert set(client.names) == {"test-read", "test-write"}
        for left in (3, 0):
            client.want(wanting(*many[:left]))
            client.until(lambda left=left: len(client.endpoints._resting) == left)
            ending = [thread for each in client.endpoints._ending for thread in each.threads]
            assert not join_threads(ending, time.monotonic() + PATIENCE)
            assert len(client.names) == 2 * left

    def test_threads_that_rest_serve_another_nsqd_when_none_can_be_started(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.pauses = PATIENT
        client.transport.refuse()
        endpoint = client.dial()
        client.until(lambda: endpoint.notes and endpoint.loops is None)
        client.transport.admit()
        refuse_threads(monkeypatch, "test")
        client.connected(client.dial(B))
        assert client.names == [f"test-read-{B}", f"test-write-{B}"]

    def test_threads_whose_write_loop_is_stuck_serve_no_other_connection(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        released, write_loop = threading.Event(), Conn.write_loop

        def stuck(conn: Conn) -> None:
            write_loop(conn)
            released.wait(PATIENCE)

        monkeypatch.setattr("nsq.connection.endpoint._WRITER_GRACE", 0.0)
        monkeypatch.setattr(Conn, "write_loop", stuck)
        endpoint = client.dial()
        nsqd, _ = client.connected(endpoint)
        monkeypatch.setattr(Conn, "write_loop", write_loop)
        nsqd.peer.end()
        client.connected(endpoint)
        assert client.names.count(f"test-write-{A}") == 2
        released.set()

    def test_a_read_thread_without_a_write_thread_ends(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.pauses = PATIENT
        refuse_threads(monkeypatch, "write")
        endpoint = client.dial()
        client.until(lambda: endpoint.notes)
        assert not join_threads(client.endpoints.threads, time.monotonic() + PATIENCE)

    def test_the_subscription_says_what_is_sent(self, client: Client) -> None:
        client.dial(A, Partition(TOPIC, CHANNEL, 3))
        peer = client.transport.accept()
        assert hear_identify(peer)["extend_support"] is True
        peer.send(encode_response(b"{}"))
        peer.expect(b"SUB orders billing 3\n")
        assert client.names == [f"test-read-{A}/3", f"test-write-{A}/3"]

    def test_a_transport_that_raises_any_exception_does_not_end_a_thread(
        self, client: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        memory, errors = client.transport, iter([ZeroDivisionError(), SystemExit(1), SystemExit(1)])

        class Failing:
            def connect(self, address: str, *, timeout: float) -> Any:
                for error in errors:
                    raise error
                return memory.connect(address, timeout=timeout)

        client.transport = Failing()
        endpoint = client.dial()
        accept(memory)
        client.until(lambda: endpoint.status is Status.CONNECTED)
        words = (f"{A}: ZeroDivisionError()", f"{A}: SystemExit(1)", f"{A}: SystemExit(1)")
        assert endpoint.notes == list(zip(words, (True, True, False), strict=True))
        assert f"dialing {A} failed" in caplog.text

    def test_a_client_that_raises_does_not_end_a_thread(
        self, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(Dialed, "refused", lambda *_: 1 / 0)
        client.transport.refuse()
        endpoint = client.dial()
        client.transport.wait_for_dials(2)
        client.transport.admit()
        client.connected(endpoint)
        assert "a bug of ours" in caplog.text

    def test_no_thread_is_started_after_a_stop(self, client: Client) -> None:
        client.endpoints.stop()
        client.endpoints.want(wanting(A, B))
        client.endpoints.start_threads()
        assert client.names == []

    def test_a_stop_ends_a_dial(self, client: Client) -> None:
        client.dial()
        peer = client.transport.accept()
        hear_identify(peer)
        client.close()
        peer.wait_closed()
