"""Serves a cluster: one thread, or one process, with an event loop over all sockets of all nodes.

A test controls it through a pipe: the name of a method of ``Server`` and its arguments in, a result or an
error out.
"""

from __future__ import annotations

import contextlib
import math
import select
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol

from nsq.gc_settings import tune_gc
from nsq.log import Logger

from .http import Answer, HttpConnection, LookupPages, LookupState, NsqdPages
from .nsqd import NsqdConnection
from .publishes import headers_of
from .reports import ChannelState, StoredMessage
from .state import ClusterState, NodeState, Partition, Refusal

log = Logger("nsq.testing")

_HOST = "127.0.0.1"
_CHUNK = 256 * 1024
_BACKLOG = 1024
#: How often timeouts, heartbeats and waiting publishes are looked at.
_TICK = 0.02
#: The same numbers for epoll and poll.
_READ, _WRITE = select.POLLIN, select.POLLOUT


class Conversation(Protocol):
    """One side of a connection: bytes in, ``out`` has the bytes to send."""

    out: list[bytes]
    closing: bool

    def feed(self, data: bytes, now: float) -> None: ...

    def tick(self, now: float) -> None: ...

    def closed(self) -> None: ...


class Peer:
    """A connection that was accepted."""

    def __init__(self, sock: socket.socket, program: Program, server: Server) -> None:
        self.conversation: Conversation
        self._sock = sock
        self._program = program
        self._server = server
        self._unsent = b""
        self._waits_to_send = False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ready(self, events: int) -> None:
        if events != _WRITE:
            try:
                size = self._sock.recv_into(self._server.chunk)
            except BlockingIOError:
                return
            except OSError:
                size = 0
            if not size:
                self.close()
                return
            try:
                self.conversation.feed(bytes(self._server.chunk[:size]), time.monotonic())
            except Exception:
                log.exception("the cluster closes a connection that sent invalid bytes")
                self.close()
                return
        self._server.touched.add(self)

    def touch(self) -> None:
        self._server.touched.add(self)

    def tick(self, now: float) -> None:
        self.conversation.tick(now)
        if self.conversation.out or self.conversation.closing:
            self.touch()

    def flush(self) -> None:
        conversation = self.conversation
        if conversation.out:
            self._unsent += b"".join(conversation.out)
            conversation.out.clear()
        if self._unsent and not self._program.stalled:
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except BlockingIOError:
                pass
            except OSError:
                self.close()
                return
            if bool(self._unsent) != self._waits_to_send:
                self.watch()
        if conversation.closing and not self._unsent and not self._program.stalled:
            self.close()

    def watch(self) -> None:
        self._waits_to_send = bool(self._unsent)
        events = _READ | (_WRITE if self._unsent else 0)
        self._server.watch(self._sock, 0 if self._program.stalled else events, self.ready)

    def close(self, *, reset: bool = False) -> None:
        if self in self._program.peers:
            self._program.peers.discard(self)
            self._server.touched.discard(self)
            self._server.watch(self._sock, 0, self.ready)
            if reset:
                with contextlib.suppress(OSError):
                    self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self._sock.close()
            self.conversation.closed()


class Program:
    """A program of the cluster: its ports, which it keeps for good, and its connections."""

    def __init__(self, server: Server, converse: list[Callable[[Peer], Conversation]]) -> None:
        self.peers: set[Peer] = set()
        self.stalled = False
        self.addresses: list[tuple[str, int]] = []
        self._server = server
        self._converse = converse
        self._keepers: list[socket.socket] = []  # bound, never listening: they reserve the ports
        self._listeners: list[socket.socket] = []
        for _ in converse:
            keeper = _bound((_HOST, 0))
            self._keepers.append(keeper)
            self.addresses.append(keeper.getsockname())

    def start(self) -> None:
        for address, converse in zip(self.addresses, self._converse, strict=True):
            listener = _bound(address)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            self._listeners.append(listener)
            self._server.watch(listener, _READ, self._acceptor(listener, converse))

    def stop(self) -> None:
        """Close every port and connection at once, as the death of a process does."""
        for listener in self._listeners:
            self._server.watch(listener, 0, lambda _: None)
            listener.close()
        self._listeners.clear()
        self.stalled = False
        for peer in list(self.peers):
            peer.close()

    def stall(self, *, stalled: bool) -> None:
        """Stop to read, write and accept, or go on; the system still accepts connections meanwhile."""
        self.stalled = stalled
        for listener, converse in zip(self._listeners, self._converse, strict=True):
            events = 0 if stalled else _READ
            self._server.watch(listener, events, self._acceptor(listener, converse))
        for peer in list(self.peers):
            peer.watch()
            peer.touch()

    def tick(self, now: float) -> None:
        if not self.stalled:
            for peer in list(self.peers):
                peer.tick(now)

    def close(self) -> None:
        self.stop()
        for keeper in self._keepers:
            keeper.close()

    def _acceptor(
        self, listener: socket.socket, converse: Callable[[Peer], Conversation]
    ) -> Callable[[int], None]:
        def accept(_: int) -> None:
            with contextlib.suppress(OSError):
                peer = Peer(listener.accept()[0], self, self._server)
                peer.conversation = converse(peer)
                self.peers.add(peer)
                self._server.changed = True
                peer.watch()

        return accept


class Poll:
    """epoll or, where that is missing, poll. The module ``selectors`` takes twice as long."""

    def __init__(self) -> None:
        if hasattr(select, "epoll"):
            poll: Any = select.epoll()
            self.close, self._unit = poll.close, 1.0
        else:
            poll = select.poll()
            self.close, self._unit = lambda: None, 1000.0
        self.register, self.modify, self.unregister = poll.register, poll.modify, poll.unregister
        self._poll = poll.poll

    def wait(self, seconds: float) -> list[tuple[int, int]]:
        """Return descriptors and what they are ready for, at the latest after this time."""
        timeout = None if seconds == math.inf else max(0.0, seconds) * self._unit
        ready: list[tuple[int, int]] = self._poll(timeout)
        return ready


class Server:
    """The event loop, and what a test can do to the cluster: every public method below ``run``."""

    def __init__(self, control: Connection, *, nodes: int, lookups: int, **options: Any) -> None:
        self.touched: set[Peer] = set()
        self.chunk = memoryview(bytearray(_CHUNK))  # a new one for each read would cost more than the read
        self._control = control
        self._cluster = ClusterState(nodes, **options)
        self._poll = Poll()
        self._watched: dict[int, tuple[int, Callable[[int], None]]] = {}  # by descriptor
        self._filled: set[Partition] = set()  # their channels may have something to deliver
        self._lookups = [LookupState(index) for index in range(lookups)]
        self._pages = [
            LookupPages(self._cluster, state, self._lookups, self._node_address, self._lookup_address)
            for state in self._lookups
        ]
        self._nodes = [self._node_program(node) for node in self._cluster.nodes]
        self._lookup_programs = [self._lookup_program(page) for page in self._pages]
        self._ended = False
        self.changed = False  # there may be something to do at another time than known

    def run(self) -> None:
        programs = [*self._nodes, *self._lookup_programs]
        self._watch(self._control.fileno(), _READ, self._obey)
        try:
            for program in programs:
                program.start()
            self._loop(programs)
        finally:
            for program in programs:
                program.close()
            self._poll.close()
            self._control.close()

    def _loop(self, programs: list[Program]) -> None:
        watched, wait, next_tick, due = self._watched, self._poll.wait, 0.0, math.inf
        while not self._ended:
            for descriptor, events in wait(min(next_tick, due) - time.monotonic()):
                known = watched.get(descriptor)
                if known is not None:  # an earlier callback may have closed it
                    known[1](events)
            now = time.monotonic()
            if now >= min(next_tick, due) or self.changed:
                self.changed = False
                due = self._cluster.tick(now)
                self._tick(now, programs)
                next_tick = now + _TICK if any(program.peers for program in programs) else math.inf
            if self._filled:
                self._deliver(now)
            while self.touched:
                self.touched.pop().flush()

    def watch(self, sock: socket.socket, events: int, ready: Callable[[int], None]) -> None:
        """Call ``ready`` when the socket is ready for these events; 0 stops that."""
        self._watch(sock.fileno(), events, ready)

    def _watch(self, descriptor: int, events: int, ready: Callable[[int], None]) -> None:
        known = self._watched.get(descriptor)
        if not events:
            if known is not None:
                del self._watched[descriptor]
                self._poll.unregister(descriptor)
            return
        self._watched[descriptor] = events, ready
        if known is None:
            self._poll.register(descriptor, events)
        elif known[0] != events:
            self._poll.modify(descriptor, events)

    def _tick(self, now: float, programs: list[Program]) -> None:
        for program in programs:
            program.tick(now)
        for topic in self._cluster.topics.values():
            for partition in topic.partitions:
                for channel in partition.channels.values():
                    if channel.tick(now):
                        self._filled.add(partition)

    def _deliver(self, now: float) -> None:
        for partition in self._filled:
            leader = partition.leader
            if leader is None or self._cluster.nodes[leader].responsive:
                for channel in partition.channels.values():
                    channel.deliver(now)
        self._filled.clear()

    def _node_program(self, node: NodeState) -> Program:
        def talk(peer: Peer) -> Conversation:
            return NsqdConnection(self._cluster, node, peer.touch, self._filled.add)

        pages = NsqdPages(self._cluster, node, self._filled.add, self._node_address)
        return Program(self, [talk, lambda _: HttpConnection(pages.handle)])

    def _lookup_program(self, pages: LookupPages) -> Program:
        return Program(self, [lambda _: HttpConnection(pages.handle)])

    def _node_address(self, index: int) -> tuple[str, int, int]:
        tcp, http = self._nodes[index].addresses
        return tcp[0], tcp[1], http[1]

    def _lookup_address(self, index: int) -> tuple[str, int]:
        return self._lookup_programs[index].addresses[0]

    def _obey(self, _: int) -> None:
        self.changed = True
        try:
            number, name, args, options = self._control.recv()
        except (EOFError, OSError):  # the test is gone
            self._ended = True
            return
        try:
            answer = (number, True, getattr(self, name)(*args, **options))
        except Exception as error:
            answer = (number, False, error)
        with contextlib.suppress(OSError):
            self._control.send(answer)

    # Control

    def end(self) -> None:
        self._ended = True

    def addresses(self) -> tuple[list[tuple[str, str]], list[str]]:
        """Return TCP and HTTP address of each node, and the HTTP address of each nsqlookupd."""
        nodes = [(_shown(tcp), _shown(http)) for tcp, http in (each.addresses for each in self._nodes)]
        return nodes, [_shown(program.addresses[0]) for program in self._lookup_programs]

    def create_topic(self, name: str, **options: Any) -> None:
        self._cluster.create_topic(name, **options)

    def add_partitions(self, name: str, count: int) -> None:
        self._cluster.add_partitions(name, count)

    def delete_topic(self, name: str) -> None:
        self._cluster.delete_topic(name)

    def create_channel(self, topic: str, channel: str) -> None:
        self._cluster.create_channel(topic, channel)

    def leader(self, topic: str, partition: int) -> int | None:
        return self._cluster.partition(topic, partition).leader

    def is_writable(self, topic: str) -> bool:
        return all(each.writable_at >= 0 for each in self._cluster.topic(topic).partitions)

    def begin_move(self, topic: str, partition: int, to: int | None) -> int:
        return self._cluster.begin_move(topic, partition, to)

    def end_move(self, topic: str, partition: int, to: int) -> None:
        self._cluster.end_move(topic, partition, to)

    def block(self, topic: str, partition: int, seconds: float | None) -> int | None:
        return self._cluster.block(topic, partition, seconds)

    def messages(self, topic: str, partition: int) -> list[StoredMessage]:
        return [
            StoredMessage(
                stored.body,
                int.from_bytes(stored.id[:8], "big"),
                int.from_bytes(stored.id[8:], "big"),
                stored.offset,
                stored.size,
                headers_of(stored.ext),
                stored.timestamp,
            )
            for stored in self._cluster.partition(topic, partition).log
        ]

    def channel(self, topic: str, partition: int, name: str) -> ChannelState:
        channel = self._cluster.partition(topic, partition).channels.get(name)
        if channel is None:
            return ChannelState(0, 0, 0, 0)
        return ChannelState(channel.depth, channel.in_flight, channel.finished, len(channel.subscribers))

    def seek(self, topic: str, partition: int, channel: str, position: int) -> None:
        found = self._cluster.partition(topic, partition)
        found.channel(channel, first_twice=False).seek(position)
        self._filled.add(found)

    def node(self, index: int, action: str) -> None:
        """Kill, restart, stall or resume a node."""
        node, program = self._cluster.nodes[index], self._nodes[index]
        if _act(node, program, action):
            self._cluster.failed(node, time.monotonic())
        else:
            self._cluster.recovered(node)
        self._filled.update(each for topic in self._cluster.topics.values() for each in topic.partitions)

    def refuse(self, index: int, verb: str, answer: bytes, times: int, close: bool) -> None:
        self._cluster.nodes[index].refusals += [Refusal(verb, answer, close)] * times

    def received(self, index: int) -> dict[str, int]:
        return dict(self._cluster.nodes[index].received)

    def connections(self, index: int) -> int:
        peers = self._nodes[index].peers
        return sum(isinstance(peer.conversation, NsqdConnection) for peer in peers)

    def drop_connections(self, index: int) -> None:
        for peer in list(self._nodes[index].peers):
            peer.close(reset=True)

    def disable_writes(self, index: int, kind: str) -> None:
        self._cluster.nodes[index].write_disabled = kind

    def lookup(self, index: int, action: str) -> None:
        """Kill, restart, stall or resume an nsqlookupd."""
        state, program = self._lookups[index], self._lookup_programs[index]
        state.lost = _act(state, program, action) and any(
            not other.lost for other in self._lookups if other is not state
        )

    def freeze_lookup(self, index: int, frozen: bool) -> None:
        if frozen:
            self._pages[index].freeze()
        else:
            self._lookups[index].frozen = None

    def claim(self, index: int, topic: str, partition: int, node: int | None) -> None:
        self._lookups[index].claims[topic, partition] = node

    def answer(self, index: int, path: str, answer: Answer) -> None:
        self._lookups[index].answers[path] = answer

    def tell_the_truth(self, index: int) -> None:
        state = self._lookups[index]
        state.claims.clear()
        state.answers.clear()
        state.frozen = None


def _act(state: NodeState | LookupState, program: Program, action: str) -> bool:
    """Kill, restart, stall or resume a program; return whether it has failed by that."""
    if action == "kill":
        program.stop()
        state.running = state.stalled = False
    elif action == "restart":
        if state.running:
            program.stop()
        program.start()
        state.running, state.stalled = True, False
    elif state.running:
        program.stall(stalled=action == "stall")
        state.stalled = action == "stall"
    return not state.running or state.stalled


def _bound(address: tuple[str, int]) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address)
    return sock


def _shown(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def main(descriptor: int) -> None:
    """Serve in a process of its own, controlled through the inherited descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test decides when this ends
    tune_gc()
    control = Connection(descriptor)
    Server(control, **control.recv()).run()
