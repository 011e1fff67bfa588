"""An nsqd in memory: the code of the real one, without sockets, files and an event loop.

    with MemoryNsqd(msg_timeout=0.5) as nsqd:
        producer = nsq.Producer(nsqd.tcp_address, transport=nsqd)

A client's write executes nsqd's code in the thread that writes, under the nsqd's one lock; what nsqd sends is
appended to the peer's buffer. A thread that starts with the first connection calls nsqd when time has passed:
messages time out, heartbeats are sent, deferred messages become due. So a signal handler must not wait for
nsqd, as ``Producer.publish`` does: it may have interrupted its thread in nsqd's code, which has the lock.

Here are the things that an event loop does for the daemon: ``_Clock`` has its timers, ``_Link`` and
``_ClientStream`` are its connections. Must not import aiohttp.
"""

from __future__ import annotations

import heapq
import io
import itertools
import json
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from nsq.daemons import COMPATIBLE_VERSION
from nsq.daemons.nsqd import stats
from nsq.daemons.nsqd.core.backlog import MemoryBacklog
from nsq.daemons.nsqd.core.bound import Bound
from nsq.daemons.nsqd.core.broker import Broker, InMemory
from nsq.daemons.nsqd.core.channel import Channel
from nsq.daemons.nsqd.core.deferred import Deferred
from nsq.daemons.nsqd.core.topic import Topic
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.session.session import Environment, Session
from nsq.daemons.serve.logs import DaemonLog
from nsq.errors import ConnectionLost, DialFailed, InvalidMessage, UsageError
from nsq.transport.base import Stream, WrappedStream
from nsq.transport.memory import MemoryPeer, MemoryStream
from nsq.wire.names import check_channel, check_topic, is_ephemeral

from .daemons.daemon import read_options

P = ParamSpec("P")
R = TypeVar("R")

#: The options that have a meaning without HTTP, TLS, auth servers, nsqlookupds, statsd and files.
OPTIONS = (
    "node_id", "log_level", "mem_queue_size", "max_channel_depth", "msg_timeout", "max_msg_timeout",
    "max_msg_size", "max_body_size", "max_total_body_size", "max_req_timeout", "max_defer_timeout",
    "max_heartbeat_interval", "max_rdy_count", "max_output_buffer_size", "output_buffer_timeout",
    "min_output_buffer_timeout", "max_output_buffer_timeout", "max_channel_consumers",
    "e2e_processing_latency_percentiles", "e2e_processing_latency_window_time", "deflate",
    "max_deflate_level", "snappy", "topology_region", "topology_zone", "experiments",
)  # fmt: skip

#: The default timeout of a test's waits, in seconds.
PATIENCE = 20.0
#: How long ``close`` waits for the thread; nsqd's code waits for nothing.
_LONGEST_CALL = 10.0

_numbers = itertools.count(1)
#: Each one that is not closed, by its address: as a transport, each reaches all of them.
_everyone: weakref.WeakValueDictionary[str, MemoryNsqd] = weakref.WeakValueDictionary()


class MemoryNsqd:
    """An nsqd in memory, and the transport to it: ``Producer(nsqd.tcp_address, transport=nsqd)``.

    It runs at once. Options are those of ``nsqd`` under their Python names, times in seconds. As a transport
    it also reaches every other MemoryNsqd of this process by its address. It has no HTTP, nsqlookupd, TLS,
    AUTH, disk or kill, and its network has no faults: for those use ``Nsqd``.
    """

    def __init__(self, **options: object) -> None:
        for name in options.keys() - set(OPTIONS):
            if name in NsqdOptions.__dataclass_fields__:
                raise UsageError(f"a MemoryNsqd has no option {name!r}: use nsq.testing.Nsqd for it")
        self._options: NsqdOptions = read_options(NsqdOptions, options, "nsqd")
        self.tcp_address = f"memory-{next(_numbers)}:4150"
        self._process = os.getpid()
        self._written = io.StringIO()
        self._log = DaemonLog.of(self._options, self._written)
        # Guards everything below and all of nsqd's state. Reentrant, for a signal handler that calls
        # ``publish`` or ``depth`` and has interrupted a call.
        self._lock = threading.RLock()
        self._busy = False  # whether a thread is in ``_run``
        self._call_ended = threading.Condition(self._lock)
        self._timers_changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._closed = False
        self._clock = _Clock(self._log, self._timers_changed)
        self._kept = _Kept(self._options.mem_queue_size)
        self._names: dict[str, list[str]] = {}  # topics and their channels while it is stopped
        self._clients = itertools.count(1)
        self._links: dict[_Link, Session] = {}
        self._broker: Broker | None = None
        self._environment: Environment | None = None
        self._start_time = 0
        self.start()
        _everyone[self.tcp_address] = self

    # Lifetime.

    def start(self) -> None:
        """Start again after ``stop``, with the same address."""
        self._run(self._start)

    def stop(self, *, keep_data: bool = False) -> None:
        """Disconnect all clients, refuse dials until ``start``, and delete all topics; a second call does
        nothing. With ``keep_data=True`` messages stay, as on a real nsqd's disk.
        """
        self._run(self._stop, keep_data)

    def restart(self) -> None:
        """Stop and start with the same address and messages; those in flight will be delivered again."""
        self.stop(keep_data=True)
        self.start()

    def close(self) -> None:
        """Stop for good, and end the thread. A second call does nothing, nor one in a forked child."""
        if self._inherited:
            return
        self._run(self._close)
        _everyone.pop(self.tcp_address, None)
        if self._thread is not None:
            self._thread.join(_LONGEST_CALL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<MemoryNsqd {self.tcp_address}{'' if self.running else ', not running'}>"

    @property
    def running(self) -> bool:
        return self._broker is not None

    @property
    def log(self) -> str:
        """The whole log."""
        return self._written.getvalue()

    def _start(self) -> None:
        if self._closed:
            raise UsageError(f"{self.tcp_address} is closed: make another MemoryNsqd")
        if self._broker is not None:
            raise UsageError(f"{self.tcp_address} is running already")
        options, most = self._options, self._options.max_channel_depth
        broker = Broker(
            self._clock,
            node_id=options.node_id,
            backlogs=self._kept,
            bound=Bound(most, self._clock, lambda text: self._log.warning("%s", text)) if most else None,
            max_channel_consumers=options.max_channel_consumers,
            latency_percentiles=options.e2e_processing_latency_percentiles,
            latency_window=options.e2e_processing_latency_window_time,
        )
        for name, channels in self._names.items():
            topic = broker.topic(name)
            topic.pause(True)  # it must know all its channels before its messages flow
            for channel in channels:
                topic.channel(channel)
            topic.pause(False)
        self._broker = broker
        self._environment = Environment(options, broker, self._clock, self._log)
        self._start_time = int(time.time())

    def _stop(self, keep_data: bool) -> None:
        broker, self._broker = self._broker, None
        if broker is None:
            return
        for link, session in list(self._links.items()):
            session.close()
            self._lost(link)
        for topic in list(broker.topics.values()):
            if not keep_data or is_ephemeral(topic.name):
                broker.delete_topic(topic.name)
                continue
            for name in filter(is_ephemeral, list(topic.channels)):
                broker.delete_channel(topic, name)
        self._names = {topic.name: list(topic.channels) for topic in broker.topics.values()}
        for backlog, taken in broker.close():
            backlog.put_first(taken)

    def _close(self) -> None:
        self._stop(keep_data=False)
        self._closed = True
        self._timers_changed.notify_all()

    # The transport.

    def connect(self, address: str, *, timeout: float) -> Stream:
        """Connect to the MemoryNsqd that has this address."""
        nsqd = _everyone.get(address)
        if nsqd is None:
            raise DialFailed(
                f"cannot connect to {address}: no MemoryNsqd has this address (any more); as a transport, "
                "a MemoryNsqd reaches only those of its own process"
            )
        if nsqd._inherited:
            raise DialFailed(f"cannot connect to {address}: {nsqd._refusal}")
        return nsqd._run(nsqd._accept)

    def _accept(self) -> Stream:
        if self._environment is None or self._broker is None:
            raise DialFailed(f"cannot connect to {self.tcp_address}: Connection refused, it is stopped")
        if self._thread is None:
            name = f"nsqd-{self.tcp_address}"
            thread = threading.Thread(target=self._keep_time, name=name, daemon=True)
            thread.start()
            self._thread = thread
        link = _Link(self.tcp_address)
        session = Session(self._environment, link, f"memory:{next(self._clients)}")
        self._log.info("TCP: new client(%s)", session.remote_address)
        self._links[link] = session
        self._environment.connections += 1
        return _ClientStream(self, link)

    def _receive(self, link: _Link, data: bytes) -> None:
        session = self._links.get(link)
        if session is None or link.finished:
            return
        try:
            session.receive(data)
        except Exception as error:
            # A bug in nsqd costs this client its connection, and no other client.
            self._log.error("client(%s) dropped", session.remote_address, exc=error)
            link.fail(ConnectionLost(f"{self.tcp_address}: nsqd has failed: {error!r}"))
            self._lost(link)

    def _lost(self, link: _Link) -> None:
        session = self._links.pop(link, None)
        if session is not None:
            if self._environment is not None:
                self._environment.connections -= 1
            session.lost()
            self._log.info("client(%s) disconnected", session.remote_address)

    # nsqd's code runs here: in the threads of clients and tests, and in our own.

    @property
    def _inherited(self) -> bool:
        return os.getpid() != self._process

    @property
    def _refusal(self) -> str:
        return (
            f"the MemoryNsqd {self.tcp_address} is in the memory of process {self._process}, and this is "
            "another, forked one: use nsq.testing.Nsqd, or make a MemoryNsqd here"
        )

    def _run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Make one call, and then those that it has asked for."""
        if self._inherited:
            raise UsageError(self._refusal)
        with self._lock:
            outermost = not self._busy
            try:
                self._busy = True
                result = call(*args, **kwargs)
                if outermost:
                    self._clock.catch_up()
                return result
            finally:
                if outermost:
                    self._busy = False
                    self._call_ended.notify_all()

    def _keep_time(self) -> None:
        with self._timers_changed:
            while not self._closed:
                self._run(self._clock.call_due)
                self._timers_changed.wait(self._clock.seconds_left())

    # What a test does and sees.

    def create(self, topic: str, channel: str = "") -> None:
        """Create a topic, or a topic and a channel."""

        def make() -> None:
            made = self._running_broker.topic(topic)
            if channel:
                made.channel(channel)

        self._run_checked(make, topic, channel)

    def publish(self, topic: str, *bodies: bytes) -> None:
        """Publish messages without a client."""
        if not bodies:
            raise UsageError("publish takes at least one message after the topic")
        most = self._options.max_msg_size
        for body in bodies:
            if not isinstance(body, bytes) or not 0 < len(body) <= most:
                raise InvalidMessage(f"a message must be bytes, 1 to {most} of them, and is {body[:100]!r}")
        self._run_checked(lambda: self._running_broker.publish(topic, list(bodies)), topic)

    def depth(self, topic: str, channel: str = "") -> int:
        """Return how many messages wait in the channel, without those in flight or deferred.

        Without ``channel``: how many wait in the topic, because it has no channel yet; none if there is no
        such topic. A channel that does not exist is an error.
        """

        def count() -> int:
            queue = self._queue(topic, channel)
            return queue.depth if queue is not None else 0

        return self._run_checked(count, topic, channel)

    def bodies(self, topic: str, channel: str = "") -> list[bytes]:
        """Return the messages that ``depth`` counts, in their order."""

        def collect() -> list[bytes]:
            queue = self._queue(topic, channel)
            if queue is None:
                return []
            return [message.body for message in self._kept.backlog(topic, channel).in_memory]

        return self._run_checked(collect, topic, channel)

    def stats(self) -> dict[str, Any]:
        """Return what ``GET /stats?format=json`` of an nsqd returns, without the memory's figures."""

        def collect() -> bytes:
            wanted = stats.Filter()
            snapshot = stats.Snapshot(
                version=COMPATIBLE_VERSION,
                health="OK",
                start_time=self._start_time,
                topics=stats.topics(self._running_broker, wanted),
                memory=None,
                producers=stats.producers(self._links.values(), wanted),
            )
            return b"".join(stats.as_json(snapshot))

        found: dict[str, Any] = json.loads(self._run(collect))
        return found

    def release_deferred(self, count: int = 0, timeout: float = PATIENCE) -> None:
        """Deliver what is deferred or requeued with a delay now, as if its time had come.

        Waits until ``count`` messages are deferred: a handler's requeue reaches nsqd a moment later. Raises
        AssertionError if they are fewer after ``timeout`` seconds.
        """

        def deferred() -> int:
            topics = self._running_broker.topics.values()
            return sum(channel.deferred_count for topic in topics for channel in topic.channels.values())

        def release() -> None:
            for topic in self._running_broker.topics.values():
                for channel in topic.channels.values():
                    while channel.deferred_count:
                        channel.deferred.release(math.inf, channel.put_due)
                for message in self._kept.backlog(topic.name).in_memory:
                    message.due = 0.0  # it waits for the topic's first channel

        with self._lock:
            if not self._call_ended.wait_for(lambda: deferred() >= count, timeout):
                raise AssertionError(f"{deferred()} of {count} messages are deferred after {timeout:g} s")
            self._run(release)

    def _run_checked(self, call: Callable[[], R], topic: str, channel: str = "") -> R:
        check_topic(topic)
        if channel:
            check_channel(channel)
        return self._run(call)

    def _queue(self, topic: str, channel: str) -> Topic | Channel | None:
        found = self._running_broker.topics.get(topic)
        if not channel:
            return found
        channels = found.channels if found is not None else {}
        if channel not in channels:
            raise UsageError(f"topic {topic} has no channel {channel!r}; it has {sorted(channels) or 'none'}")
        return channels[channel]

    @property
    def _running_broker(self) -> Broker:
        if self._broker is None:
            raise UsageError(f"{self.tcp_address} is {'closed' if self._closed else 'stopped'}")
        return self._broker


class _Kept(InMemory):
    """Makes backlogs that a restart keeps: the next broker gets the same ones."""

    def __init__(self, mem_queue_size: int) -> None:
        super().__init__(mem_queue_size)
        self._backlogs: dict[tuple[str, str], MemoryBacklog] = {}
        self._deferred: dict[tuple[str, str], Deferred] = {}

    def backlog(self, topic: str, channel: str = "") -> MemoryBacklog:
        return self._backlogs.setdefault((topic, channel), super().backlog(topic, channel))

    def deferred(self, topic: str, channel: str) -> Deferred:
        return self._deferred.setdefault((topic, channel), super().deferred(topic, channel))


class _Link(MemoryPeer):
    """nsqd's end of a connection. It is never full: memory takes what nsqd sends."""

    full = congested = False
    finished = False

    def write(self, data: bytes) -> None:
        self.send(data)

    def pause_reading(self) -> None:
        """Do nothing: the session keeps the bytes that come meanwhile."""

    def resume_reading(self) -> None:
        pass

    def finish(self) -> None:
        self.finished = True
        self.end()


class _ClientStream(WrappedStream):
    """The client's end. A forked child cannot use the one of its parent."""

    def __init__(self, nsqd: MemoryNsqd, link: _Link) -> None:
        super().__init__(MemoryStream(link))
        self._nsqd = nsqd
        self._link = link

    def write(self, data: bytes, timeout: float) -> None:
        if self._link.closed:
            raise ConnectionLost(f"{self.peer}: the connection was closed on this side")
        if self._nsqd._inherited:
            raise ConnectionLost(f"{self.peer}: {self._nsqd._refusal}")
        self._nsqd._run(self._nsqd._receive, self._link, bytes(data))

    def close(self) -> None:
        super().close()
        if not self._nsqd._inherited:
            self._nsqd._run(self._nsqd._lost, self._link)


class _Timer:
    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class _Clock:
    """Real time for nsqd's code. All methods are called with the nsqd's lock, which ``changed`` has."""

    def __init__(self, log: DaemonLog, changed: threading.Condition) -> None:
        self.now = time.monotonic
        self.time_ns = time.time_ns
        self._log = log
        self._changed = changed
        self._timers: list[tuple[float, int, _Timer]] = []  # a heap
        self._sequence = itertools.count()
        self._soon: deque[Callable[[], None]] = deque()
        self.call_soon = self._soon.append

    def call_at(self, when: float, action: Callable[[], None]) -> _Timer:
        timer = _Timer(action)
        heapq.heappush(self._timers, (when, next(self._sequence), timer))
        if self._timers[0][2] is timer:
            self._changed.notify_all()
        return timer

    def catch_up(self) -> None:
        """Make the calls that were asked for with ``call_soon``."""
        while self._soon:
            self._call(self._soon.popleft())

    def call_due(self) -> None:
        while self._timers and self._timers[0][0] <= self.now():
            timer = heapq.heappop(self._timers)[2]
            if timer.action is not None:
                self._call(timer.action)

    def seconds_left(self) -> float | None:
        """Return the seconds until the next timer; None if there is none."""
        while self._timers and self._timers[0][2].action is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return min(max(self._timers[0][0] - self.now(), 0.0), threading.TIMEOUT_MAX)

    def _call(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # as an event loop does: a bug must not end the thread
            self._log.error("nsqd: %r failed", action, exc=error)
