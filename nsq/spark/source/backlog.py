"""How much of the topics still waits in the nsqds for one channel, when a run with trigger(availableNow=True)
has read what was there when it began, and the thread that asks without keeping Spark waiting.

Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from nsq.errors import NsqError
from nsq.http.nsqd import NsqdStats, TopicStats
from nsq.http.nsqlookupd import NsqlookupdApi
from nsq.spark import lookups
from nsq.spark.source.options import SourceOptions

log = logging.getLogger("nsq.spark.source")

T = TypeVar("T")

_TIMEOUT = 3.0
_JOIN = 5.0


@dataclass(frozen=True)
class Backlog:
    """The sum over the nsqds that answered, ``asked`` of them; ``faults`` say why others did not.

    ``depth`` counts messages that wait, ``in_flight`` those that clients hold, ours included,
    ``deferred`` what comes later. ``received`` is how much our own receivers had received by then. ``began``
    is when the asking began: nothing that happened later need be in it.
    """

    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    paused: bool = False
    asked: int = 0
    faults: tuple[str, ...] = ()
    received: int = 0
    began: float = 0.0

    def unreceived(self, received: int) -> int:
        """What is due and not received yet, now that so much is: answers of nsqds are old when they are used.
        What was published since they were asked is not known.
        """
        return max(0, self.depth + self.in_flight - (received - self.received))

    def waiting(self, with_held: bool) -> int:
        """Messages that are to come; ``with_held``: also those that come only when others give them back."""
        return self.depth + (self.in_flight + self.deferred if with_held else 0)


def measure(options: SourceOptions, received: int) -> Backlog:
    """What all nsqds have; never raises. ``received`` is to be counted before: what comes meanwhile must not
    count twice.
    """
    began = time.monotonic()
    having = lookups.nodes_of(options.named_topics)  # none with topicsPattern: all nsqds
    places, faults = lookups.ask_all(options.lookupd, options.config, having)
    addresses = dict.fromkeys([*_own_http_addresses(options), *(place.http for place in places)])
    told = _ask_nsqds(addresses, options, options.topic, faults)  # without one, of all topics
    counted = [counts(stats, options.wants, options.channel) for stats in told]
    why_not = tuple(map(str, faults))
    return dataclasses.replace(added(counted), faults=why_not, received=received, began=began)


def topics(options: SourceOptions) -> list[str]:
    """All that there are and that ``topicsPattern`` chooses. Raises NsqError when no server tells."""
    listed, faults = lookups.ask_all(options.lookupd, options.config, NsqlookupdApi.topics)
    told = _ask_nsqds(_own_http_addresses(options), options, "", faults)
    found = {*listed, *(topic["topic_name"] for stats in told for topic in stats["topics"])}
    if faults and not found:
        raise NsqError(
            f"no topics are known for topicsPattern={options.topics_pattern}: {'; '.join(map(str, faults))}"
        )
    return sorted(filter(options.wants, found))


def _own_http_addresses(options: SourceOptions) -> list[str]:
    """Of the nsqds that are given by name."""
    return list(options.nsqd_http or map(next_port, options.nsqd))


def next_port(address: str) -> str:
    """``host:4151`` for ``host:4150``."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return address  # a host alone has the usual ports
    return f"{host}:{int(port) + 1}"


def _ask_nsqds(
    addresses: Iterable[str], options: SourceOptions, topic: str, faults: list[NsqError]
) -> list[NsqdStats]:
    """One after the other; why some say nothing is added to ``faults``."""
    told = []
    for address in addresses:
        try:
            told.append(lookups.stats_of(address, options.config, topic, timeout=_TIMEOUT))
        except NsqError as error:
            faults.append(error)
    return told


def counts(stats: NsqdStats, wants: Callable[[str], bool], channel: str) -> Backlog:
    """What one nsqd says of the topics that are wanted."""
    found = [_of_topic(topic, channel) for topic in stats["topics"] if wants(topic["topic_name"])]
    return dataclasses.replace(added(found), asked=1)


def _of_topic(topic: TopicStats, channel: str) -> Backlog:
    # What is still in the topic will be in the channel. A topic gives what it holds to its first channel,
    # which ours will be if it is not there, and keeps nothing for others.
    depth, paused = topic["depth"], topic["paused"]
    for each in topic["channels"]:
        if each["channel_name"] == channel:
            held, later = each["in_flight_count"], each["deferred_count"]
            return Backlog(depth + each["depth"], held, later, paused or each["paused"])
    return Backlog(depth=depth, paused=paused)


def added(parts: Sequence[Backlog]) -> Backlog:
    return Backlog(
        depth=sum(part.depth for part in parts),
        in_flight=sum(part.in_flight for part in parts),
        deferred=sum(part.deferred for part in parts),
        paused=bool(parts) and all(part.paused for part in parts),
        asked=len(parts),
    )


@dataclass
class AvailableNowTarget:
    """What ends a run that reads what there is: so many rows, whichever they are. A queue has no end that
    could be remembered, and gives new messages out beside old ones. A producer that goes on therefore cannot
    keep the run from ending, and neither can messages that another client took, which never come.
    """

    rows: int | None
    began: float
    options: SourceOptions
    taken: int = 0

    def __post_init__(self) -> None:
        self._seen = 0
        self._quiet_since = self.began

    @property
    def left(self) -> int | None:
        """None where no nsqd told how many there are: then the run ends when nothing comes any more."""
        return None if self.rows is None else max(0, self.rows - self.taken)

    def look(self, now: float, pending: int, ready: bool) -> None:
        """``pending`` rows have come and are not taken yet. Nothing is missed before we are ``ready``."""
        seen = self.taken + pending
        if seen != self._seen or not ready:
            self._seen, self._quiet_since = seen, now

    def verdict(self, now: float, pending: int, backlog: Backlog) -> str:
        """Why the run is over; empty while it is not."""
        if self.left == 0:
            return f"read all {self.rows} rows that there were"
        missing = f"read {self.taken} rows" + (f", {self.left} did not come" if self.rows else "")
        timeout, quiet = self.options.available_now_timeout, now - self._quiet_since
        if timeout and now - self.began >= timeout:
            return f"{missing} within availableNowTimeout={timeout:g}s{_where(backlog)}"
        if pending:
            return ""  # they become a batch first
        if quiet < self.options.available_now_idle or self._may_come(backlog):
            return ""
        return f"{missing}: nothing came for {quiet:.1f} s{_where(backlog)}"

    def _may_come(self, backlog: Backlog) -> bool:
        if backlog.asked and backlog.began < self._quiet_since:
            return True  # that is old news; the next answer decides
        return not backlog.paused and backlog.waiting(self.options.wait_for_in_flight) > 0


def _where(backlog: Backlog) -> str:
    if not backlog.asked:
        return "; no nsqd told its depth"
    paused = ", the channel is paused" if backlog.paused else ""
    held = f"{backlog.in_flight} in flight, {backlog.deferred} deferred"
    return f"; nsqd has {backlog.depth} waiting, {held}{paused}"


@dataclass(eq=False)
class Poller(Generic[T]):
    """Asks in a thread of its own, once per ``pause``, as long as ``look`` is called, which gives the last
    answer. After a while without calls that is old. For one thread.
    """

    name: str
    ask: Callable[[], T]
    pause: float

    def __post_init__(self) -> None:
        self._wanted = threading.Event()
        self._answered = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._last: T | None = None

    def look(self, patience: float = 0.0) -> T | None:
        """The last answer, or None; the first one may take so long. The first call starts the thread."""
        if self._thread is None and not self._ended.is_set():
            # A daemon: a server that does not answer must not keep a process alive whose query is over.
            self._thread = threading.Thread(target=self._run, name=f"nsq-spark-{self.name}", daemon=True)
            self._thread.start()
        self._wanted.set()
        self._answered.wait(patience)
        return self._last

    def stop(self) -> None:
        self._ended.set()
        self._wanted.set()  # last: the thread looks at the other one when it has seen this
        if self._thread is not None:
            self._thread.join(_JOIN)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wanted.wait()
            self._wanted.clear()
            if self._ended.is_set():
                return
            try:
                self._last = self.ask()
                self._answered.set()
            except Exception:
                log.exception("cannot find out about %s", self.name)
            self._ended.wait(self.pause)
