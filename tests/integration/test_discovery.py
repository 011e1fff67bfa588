"""Discovery against real nsqlookupds and nsqds, healthy and unhealthy."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from nsq.config import Config
from nsq.connection.subscription import Subscription
from nsq.consumer.dead_letters import GiveUpPolicy
from nsq.consumer.engine import Engine, plain_parts
from nsq.discovery.lookups import Asker
from nsq.errors import ApiError
from nsq.testing import Nsqd, Nsqlookupd, V2Client
from nsq.testing.plugin import Factory
from nsq.transport.base import Stream
from nsq.transport.dialing import default_transport
from nsq.wire import commands
from tests.fakes.nsqlookupd import ScriptedLookupd

from .patience import eventually

TOPIC, CHANNEL = "orders", "billing"
PATIENCE = 60.0


class Dialing:
    """Notes every dial."""

    def __init__(self) -> None:
        self.dials: list[str] = []

    def connect(self, address: str, *, timeout: float) -> Stream:
        self.dials.append(address)
        return default_transport.connect(address, timeout=timeout)


class Host:
    """The engine of a consumer without handlers, whose chance is fixed."""

    def __init__(self, nsqds: list[str], lookupds: list[str], **options: Any) -> None:
        config, subscription = Config(**options), Subscription(TOPIC, CHANNEL)
        self._transport = Dialing()
        arguments = {
            "subscription": subscription,
            "config": config,
            "nsqds": nsqds,
            "nsqlookupds": lookupds,
            "chance": lambda: 0.5,
        }
        parts = plain_parts(arguments)
        self.engine = Engine(subscription, config, parts, GiveUpPolicy(""), transport=self._transport)

    @property
    def dials(self) -> list[str]:
        return self._transport.dials

    def connected(self, *nsqds: Nsqd) -> None:
        """Wait until exactly these are connected."""
        addresses = {nsqd.tcp_address for nsqd in nsqds}
        eventually(lambda: {each.nsqd_address for each in self.engine.health().connections} == addresses)


@contextmanager
def discovering(
    nsqds: list[str] | None = None, lookupds: list[str] | None = None, **options: Any
) -> Iterator[Host]:
    """Its chance is fixed, so pauses and intervals are known: half of their ceiling, and as configured."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("random.random", lambda: 0.5)
        host = Host(nsqds or [], lookupds or [], **options)
    host.engine.start()
    try:
        yield host
    finally:
        assert not host.engine.stop(time.monotonic() + PATIENCE).unfinished_threads


@contextmanager
def black_hole() -> Iterator[str]:
    """Connects, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def refusing() -> Iterator[str]:
    """A port that is taken, so nobody else gets it, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def hanging_up(hellos: list[float]) -> Iterator[str]:
    """Accepts, closes at once, and notes when."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):  # shut down below
                while True:
                    server.accept()[0].close()
                    hellos.append(time.monotonic())

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


@pytest.fixture
def lookupd(nsqlookupd_factory: Factory[Nsqlookupd]) -> Iterator[Nsqlookupd]:
    made = nsqlookupd_factory()
    yield made
    if made.running:
        # asyncio loses a connection that it accepts while the server stops. Whoever has hung up just now, a
        # cancelled question for one, has been accepted by the time this is answered.
        made.get("/ping")


@pytest.fixture
def nsqd(nsqd_factory: Factory[Nsqd], lookupd: Nsqlookupd) -> Iterator[Nsqd]:
    """With the topic, and known to the nsqlookupd."""
    made = nsqd_factory(lookupd=[lookupd])
    create_topic(made, lookupd)
    yield made
    made.stop()  # before its nsqlookupd, which it asks things too


def create_topic(nsqd: Nsqd, lookupd: Nsqlookupd) -> None:
    assert nsqd.post(f"/topic/create?topic={TOPIC}").status == 200
    await_listing(lookupd, nsqd)


def await_listing(lookupd: Nsqlookupd, nsqd: Nsqd) -> None:
    port = nsqd.tcp_address.rpartition(":")[2].encode()
    deadline = time.monotonic() + PATIENCE
    while port not in lookupd.get(f"/lookup?topic={TOPIC}").body:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def health(host: Host) -> list[str]:
    return host.engine.health().discovery


def await_health(host: Host, words: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not any(words in line for line in health(host)):
        assert time.monotonic() < deadline, health(host)
        time.sleep(0.01)


class TestFinding:
    def test_bad_nsqlookupds_do_not_delay_what_a_good_one_says(self, nsqd: Nsqd, lookupd: Nsqlookupd) -> None:
        with ExitStack() as stack:
            hole, nobody = stack.enter_context(black_hole()), stack.enter_context(refusing())
            slow = stack.enter_context(ScriptedLookupd(nsqd.tcp_address))
            slow.allowed.clear()
            lookupds = [hole, nobody, slow.address, lookupd.http_address]
            host = stack.enter_context(discovering([], lookupds, lookupd_poll_timeout=2.0))
            host.connected(nsqd)
            slow.allowed.set()
            await_health(host, f"nsqlookupd http://{nobody}/: failed")
            await_health(host, f"nsqlookupd {slow.address}/: answered")
            await_health(host, "did not answer within 2 s")
            assert host.dials == [nsqd.tcp_address]

    def test_the_end_does_not_wait_for_a_black_hole(self) -> None:
        with black_hole() as hole, discovering([], [hole], lookupd_poll_timeout=300.0):
            began = time.monotonic()
            while not any(f"ask-http://{hole}" in thread.name for thread in threading.enumerate()):
                assert time.monotonic() < began + PATIENCE
                time.sleep(0.01)
            # discovering() allows less for the end.

    def test_a_topic_that_is_created_later_is_found(
        self, nsqd_factory: Factory[Nsqd], lookupd: Nsqlookupd, caplog: pytest.LogCaptureFixture
    ) -> None:
        nsqd = nsqd_factory(lookupd=[lookupd])
        with discovering([], [lookupd.http_address], lookupd_poll_interval=0.1) as host:
            await_health(host, "listing 0")
            # An unknown topic is no failure, but worth a word.
            assert [record.getMessage()[:46] for record in caplog.records] == [
                "no nsqlookupd lists an nsqd with topic 'orders"
            ]
            create_topic(nsqd, lookupd)
            host.connected(nsqd)

    def test_an_nsqd_that_is_given_and_listed_is_dialled_once(self, nsqd: Nsqd, lookupd: Nsqlookupd) -> None:
        with discovering([nsqd.tcp_address], [lookupd.http_address], lookupd_poll_interval=0.05) as host:
            await_health(host, f"nsqd {nsqd.tcp_address} (given and listed): connected")
            assert host.dials == [nsqd.tcp_address]

    def test_one_that_is_not_there_yet_is_dialled_until_it_is(self, nsqd_factory: Factory[Nsqd]) -> None:
        nsqd = nsqd_factory()
        nsqd.stop(keep_data=True)
        with discovering([nsqd.tcp_address], reconnect_initial=0.05, reconnect_max=0.2) as host:
            eventually(lambda: len(host.dials) >= 3)
            nsqd.start()
            host.connected(nsqd)


class TestLosing:
    def test_a_restarted_nsqd_is_found_again_long_before_the_next_regular_round(
        self, nsqd: Nsqd, lookupd: Nsqlookupd
    ) -> None:
        with discovering([], [lookupd.http_address], lookupd_poll_interval=60.0) as host:
            host.connected(nsqd)
            nsqd.restart()
            eventually(lambda: len(host.dials) >= 2)
            host.connected(nsqd)

    def test_an_outage_of_the_nsqlookupd_does_not_prevent_reconnecting(
        self, nsqd: Nsqd, lookupd: Nsqlookupd
    ) -> None:
        with discovering([], [lookupd.http_address], lookupd_poll_interval=0.2) as host:
            host.connected(nsqd)
            lookupd.stop()
            await_health(host, "failed")
            nsqd.restart()
            eventually(lambda: len(host.dials) >= 2)
            host.connected(nsqd)

    @pytest.mark.parametrize("listed", [False, True], ids=["given", "listed"])
    def test_one_that_accepts_and_hangs_up_meets_growing_pauses(self, listed: bool) -> None:
        hellos: list[float] = []
        with ExitStack() as stack:
            address = stack.enter_context(hanging_up(hellos))
            scripted = stack.enter_context(ScriptedLookupd(address))
            where: dict[str, Any] = {"lookupds": [scripted.address]} if listed else {"nsqds": [address]}
            began = time.monotonic()
            stack.enter_context(discovering(**where, lookupd_poll_interval=0.05))
            # Half of 0.25, 0.5 and 1 seconds after each: at 0, 0.125, 0.375 and 0.875.
            eventually(lambda: len(hellos) >= 4)
            assert time.monotonic() - began > 0.8

    def test_one_whose_channel_is_full_meets_them_too_and_says_why(self, nsqd_factory: Factory[Nsqd]) -> None:
        nsqd = nsqd_factory(max_channel_consumers=1)
        with V2Client(nsqd.tcp_address) as other:
            other.send(commands.sub(TOPIC, CHANNEL))
            other.expect_ok()
            began = time.monotonic()
            with discovering([nsqd.tcp_address]) as host:
                eventually(lambda: len(host.dials) >= 4)
                assert time.monotonic() - began > 0.8  # as above
                await_health(host, "E_SUB_FAILED")
                other.close()
                host.connected(nsqd)

    def test_one_that_is_listed_no_more_is_left(self, nsqd: Nsqd, lookupd: Nsqlookupd) -> None:
        with discovering([], [lookupd.http_address], lookupd_poll_interval=0.1, prune=True) as host:
            host.connected(nsqd)
            lookupd.post(f"/topic/tombstone?topic={TOPIC}&node={nsqd.http_address}")
            host.connected()
            assert host.dials == [nsqd.tcp_address]

    def test_but_not_while_an_nsqlookupd_fails(self, nsqd: Nsqd, lookupd: Nsqlookupd) -> None:
        options: dict[str, Any] = {"lookupd_poll_interval": 0.1, "prune": True}
        with refusing() as nobody, discovering([], [lookupd.http_address, nobody], **options) as host:
            host.connected(nsqd)
            lookupd.post(f"/topic/tombstone?topic={TOPIC}&node={nsqd.http_address}")
            await_health(host, "listing 0")
            time.sleep(0.6)
            host.connected(nsqd)


class TestAsker:
    SECRET = "s3cret"

    @pytest.fixture
    def authority(self) -> trustme.CA:
        return trustme.CA()

    @pytest.fixture
    def encrypted(self, authority: trustme.CA) -> Iterator[ScriptedLookupd]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        with ScriptedLookupd("n:4150", tls=context) as scripted:
            yield scripted

    def ask(self, scripted: ScriptedLookupd, path: str = "", **options: Any) -> frozenset[str]:
        return Asker(TOPIC, Config(auth_secret=self.SECRET, **options)).ask(scripted.address + path)

    @pytest.mark.parametrize(
        ("allowed", "sent"), [("https", None), ("never", None), ("always", f"Bearer {SECRET}")]
    )
    def test_unencrypted_the_secret_is_sent_only_when_insisted(self, allowed: str, sent: str | None) -> None:
        with ScriptedLookupd("n:4150", "[::1]:4150") as scripted:
            assert self.ask(scripted, lookupd_authorization=allowed) == {"n:4150", "[::1]:4150"}
            assert scripted.requests == [("/lookup?topic=orders", sent)]

    def test_encrypted_it_is_sent_with_the_settings_of_tls(
        self, encrypted: ScriptedLookupd, authority: trustme.CA, tmp_path: Path
    ) -> None:
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        found = self.ask(encrypted, "/behind/proxy?token=1", tls=True, tls_ca_file=str(tmp_path / "ca.pem"))
        assert found == {"n:4150"}
        assert encrypted.requests == [("/behind/proxy?token=1&topic=orders", f"Bearer {self.SECRET}")]

    def test_without_such_settings_it_is_verified_with_public_authorities(
        self, encrypted: ScriptedLookupd
    ) -> None:
        with pytest.raises(ApiError, match="certificate verify failed") as refused:
            self.ask(encrypted, "/lookup?token=t0ken")
        assert "t0ken" not in str(refused.value)
        assert encrypted.requests == []

    def test_an_unknown_topic_is_an_empty_answer(self, lookupd: Nsqlookupd) -> None:
        assert Asker("nowhere", Config()).ask(lookupd.http_address) == frozenset()

    def test_cancel_ends_questions_under_way_and_to_come(self) -> None:
        subject = Asker(TOPIC, Config(lookupd_poll_timeout=300.0))
        with black_hole() as hole:
            timer = threading.Timer(0.2, subject.cancel)
            timer.start()
            began = time.monotonic()
            for _ in range(2):
                with pytest.raises(ApiError):
                    subject.ask(hole)
            assert time.monotonic() - began < 300.0
            timer.join()
