"""The socket transports against real sockets: deadlines, threads, forks and closing."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nsq.errors import ConfigError, ConnectionLost, DialFailed, Unanswered
from nsq.transport import SocketStream, SocketTransport, default_transport
from nsq.transport.dialing import Target, race
from tests.fakes.forks import in_child
from tests.fakes.threads import Running

SHORT = 0.2
LONG = 60.0
HUGE = bytes(64 << 20)  # more than any socket buffers


class Ends:
    """Our stream and the raw socket of its peer."""

    def __init__(self, stream: SocketStream, peer: socket.socket) -> None:
        self.stream = stream
        self.peer = peer
        peer.settimeout(LONG)

    def received(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.peer.recv(count - len(data))
            if not chunk:
                break
            data += chunk
        return data


class Listener:
    """Accepts connections for a test and closes everything in the end."""

    def __init__(self, family: int, address: object, *, backlog: int = 16) -> None:
        self._stack = ExitStack()
        self._socket = self._stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        self._socket.bind(address)  # type: ignore[arg-type]
        self._socket.listen(backlog)
        self._socket.settimeout(LONG)
        self.target = Target(family, 0, self._socket.getsockname())
        self.address = f"unix:{address}" if family == socket.AF_UNIX else self.target.words

    def connect(self, timeout: float = LONG) -> Ends:
        stream = default_transport.connect(self.address, timeout=timeout)
        assert isinstance(stream, SocketStream)
        return self.accept(stream)

    def accept(self, stream: SocketStream) -> Ends:
        self._stack.callback(stream.close)
        peer, _ = self._socket.accept()
        return Ends(stream, self._stack.enter_context(peer))

    def fill(self) -> None:
        """Makes it a black hole: the system takes no further connection for it, and refuses none."""
        for _ in range(4):
            sock = self._stack.enter_context(socket.socket(self._socket.family, socket.SOCK_STREAM))
            sock.setblocking(False)
            sock.connect_ex(self._socket.getsockname())

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def listening() -> Iterator[Callable[..., Listener]]:
    with ExitStack() as stack:

        def listen(
            family: int = socket.AF_INET, address: object = ("127.0.0.1", 0), **options: int
        ) -> Listener:
            listener = Listener(family, address, **options)
            stack.callback(listener.close)
            return listener

        yield listen


@pytest.fixture(params=["tcp", "unix"])
def listener(request: pytest.FixtureRequest, listening: Callable[..., Listener], tmp_path: Path) -> Listener:
    if request.param == "tcp":
        return listening()
    return listening(socket.AF_UNIX, str(tmp_path / "nsqd.sock"))


@pytest.fixture
def ends(listener: Listener) -> Ends:
    return listener.connect()


class Stopwatch:
    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start


# Reading


def test_bytes_go_both_ways(ends: Ends) -> None:
    ends.stream.write(b"ping", LONG)
    assert ends.received(4) == b"ping"
    ends.peer.sendall(b"pong")
    assert (ends.stream.read(3), ends.stream.read()) == (b"pon", b"g")


def test_a_read_has_a_timeout_and_reading_goes_on_after_it(ends: Ends) -> None:
    ends.stream.read_timeout = SHORT
    assert ends.stream.read_timeout == SHORT
    clock = Stopwatch()
    with pytest.raises(Unanswered, match=r": nothing was received within 0\.2 s") as caught:
        ends.stream.read()
    assert SHORT * 0.9 < clock.elapsed < LONG / 2
    assert isinstance(caught.value.__cause__, BlockingIOError)
    assert str(caught.value).startswith(ends.stream.peer)
    ends.peer.sendall(b"late")
    assert ends.stream.read() == b"late"


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_read_timeout_that_is_none_is_refused(ends: Ends, seconds: float) -> None:
    with pytest.raises(ConfigError, match=f"read_timeout is {seconds}"):
        ends.stream.read_timeout = seconds


def test_a_read_timeout_is_not_the_writers(ends: Ends) -> None:
    """Reading runs into its timeout again and again while one write takes longer than all of them."""
    ends.stream.read_timeout = 0.02
    writing = Running(lambda: ends.stream.write(HUGE, LONG))
    for _ in range(5):
        with pytest.raises(Unanswered):
            ends.stream.read()
    assert writing.thread.is_alive()
    reading = Running(lambda: sum(len(ends.received(1 << 20)) for _ in range(len(HUGE) >> 20)))
    writing.result()
    assert reading.result() == len(HUGE)


@pytest.mark.parametrize("end", ["wake", "close"])
def test_a_blocked_read_is_ended_by_another_thread(ends: Ends, end: str) -> None:
    reading = Running(ends.stream.read).blocked()
    getattr(ends.stream, end)()
    assert reading.result() == b""
    assert ends.stream.read() == b""


def test_a_peer_that_never_stops_sending_does_not_keep_a_woken_reader(
    listening: Callable[..., Listener],
) -> None:
    ends = listening().connect()
    ends.peer.sendall(b"x" * 1000)
    ends.stream.wake()
    ends.peer.sendall(b"x" * 1000)
    assert ends.stream.read() == b""


def test_writing_goes_on_after_a_wake(ends: Ends) -> None:
    ends.stream.wake()
    ends.stream.write(b"FIN", LONG)
    assert ends.received(3) == b"FIN"


def test_a_peer_that_says_no_more_still_listens(ends: Ends) -> None:
    ends.peer.sendall(b"last")
    ends.peer.shutdown(socket.SHUT_WR)
    assert (ends.stream.read(), ends.stream.read()) == (b"last", b"")
    ends.stream.write(b"still here", LONG)
    assert ends.received(10) == b"still here"


def test_a_reset_is_a_lost_connection(listening: Callable[..., Listener]) -> None:
    ends = listening().connect()
    reading = Running(ends.stream.read).blocked()
    ends.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    ends.peer.close()
    with pytest.raises(
        ConnectionLost, match=r"127.*: the connection is lost: Connection reset by peer"
    ) as caught:
        reading.result()
    assert isinstance(caught.value.__cause__, ConnectionResetError)
    with pytest.raises(ConnectionLost, match="the connection is lost: Broken pipe"):
        ends.stream.write(b"x", LONG)


# Writing


def test_a_peer_that_never_reads_meets_the_deadline(ends: Ends) -> None:
    clock = Stopwatch()
    with pytest.raises(Unanswered, match=r"[1-9]\d* of 67108864 bytes were not taken within 0\.2 s"):
        ends.stream.write(HUGE, SHORT)
    assert SHORT * 0.9 < clock.elapsed < LONG / 2


def test_a_peer_that_reads_drop_by_drop_does_not_move_the_deadline(ends: Ends) -> None:
    stop = threading.Event()

    def sip() -> None:
        while not stop.wait(SHORT / 4):
            with contextlib.suppress(BlockingIOError):  # the writer may be slower
                ends.peer.recv(1 << 16)  # all of it would take longer than the test may

    ends.peer.setblocking(False)
    sipping = Running(sip)
    clock = Stopwatch()
    try:
        with pytest.raises(Unanswered):
            ends.stream.write(HUGE, 2 * SHORT)
        assert clock.elapsed < LONG / 2
    finally:
        stop.set()
        sipping.result()


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda ends: ends.stream.close(), "was closed on this side"),
        (lambda ends: ends.peer.close(), "is lost"),
    ],
    ids=["a close", "the peer"],
)
def test_a_blocked_write_is_ended_by_either_side(
    ends: Ends, end: Callable[[Ends], None], reason: str
) -> None:
    writing = Running(lambda: ends.stream.write(HUGE, LONG)).blocked()
    end(ends)
    with pytest.raises(ConnectionLost, match=f"the connection {reason}"):
        writing.result()


# Closing


def test_a_closed_stream_stays_closed(ends: Ends) -> None:
    ends.stream.close()
    ends.stream.close()
    ends.stream.wake()
    ends.stream.read_timeout = 1.0
    assert ends.stream.read() == b""
    with pytest.raises(ConnectionLost, match="closed on this side"):
        ends.stream.write(b"x", LONG)
    assert ends.received(1) == b""


class Gate(socket.socket):
    """Stops a thread on its way into ``recv``, where it has the descriptor's number and does not use it
    yet.
    """

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self.entered = threading.Event()
        self.pass_on = threading.Event()

    def recv(self, *arguments: int) -> bytes:
        self.entered.set()
        assert self.pass_on.wait(LONG)
        return super().recv(*arguments)


class Resets(Gate):
    """The peer resets the connection at the moment it is closed on this side."""

    def recv(self, *arguments: int) -> bytes:
        super().recv(*arguments)
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


@pytest.mark.parametrize("kind", [Gate, Resets])
def test_the_last_thread_out_closes_the_descriptor_and_an_error_then_is_an_end(kind: type[Gate]) -> None:
    """Otherwise the number could belong to another connection by the time it is used."""
    ours, theirs = socket.socketpair()
    gate = kind(fileno=ours.detach())
    stream = SocketStream(gate, "gate")
    with theirs:
        reading = Running(stream.read)
        assert gate.entered.wait(LONG)
        stream.close()
        assert gate.fileno() >= 0
        gate.pass_on.set()
        assert reading.result() == b""
        assert gate.fileno() == -1


def test_descriptors_above_1024_are_no_matter(listening: Callable[..., Listener]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"this process may open only {hard} files")
    with ExitStack() as stack:
        if soft < 1200:
            resource.setrlimit(resource.RLIMIT_NOFILE, (1200, hard))
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        null = os.open(os.devnull, os.O_RDONLY)
        stack.callback(os.close, null)
        while null < 1024:
            null = os.dup(null)
            stack.callback(os.close, null)
        ends = listening().connect()
        stack.callback(ends.stream.close)
        with pytest.raises(Unanswered):
            ends.stream.write(HUGE, SHORT)  # this one waits in poll
        ends.stream.close()


# Forking


def test_a_child_that_abandons_leaves_the_parents_connection_alone(ends: Ends) -> None:
    reading = Running(ends.stream.read).blocked()

    def child() -> None:
        ends.stream.abandon()
        ends.stream.close()
        assert ends.stream.read() == b""
        with pytest.raises(ConnectionLost):
            ends.stream.write(b"from the child", SHORT)
        assert ends.stream._in.fileno() == -1

    assert in_child(child) == 0
    ends.peer.sendall(b"to the parent")
    assert reading.result() == b"to the parent"
    ends.stream.write(b"from the parent", LONG)
    assert ends.received(15) == b"from the parent"


# Dialling


def test_a_connection_is_set_up_for_small_messages_and_dead_peers(listening: Callable[..., Listener]) -> None:
    sock = listening().connect().stream._in
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if hasattr(socket, "TCP_KEEPIDLE"):
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
    assert not sock.get_inheritable()


def test_a_name_is_looked_up(listening: Callable[..., Listener]) -> None:
    tcp = listening()
    address = f"localhost:{tcp.target.address[1]}"
    stream = default_transport.connect(address, timeout=LONG)
    assert isinstance(stream, SocketStream)
    ends = tcp.accept(stream)
    assert ends.stream.peer == address


@pytest.mark.parametrize(
    ("local_address", "reason"),
    [
        ("192.0.2.1", r"local_address 192\.0\.2\.1: Cannot assign requested address"),  # for documentation
        ("::1", "no address of the kind of local_address ::1"),
    ],
    ids=["of another machine", "of another kind"],
)
def test_a_local_address_that_cannot_be_used_is_named(
    listening: Callable[..., Listener], local_address: str, reason: str
) -> None:
    with pytest.raises(DialFailed, match=reason):
        SocketTransport(local_address=local_address).connect(listening().address, timeout=LONG)


@pytest.fixture
def unused() -> Iterator[str]:
    """A port that is taken, but on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def refusing(unused: str) -> Target:
    return Target(socket.AF_INET, 0, ("127.0.0.1", int(unused.rpartition(":")[2])))


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("", "Connection refused"),
        ("nsqd.invalid:4150", "."),
        ("nsqd..example:4150", "."),
        (f"{'x' * 64}.example:4150", "."),
        ("unix:/no/such.sock", "No such file"),
        (f"/{'x' * 200}", ".*too long"),
    ],
    ids=[
        "a closed port",
        "an unknown name",
        "no name",
        "a name too long",
        "no Unix socket",
        "a path too long",
    ],
)
def test_a_failed_dial_is_named_with_its_reason(unused: str, address: str, said: str) -> None:
    address = address or unused
    with pytest.raises(DialFailed, match=f"^cannot connect to {re.escape(address)}: {said}") as caught:
        default_transport.connect(address, timeout=LONG)
    assert isinstance(caught.value.__cause__, (OSError, UnicodeError))
    for thread in threading.enumerate():
        if thread.name.startswith("nsq-resolve-"):  # where no name server answers, it outlives the dial
            thread.join(LONG)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_black_hole_meets_the_deadline(
    kind: str, listening: Callable[..., Listener], tmp_path: Path
) -> None:
    if kind == "tcp":
        hole = listening(backlog=0)
    else:
        hole = listening(socket.AF_UNIX, str(tmp_path / "hole.sock"), backlog=0)
    hole.fill()
    clock = Stopwatch()
    with pytest.raises(
        DialFailed, match=rf"cannot connect to {re.escape(hole.address)}: no answer within 0(\.\d+)? s"
    ):
        default_transport.connect(hole.address, timeout=SHORT)
    assert SHORT * 0.9 < clock.elapsed < LONG / 2


def test_an_interrupt_ends_a_dial_into_a_black_hole_and_those_to_come(
    listening: Callable[..., Listener], tmp_path: Path
) -> None:
    hole, open_one = listening(backlog=0), listening()
    unix = listening(socket.AF_UNIX, str(tmp_path / "door.sock"))
    hole.fill()
    transport = SocketTransport()
    ends = open_one.accept(transport.connect(open_one.address, timeout=LONG))
    dialing = Running(lambda: transport.connect(hole.address, timeout=10 * LONG)).blocked()
    transport.interrupt()
    with pytest.raises(DialFailed, match=re.escape(hole.address)):
        dialing.result()
    for door in (open_one, unix):
        with pytest.raises(DialFailed, match="interrupted"):
            transport.connect(door.address, timeout=LONG)
    ends.peer.sendall(b"still there")
    assert ends.stream.read() == b"still there"


def opened(target: Target) -> socket.socket:
    return socket.socket(target.family, socket.SOCK_STREAM)


def test_a_black_hole_in_front_costs_a_moment_and_not_the_deadline(
    listening: Callable[..., Listener],
) -> None:
    hole, open_door = listening(backlog=0), listening()
    hole.fill()
    clock = Stopwatch()
    with race([hole.target, open_door.target], opened, LONG) as winner:
        assert winner.getpeername() == open_door.target.address
        assert winner.gettimeout() is None
    assert clock.elapsed < LONG / 2


def test_the_first_address_is_preferred(listening: Callable[..., Listener]) -> None:
    first, second = listening(), listening()
    tried: list[Target] = []

    def noted(target: Target) -> socket.socket:
        tried.append(target)
        return opened(target)

    with race([first.target, second.target], noted, LONG) as winner:
        assert winner.getpeername() == first.target.address
    assert tried == [first.target]


def test_a_refusal_lets_the_next_address_start_at_once(
    listening: Callable[..., Listener], refusing: Target
) -> None:
    open_door = listening()
    with race([refusing, open_door.target], opened, LONG) as winner:
        assert winner.getpeername() == open_door.target.address


def test_an_address_that_answers_late_still_wins(
    listening: Callable[..., Listener], refusing: Target
) -> None:
    """The next one is refused meanwhile; the system repeats a connection request after about a second."""
    late = listening(backlog=0)
    late.fill()
    racing = Running(lambda: race([late.target, refusing], opened, LONG))
    racing.blocked()
    accepted = [late._socket.accept()[0] for _ in range(2)]
    winner = racing.result()
    assert isinstance(winner, socket.socket)
    assert winner.getpeername() == late.target.address
    for sock in (winner, *accepted):
        sock.close()


def test_a_race_without_a_winner_names_every_address(
    listening: Callable[..., Listener], refusing: Target
) -> None:
    hole = listening(backlog=0)
    hole.fill()
    with pytest.raises(OSError, match="no answer within") as caught:
        race([refusing, hole.target], opened, SHORT)
    text = f"{refusing.words}: Connection refused; {hole.target.words}: no answer within 0.2 s"
    assert str(caught.value) == text
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ECONNREFUSED


def test_a_dial_does_not_reach_itself() -> None:
    """A socket whose source port is the dialed port would connect to itself."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        target = Target(socket.AF_INET, 0, holder.getsockname())

    def bound(target: Target) -> socket.socket:
        sock = opened(target)
        sock.bind(target.address)
        return sock

    with pytest.raises(OSError, match="Connection refused"):
        race([target], bound, LONG)
