"""PartitionedCluster: the double that tests start, and the handles of its nodes and nsqlookupds."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import nsq
from nsq.errors import UsageError

from ..daemons.errors import DaemonFailed
from .channel import ChannelState, StoredMessage

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_TIMEOUT = 30.0
_PAUSE = 0.005


class PartitionedCluster:
    """A test double of the partitioned NSQ: nsqds and nsqlookupds that speak its protocol.

        with PartitionedCluster(nodes=3) as cluster:
            cluster.create_topic("orders", partitions=4, ordered=True, channels=["billing"])
            producer = nsq.Producer(nsqlookupd=cluster.lookup_addresses)
            ...
            cluster.move_leader("orders", 0)
            cluster.nodes[1].kill()

    It is no server: messages are in memory only, all replicas of a partition share them, and what depends on
    the timing of several real machines is simplified. By default it runs in a thread; ``process=True`` runs
    it in a child process, which leaves the interpreter to the client. Tests that fork need that, because a
    forked child has copies of a thread's sockets, and keeps the ports of a killed node open.

    Its times are short. A real cluster takes about 25 s to elect the leader after a node has died
    (``election_time``), and 12 s until a publish that lacks its quorum is refused (``quorum_timeout``).
    As in the real one, the first ordered subscription to a backlog gets its first message twice: after
    that message's FIN, or with ``first_twice="at once"`` before it. Without ``coordinator`` nodes stand
    alone, and nothing moves.
    """

    def __init__(
        self,
        *,
        nodes: int = 3,
        lookups: int = 2,
        process: bool = False,
        coordinator: bool = True,
        first_twice: bool | Literal["at once"] = True,
        election_time: float = 0.3,
        quorum_timeout: float = 1.5,
        move_time: float = 0.02,
    ) -> None:
        if nodes < 1 or lookups < 1:
            raise UsageError(f"nodes={nodes}, lookups={lookups}: a cluster has at least one of each")
        self._settings: dict[str, Any] = {
            "nodes": nodes,
            "lookups": lookups,
            "coordinator": coordinator,
            "first_twice": first_twice,
            "election_time": election_time,
            "quorum_timeout": quorum_timeout,
        }
        self._process = process
        self._move_time = move_time
        self._control: Connection | None = None  # our end of the pipe, while it runs
        self._join: Callable[[], None] = lambda: None  # waits for the end
        self._numbers = itertools.count()  # of requests
        self._lock = threading.Lock()  # one request at a time is under way
        #: The nsqds, after the start.
        self.nodes: list[Node] = []
        #: The nsqlookupds, after the start.
        self.lookups: list[Lookup] = []

    # Lifetime

    def start(self) -> Self:
        from multiprocessing import Pipe

        if self._control is not None:
            raise UsageError("this cluster is running already")
        here, there = Pipe()
        try:
            self._join = (_serve_in_process if self._process else _serve_in_thread)(there)
        except BaseException:
            here.close()
            there.close()
            raise
        self._control = here
        try:
            here.send(self._settings)
            self.nodes = [Node(self, index) for index in range(self._settings["nodes"])]
            self.lookups = [Lookup(self, index) for index in range(self._settings["lookups"])]
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End everything and forget all messages; a second call does nothing."""
        control, self._control = self._control, None
        if control is not None:
            with contextlib.suppress(OSError):
                control.send(None)  # a forked child may hold the pipe open
            control.close()
            self._join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def lookup_addresses(self) -> list[str]:
        """The HTTP addresses of all nsqlookupds, for ``nsqlookupd=``."""
        return [lookup.http_address for lookup in self.lookups]

    # Topics

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        ordered: bool = False,
        extended: bool = False,
        replicas: int | None = None,
        placement: Sequence[Sequence[int]] | None = None,
        channels: Iterable[str] = (),
        multi_part: bool = False,
        registered_channels_only: bool = False,
        writable_after: float = 0.0,
    ) -> None:
        """Create a topic whose partitions are led by the nodes in turn.

        Each has as many replicas as there are nodes, at most three, unless given; it takes publishes while
        more than half of them are alive. ``placement`` has instead for each partition the numbers of its
        nodes, the leader first. A channel starts at the end of what is stored when it is created, by its
        first consumer if not here. The nsqlookupds know the topic at once, but no partition has a leader
        before ``writable_after`` seconds. ``multi_part`` is only shown to clients.
        """
        count = min(3, len(self.nodes)) if replicas is None else replicas
        self._call(
            "create_topic",
            name,
            partitions=partitions,
            replicas=count if placement is None else len(placement[0]),
            placement=placement,
            ordered=ordered,
            extended=extended,
            multi_part=multi_part,
            channels=list(channels),
            registered_channels_only=registered_channels_only,
            writable_after=writable_after,
        )

    def add_partitions(self, topic: str, count: int) -> None:
        self._call("add_partitions", topic, count)

    def delete_topic(self, topic: str) -> None:
        self._call("delete_topic", topic)

    def create_channel(self, topic: str, channel: str) -> None:
        self._call("create_channel", topic, channel)

    def leader(self, topic: str, partition: int) -> Node | None:
        """Return the node that leads a partition; None while no replica can."""
        leader = self._call("leader", topic, partition)
        return None if leader is None else self.nodes[leader]

    def move_leader(self, topic: str, partition: int, to: Node | int | None = None) -> Node:
        """Move a partition to another leader, by default to the next replica in sync; return it."""
        with self.moving_leader(topic, partition, to) as leader:
            time.sleep(self._move_time)
        return leader

    @contextmanager
    def moving_leader(self, topic: str, partition: int, to: Node | int | None = None) -> Iterator[Node]:
        """Move a leader at the end of the ``with`` block. Until then it is not writable."""
        wanted = to.index if isinstance(to, Node) else to
        leader: int = self._call("begin_move", topic, partition, wanted)
        try:
            yield self.nodes[leader]
        finally:
            self._call("end_move", topic, partition, leader)

    @contextmanager
    def blocked_partition(self, topic: str, partition: int, hold: float = 12.0) -> Iterator[Node | None]:
        """Within the ``with`` block a replica of the partition is stopped, and its leader waits for it.

        The leader holds the next publish, and everything behind it on the same connection, for ``hold``
        seconds; then it refuses this and all later publishes to the partition. Other partitions go on. At
        the end of the block the replica goes on, and publishes that are still held are stored.
        """
        leader = self._call("block", topic, partition, hold)
        try:
            yield None if leader is None else self.nodes[leader]
        finally:
            self._call("block", topic, partition, None)

    def wait_until_writable(self, topic: str, timeout: float = _TIMEOUT) -> None:
        """Wait until every partition of the topic takes publishes."""
        deadline = time.monotonic() + timeout
        while not self._call("is_writable", topic):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the topic {topic!r} was not writable within {timeout:g} s")
            time.sleep(_PAUSE)

    # What is stored

    def messages(self, topic: str, partition: int) -> list[StoredMessage]:
        """Return everything that was ever published to a partition."""
        stored: list[StoredMessage] = self._call("messages", topic, partition)
        return stored

    def channel(self, topic: str, partition: int, channel: str) -> ChannelState:
        """Return a channel's depth, and how many messages are in flight and were finished."""
        state: ChannelState = self._call("channel", topic, partition, channel)
        return state

    def seek(self, topic: str, partition: int, channel: str, message: int) -> None:
        """Let a channel continue at this message of the partition, counted from 0, whatever was finished."""
        self._call("seek", topic, partition, channel, message)

    def _call(self, name: str, *args: object, at: tuple[str, int] = ("cluster", 0), **options: object) -> Any:
        with self._lock:
            control, number, answered = self._control, next(self._numbers), -1
            if control is None:
                raise UsageError("this cluster is not running")
            try:
                control.send((number, at, name, args, options))
                while answered != number:  # a call that was interrupted has left its answer
                    if not control.poll(_TIMEOUT):
                        raise DaemonFailed(f"the cluster did not answer {name} within {_TIMEOUT:g} s")
                    answered, succeeded, answer = control.recv()
            except (EOFError, OSError) as error:
                raise DaemonFailed(f"the cluster has ended: {error!r}") from error
        if not succeeded:
            raise answer
        return answer


class Node:
    """One nsqd of the cluster. Its addresses stay after ``kill`` and ``restart``."""

    def __init__(self, cluster: PartitionedCluster, index: int) -> None:
        #: Its place in ``cluster.nodes``.
        self.index = index
        self._call = functools.partial(cluster._call, at=("nodes", index))
        #: ``host:port`` for clients, and for HTTP.
        self.tcp_address, self.http_address = self._call("addresses")

    def __repr__(self) -> str:
        return f"<Node {self.index} {self.tcp_address}>"

    def kill(self, *, lost_fins: int = 0) -> None:
        """Close its ports and connections at once. After the election time other nodes lead.

        They have not heard of the last ``lost_fins`` FINs of each channel that this node led: these messages
        come again, although later ones may be finished.
        """
        self._call("kill", lost_fins)

    def restart(self) -> None:
        """Start a killed node, or kill and start a running one; it catches up at once."""
        self._call("restart")

    def stall(self) -> None:
        """Stop to read and write, as a stopped process does; connections stay open."""
        self._call("stall")

    def resume(self) -> None:
        self._call("resume")

    def refuse(self, command: str, answer: str, times: int = 1) -> None:
        """Give this answer to the next commands: ``node.refuse("PUB", "E_PUB_FAILED pub timeout")``.

        The connection is closed afterwards if the real server closes it with such an error.
        """
        self._call("refuse", command, answer, times)

    def disable_writes(self, kind: str = "all") -> None:
        """Refuse publishes, ``"all"``, those to ``"ordered"`` topics, or none (``""``)."""
        self._call("disable_writes", kind)

    def drop_connections(self) -> None:
        """Reset every connection; the node goes on."""
        self._call("drop_connections")

    @property
    def received(self) -> dict[str, int]:
        """How often each command was received."""
        received: dict[str, int] = self._call("received")
        return received

    @property
    def connections(self) -> int:
        """The number of open connections to the TCP port."""
        count: int = self._call("connections")
        return count


class Lookup:
    """One nsqlookupd of the cluster."""

    def __init__(self, cluster: PartitionedCluster, index: int) -> None:
        #: Its place in ``cluster.lookups``.
        self.index = index
        self._call = functools.partial(cluster._call, at=("lookups", index))
        #: ``host:port``, for ``nsqlookupd=``.
        (self.http_address,) = self._call("addresses")

    def __repr__(self) -> str:
        return f"<Lookup {self.index} {self.http_address}>"

    def kill(self) -> None:
        self._call("kill")

    def restart(self) -> None:
        self._call("restart")

    def stall(self) -> None:
        """Stop to read and write; connections stay open."""
        self._call("stall")

    def resume(self) -> None:
        self._call("resume")

    def freeze(self) -> None:
        """Answer from now on with the leaders of this moment: it lags behind."""
        self._call("freeze")

    def claim(self, topic: str, partition: int, node: Node | None) -> None:
        """Answer from now on that this node, or none, is the leader, even if that is false."""
        self._call("claim", topic, partition, None if node is None else node.index)

    def answer(self, path: str, status: int, data: object) -> None:
        """Answer a path with this: ``lookup.answer("/listlookup", 404, "NOT_FOUND")``.

        ``data`` is the JSON without an envelope, the text of an error, or bytes that are sent as they are.
        """
        self._call("answer", path, status, data)

    def tell_the_truth(self) -> None:
        """End ``freeze``, ``claim`` and ``answer``."""
        self._call("tell_the_truth")


def _serve_in_thread(control: Connection) -> Callable[[], None]:
    """Serve in a thread; return how to wait for its end."""
    from .serving import serve

    thread = threading.Thread(target=serve, args=[control], name="nsq-partitioned-cluster", daemon=True)
    thread.start()

    def join() -> None:
        thread.join(_TIMEOUT)
        if thread.is_alive():
            raise DaemonFailed(f"the cluster did not end within {_TIMEOUT:g} s")

    return join


def _serve_in_process(control: Connection) -> Callable[[], None]:
    """Serve in a child process; return how to wait for its end."""
    root = str(Path(nsq.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    descriptor = control.fileno()
    process = subprocess.Popen(
        [sys.executable, "-c", f"from nsq.testing.partitioned.serving import main; main({descriptor})"],
        stdin=subprocess.DEVNULL,
        pass_fds=[descriptor],
        env={**os.environ, "PYTHONPATH": path},
    )
    control.close()

    def join() -> None:
        try:
            process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_TIMEOUT)

    return join
