from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from nsq.errors import ConfigError, DialFailed
from nsq.transport import SocketTransport, Transport, default_transport
from nsq.transport.dialing import Resolver, Target, literal, look_up

TARGET = Target(socket.AF_INET, 6, ("10.0.0.7", 4150))
LONG = 30.0


class SlowLookup:
    """A name server that answers when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.threads: list[threading.Thread] = []
        self.reached = threading.Semaphore(0)
        self.answer = threading.Event()

    def __call__(self, host: str, port: int) -> list[Target]:
        self.asked.append((host, port))
        self.threads.append(threading.current_thread())
        self.reached.release()
        assert self.answer.wait(LONG)
        return [TARGET]


@pytest.fixture
def slow() -> Iterator[SlowLookup]:
    lookup = SlowLookup()
    yield lookup
    lookup.answer.set()
    for thread in lookup.threads:
        thread.join(LONG)


def never_asked(host: str, port: int) -> list[Target]:
    raise AssertionError(f"{host} needs no lookup")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_digits_are_not_looked_up(host: str) -> None:
    (target,) = Resolver(never_asked).resolve(host, 4150, 0.0)
    assert target.address[:2] == (host, 4150)


def test_a_name_is_no_literal() -> None:
    assert literal("nsqd.example", 4150) == []
    assert literal("x" * 100 + ".example", 4150) == []  # a label that no name may have


@pytest.mark.parametrize(
    ("host", "asked"), [("nsqd.example", b"nsqd.example"), ("10.0.0.2", b"10.0.0.2"), ("bücher", "bücher")]
)
def test_a_codec_is_used_only_where_there_is_no_other_way(
    monkeypatch: pytest.MonkeyPatch, host: str, asked: str | bytes
) -> None:
    """A child forked while its parent loads the codec of names would find none of them ever."""
    hosts: list[str | bytes] = []

    def getaddrinfo(host: str | bytes, *_: object, **__: object) -> list[object]:
        hosts.append(host)
        return []

    monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)
    look_up(host, 4150)
    literal(host, 4150)
    assert hosts == [asked, asked]


def test_targets_are_written_as_addresses() -> None:
    assert TARGET.words == "10.0.0.7:4150"
    assert literal("::1", 4150)[0].words == "[::1]:4150"


def test_a_lookup_that_takes_too_long_is_left_behind(slow: SlowLookup) -> None:
    with pytest.raises(TimeoutError, match="not resolved within"):
        Resolver(slow).resolve("nsqd.example", 4150, 0.001)
    assert slow.reached.acquire(timeout=LONG)
    assert slow.threads[0].name == "nsq-resolve-nsqd.example"
    assert slow.threads[0].daemon


def test_dials_at_the_same_time_share_a_name_lookup(slow: SlowLookup) -> None:
    resolver = Resolver(slow)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            resolver.resolve("nsqd.example", 4150, 0.001)
    assert slow.reached.acquire(timeout=LONG)
    slow.answer.set()
    slow.threads[0].join(LONG)
    assert slow.asked == [("nsqd.example", 4150)]


def test_an_answer_is_not_kept(slow: SlowLookup) -> None:
    slow.answer.set()
    resolver = Resolver(slow)
    assert resolver.resolve("nsqd.example", 4150, LONG) == [TARGET]
    assert resolver.resolve("nsqd.example", 4150, LONG) == [TARGET]
    assert len(slow.asked) == 2


@pytest.mark.parametrize("failure", [socket.gaierror(-2, "unknown"), UnicodeError("no name")])
def test_a_failed_lookup_raises_in_the_caller(failure: OSError | UnicodeError) -> None:
    def failing(host: str, port: int) -> list[Target]:
        raise failure

    with pytest.raises(type(failure)) as caught:
        Resolver(failing).resolve("nsqd.example", 4150, LONG)
    assert caught.value is failure


def test_a_name_without_addresses_is_a_failure() -> None:
    with pytest.raises(OSError, match="no address"):
        Resolver(lambda host, port: []).resolve("nsqd.example", 4150, LONG)


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(
    slow: SlowLookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver = Resolver(slow)
    with pytest.raises(TimeoutError):
        resolver.resolve("nsqd.example", 4150, 0.001)
    assert slow.reached.acquire(timeout=LONG)
    monkeypatch.setattr("nsq.transport.dialing.os.getpid", lambda: -1)
    with pytest.raises(TimeoutError):
        resolver.resolve("nsqd.example", 4150, 0.001)
    assert slow.reached.acquire(timeout=LONG)
    assert len(slow.asked) == 2


def test_an_interrupt_ends_what_waits_and_what_would(slow: SlowLookup) -> None:
    resolver = Resolver(slow)
    errors: list[BaseException] = []

    def resolve() -> None:
        try:
            resolver.resolve("nsqd.example", 4150, LONG)
        except OSError as error:
            errors.append(error)

    waiting = threading.Thread(target=resolve)
    waiting.start()
    assert slow.reached.acquire(timeout=LONG)
    resolver.interrupt()
    waiting.join(LONG)
    resolve()
    assert [str(error) for error in errors] == ["interrupted, as this client is closed"] * 2
    slow.reached.release()  # both lookups are slow's to end


# Transports


@pytest.mark.parametrize("address", ["nsqd", "nsqd:http", "::1:4150", "unix:", ""])
def test_a_dial_of_what_is_no_address_fails_like_any_other(address: str) -> None:
    with pytest.raises(DialFailed) as caught:
        default_transport.connect(address, timeout=1.0)
    assert str(caught.value).startswith(f"cannot connect to {address}: ")
    assert isinstance(caught.value.__cause__, ConfigError)


@pytest.mark.parametrize("local_address", ["127.0.0.1", "127.0.0.1:0", "::1", "[::1]:0"])
def test_a_local_address_is_an_ip_address(local_address: str) -> None:
    assert SocketTransport(local_address=local_address).local_address == local_address


@pytest.mark.parametrize("local_address", ["", "host.example", "127.0.0.1:x", "127.0.0.300"])
def test_any_other_local_address_is_refused(local_address: str) -> None:
    with pytest.raises(ConfigError, match="local_address is"):
        SocketTransport(local_address=local_address)


def test_the_default_transport_is_a_transport() -> None:
    assert isinstance(default_transport, Transport)
