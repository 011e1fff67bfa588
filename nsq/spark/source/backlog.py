"""Measures how many messages wait in the nsqds for a channel, decides when a run with
trigger(availableNow=True) is over, and polls in a thread so that Spark does not wait.

Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from nsq.errors import NsqError
from nsq.http.nsqd import NsqdStats, TopicStats
from nsq.log import Logger
from nsq.spark import lookups
from nsq.spark.source.options import SourceOptions
from nsq.threads.waiters import SafeEvent

log = Logger("nsq.spark.source")

T = TypeVar("T")

#: With more topics, or topicsPattern, nsqlookupd is asked for all nsqds, not for those of each topic.
_MOST_LOOKUPS = 10
_TIMEOUT = 3.0
_JOIN = 5.0


@dataclass(frozen=True)
class Backlog:
    """A channel's messages, summed over the ``asked`` nsqds that answered; ``errors`` are the others' errors.

    ``depth`` counts waiting messages, ``in_flight`` those that clients hold, ours included, ``deferred``
    those with a delay. ``received`` is what our own receivers had received before the measurement, which
    started at ``began`` and may miss anything that happened later.
    """

    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    paused: bool = False
    asked: int = 0
    errors: tuple[str, ...] = ()
    received: int = 0
    began: float = 0.0

    def unreceived(self, received: int) -> int:
        """The messages that are due and not received yet. ``received`` corrects for what our receivers took
        since the nsqds were asked; what was published since is unknown.
        """
        return max(0, self.depth + self.in_flight - (received - self.received))

    def waiting(self, with_held: bool) -> int:
        """The messages to expect; ``with_held`` also counts those in flight or deferred."""
        return self.depth + (self.in_flight + self.deferred if with_held else 0)


def measure(options: SourceOptions, received: int) -> Backlog:
    """Ask all nsqds for their backlog; never raises. The caller counts ``received`` before this call, so that
    messages which arrive meanwhile do not count twice.
    """
    began = time.monotonic()
    topics = options.named_topics if len(options.named_topics) <= _MOST_LOOKUPS else ()
    places, errors = lookups.places(options.lookupd, options.config, topics)
    told = [place.http for place in places]
    topic = options.topic  # empty unless one is given
    stats = _ask_nsqds(_own_http_addresses(options), told, options, topic, errors)
    counted = [counts(each, options.wants, options.channel) for each in stats]
    why_not = tuple(map(str, errors))
    return dataclasses.replace(added(counted), errors=why_not, received=received, began=began)


def topics(options: SourceOptions) -> list[str]:
    """All existing topics that ``topicsPattern`` matches. Raises NsqError when no server answers."""
    listed, errors = lookups.topics(options.lookupd, options.config)
    stats = _ask_nsqds(_own_http_addresses(options), (), options, "", errors)
    found = {*listed, *(topic["topic_name"] for each in stats for topic in each["topics"])}
    if errors and not found:
        raise NsqError(
            f"no topics are known for topicsPattern={options.topics_pattern}: {'; '.join(map(str, errors))}"
        )
    return sorted(filter(options.wants, found))


def _own_http_addresses(options: SourceOptions) -> list[str]:
    """The HTTP addresses of the nsqds in option nsqd."""
    return list(options.nsqd_http or map(next_port, options.nsqd))


def next_port(address: str) -> str:
    """The address with the next port: ``host:4151`` for ``host:4150``."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return address  # without a port, the default ports apply
    return f"{host}:{int(port) + 1}"


def _ask_nsqds(
    given: Collection[str],
    told: Iterable[str],
    options: SourceOptions,
    topic: str,
    errors: list[NsqError],
) -> list[NsqdStats]:
    """Ask nsqds that the options give, and those that nsqlookupds told, one after the other; appends errors
    to ``errors``.
    """
    stats = []
    for address in dict.fromkeys([*given, *told]):
        try:
            found = lookups.stats_of(address, options, topic, timeout=_TIMEOUT, told=address not in given)
            stats.append(found)
        except NsqError as error:
            errors.append(error)
    return stats


def counts(stats: NsqdStats, wants: Callable[[str], bool], channel: str) -> Backlog:
    """The backlog of the wanted topics in one nsqd's stats."""
    found = [_of_topic(topic, channel) for topic in stats["topics"] if wants(topic["topic_name"])]
    return dataclasses.replace(added(found), asked=1)


def _of_topic(topic: TopicStats, channel: str) -> Backlog:
    # Messages still in the topic will go to our channel. If the channel does not exist, a topic's depth is
    # ours too: a topic keeps messages only while it has no channel, and gives them to the first one.
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
    """Decides when an AvailableNow run ends: after ``rows`` rows, old or new. A queue has no end offset, and
    delivers new messages among old ones. So a producer that keeps publishing cannot keep the run alive, and
    neither can messages that another client has taken.
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
        """Rows still to take; None when no nsqd reported a depth: then the run ends when nothing comes."""
        return None if self.rows is None else max(0, self.rows - self.taken)

    def note_rows(self, now: float, pending: int, ready: bool) -> None:
        """Note how many rows have come and are ``pending``. Quiet time counts only once we are ``ready``."""
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
            return ""  # make a batch of them first
        if quiet < self.options.available_now_idle or self._may_come(backlog):
            return ""
        return f"{missing}: nothing came for {quiet:.1f} s{_where(backlog)}"

    def _may_come(self, backlog: Backlog) -> bool:
        if not self.options.receivers:
            return False  # receivers elsewhere, if there are any, would have brought some by now
        if backlog.asked and backlog.began < self._quiet_since:
            return True  # the measurement is older than the last arrival: wait for the next one
        return not backlog.paused and backlog.waiting(self.options.wait_for_in_flight) > 0


def _where(backlog: Backlog) -> str:
    if not backlog.asked:
        return "; no nsqd has reported its depth"
    paused = ", the channel is paused" if backlog.paused else ""
    held = f"{backlog.in_flight} in flight, {backlog.deferred} deferred"
    return f"; nsqd has {backlog.depth} waiting, {held}{paused}"


@dataclass(eq=False)
class Poller(Generic[T]):
    """Calls ``ask`` in its own thread, at most once per ``pause`` seconds, as long as ``last_answer`` is
    called. After a while without calls the last answer is old. For one caller's thread.
    """

    name: str
    ask: Callable[[], T]
    pause: float

    def __post_init__(self) -> None:
        # SIGTERM's handler raises: that would leave the lock of threading.Event with us.
        self._wanted = SafeEvent()
        self._answered = SafeEvent()
        self._ended = SafeEvent()
        self._thread: threading.Thread | None = None
        self._last: T | None = None

    def last_answer(self, patience: float = 0.0) -> T | None:
        """The last answer; waits up to ``patience`` s for the first one, else None. Starts the thread."""
        if self._thread is None and not self._ended.is_set():
            # A daemon, so that a server which does not answer cannot keep the process alive.
            self._thread = threading.Thread(target=self._run, name=f"nsq-spark-{self.name}", daemon=True)
            self._thread.start()
        self._wanted.set()
        self._answered.wait(patience)
        return self._last

    def stop(self) -> None:
        self._ended.set()
        self._wanted.set()  # after _ended: this wakes the thread, which then checks _ended
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
                log.exception("cannot measure the %s", self.name)
            self._ended.wait(self.pause)
