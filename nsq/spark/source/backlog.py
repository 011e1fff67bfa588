"""How much of the topics still waits in the nsqds for one channel, when a run with trigger(availableNow=True)
has read what was there when it began, and the thread that asks without keeping Spark waiting.

Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from nsq.errors import NsqError
from nsq.http.nsqd import NsqdApi, NsqdStats, TopicStats
from nsq.http.nsqlookupd import NsqlookupdApi
from nsq.spark import lookups
from nsq.spark.source.options import SourceOptions
from nsq.transport.tls import context_of

log = logging.getLogger("nsq.spark.source")

_TIMEOUT = 3.0


@dataclass(frozen=True)
class Backlog:
    """The sum over the nsqds that answered, ``asked`` of them; ``faults`` say why others did not.

    ``depth`` counts messages that wait, ``in_flight`` those that clients hold, ours included,
    ``deferred`` what comes later. ``received`` is how much our own receivers had received by then.
    """

    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    paused: bool = False
    asked: int = 0
    faults: tuple[str, ...] = ()
    received: int = 0

    def unreceived(self, received: int) -> int:
        """What is due and not received yet, now that so much is: answers of nsqds are old when they are used.
        What was published since they were asked is not known.
        """
        return max(0, self.depth + self.in_flight - (received - self.received))

    @property
    def silence(self) -> str:
        """Why no nsqd has answered; empty when one has, or when none is known."""
        return "" if self.asked else "; ".join(self.faults)

    def waiting(self, with_held: bool) -> int:
        """Messages that are to come; ``with_held``: also those that come only when others give them back."""
        return self.depth + (self.in_flight + self.deferred if with_held else 0)


def measure(options: SourceOptions) -> Backlog:
    """Ask all of them, one after the other; never raises."""
    having = lookups.nodes if options.topics_pattern else lookups.nodes_of(options.named_topics)
    listed, faults = lookups.ask_all(options.lookupd, options.config, having)
    counted = []
    for address in dict.fromkeys([*_own_http_addresses(options), *(http for _, http in listed)]):
        try:
            api = NsqdApi(address, timeout=_TIMEOUT, tls=context_of(options.config))
            stats = api.stats(options.topic, include_clients=False)  # without one, of all topics
        except NsqError as error:
            faults.append(error)
        else:
            counted.append(counts(stats, options.wants, options.channel))
    return added(counted, map(str, faults))


def counts(stats: NsqdStats, wants: Callable[[str], bool], channel: str) -> Backlog:
    """What one nsqd says of the topics that are wanted."""
    found = [_of_topic(topic, channel) for topic in stats["topics"] if wants(topic["topic_name"])]
    return dataclasses.replace(added(found), asked=1)


def _of_topic(topic: TopicStats, channel: str) -> Backlog:
    # What is still in the topic will be in the channel.
    depth, paused = topic["depth"], topic["paused"]
    for each in topic["channels"]:
        if each["channel_name"] == channel:
            return Backlog(
                depth=depth + each["depth"],
                in_flight=each["in_flight_count"],
                deferred=each["deferred_count"],
                paused=paused or each["paused"],
            )
    # A topic gives what it holds to its first channel, which ours will be, and keeps nothing for others.
    return Backlog(depth=depth, paused=paused)


def added(parts: Iterable[Backlog], faults: Iterable[str] = ()) -> Backlog:
    listed = list(parts)
    return Backlog(
        depth=sum(part.depth for part in listed),
        in_flight=sum(part.in_flight for part in listed),
        deferred=sum(part.deferred for part in listed),
        paused=bool(listed) and all(part.paused for part in listed),
        asked=len(listed),
        faults=tuple(faults),
    )


def next_port(address: str) -> str:
    """``host:4151`` for ``host:4150``."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return address  # a host alone has the usual ports
    return f"{host}:{int(port) + 1}"


def _own_http_addresses(options: SourceOptions) -> list[str]:
    """Of the nsqds that are given by name."""
    return list(options.nsqd_http or map(next_port, options.nsqd))


def topics(options: SourceOptions) -> list[str]:
    """All that there are and that ``topicsPattern`` chooses. Raises NsqError when no server tells."""
    listed, faults = lookups.ask_all(options.lookupd, options.config, NsqlookupdApi.topics)
    found = set(listed)
    for address in _own_http_addresses(options):
        try:
            api = NsqdApi(address, timeout=_TIMEOUT, tls=context_of(options.config))
            found |= {topic["topic_name"] for topic in api.stats(include_clients=False)["topics"]}
        except NsqError as error:
            faults.append(error)
    if faults and not found:
        raise NsqError(
            f"no topics are known for topicsPattern={options.topics_pattern}: {'; '.join(map(str, faults))}"
        )
    return sorted(topic for topic in found if options.wants(topic))


# The end of a run that reads what there is


class AvailableNowTarget:
    """So many rows, whichever they are: a queue has no end that could be remembered, and gives new messages
    out beside old ones. A producer that goes on therefore cannot keep the run from ending, and neither can
    messages that another client took, which never come.
    """

    def __init__(self, rows: int | None, now: float, *, idle: float, timeout: float, with_held: bool) -> None:
        self.rows = rows
        self.taken = 0
        self._began = now
        self._idle = idle
        self._timeout = timeout
        self._with_held = with_held
        self._seen = 0
        self._quiet_since = now

    @property
    def left(self) -> int | None:
        """None where no nsqd told how many there are: then the run ends when nothing comes any more."""
        return None if self.rows is None else max(0, self.rows - self.taken)

    def look(self, now: float, pending: int, ready: bool) -> None:
        """``pending`` rows have come and are not taken yet. Nothing is missed before we are ``ready``."""
        seen = self.taken + pending
        if seen != self._seen or not ready:
            self._seen, self._quiet_since = seen, now

    def verdict(self, now: float, pending: int, backlog: Backlog | None, measured: float) -> str:
        """Why the run is over; empty while it is not. At ``measured`` nsqd was asked for its ``backlog``."""
        if self.left == 0:
            return f"read all {self.rows} rows that there were"
        missing = f"read {self.taken} rows" + (f", {self.left} did not come" if self.rows else "")
        if self._timeout and now - self._began >= self._timeout:
            return f"{missing} within availableNowTimeout={self._timeout:g}s{_where(backlog)}"
        if pending:
            return ""  # they become a batch first
        if now - self._quiet_since < self._idle or self._may_come(backlog, measured):
            return ""
        return f"{missing}: nothing came for {now - self._quiet_since:.1f} s{_where(backlog)}"

    def _may_come(self, backlog: Backlog | None, measured: float) -> bool:
        if backlog is None:
            return False
        if backlog.asked and measured < self._quiet_since:
            return True  # that is old news; the next answer decides
        return not backlog.paused and backlog.waiting(self._with_held) > 0


def _where(backlog: Backlog | None) -> str:
    if backlog is None or not backlog.asked:
        return "; no nsqd told its depth"
    paused = ", the channel is paused" if backlog.paused else ""
    held = f"{backlog.in_flight} in flight, {backlog.deferred} deferred"
    return f"; nsqd has {backlog.depth} waiting, {held}{paused}"


# Asking in a thread of its own


T = TypeVar("T")

_JOIN = 5.0


class Reading(NamedTuple, Generic[T]):
    """``began`` is when the asking began: nothing that happened later need be in it."""

    value: T
    began: float


class Poller(Generic[T]):
    """Asks once per ``pause``, as long as ``look`` is called; ``look`` gives the last answer.

    After a while without calls the last answer is old.
    """

    def __init__(self, name: str, ask: Callable[[], T], pause: float, clock: Callable[[], float]) -> None:
        self._name = name
        self._ask = ask
        self._pause = pause
        self._clock = clock
        self._wake = threading.Condition()
        self._wanted = False
        self._ended = False
        self._thread: threading.Thread | None = None
        self._last: Reading[T] | None = None

    def look(self) -> Reading[T] | None:
        """Returns at once, None before the first answer. The first call starts the thread."""
        return self.wait(0.0)

    def wait(self, seconds: float) -> Reading[T] | None:
        """The same, but the first answer may take that long."""
        with self._wake:
            if self._thread is None and not self._ended:
                # A daemon: a server that does not answer must not keep a process alive whose query is over.
                self._thread = threading.Thread(target=self._run, name=f"nsq-spark-{self._name}", daemon=True)
                self._thread.start()
            self._wanted = True
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._last is not None or self._ended, seconds)
            return self._last

    def stop(self) -> None:
        with self._wake:
            self._ended = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(_JOIN)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._wanted or self._ended)
                self._wanted = False
                if self._ended:
                    return
            began = self._clock()
            try:
                value = self._ask()
            except Exception:
                log.exception("cannot find out about %s", self._name)
            else:
                with self._wake:
                    self._last = Reading(value, began)
                    self._wake.notify_all()
            with self._wake:
                self._wake.wait_for(lambda: self._ended, self._pause)
