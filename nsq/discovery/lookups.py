"""Discovery of nsqds for a client: one thread that has nsqlookupds asked and nsqds dialed.

``Directory`` and ``LookupSchedule`` decide what to do and when. They belong to that thread alone. Other
threads change a dict and put something into the thread's queue, and take no lock: they may be interrupted at
any bytecode by a signal handler, which may call the same method. Must not import socket.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from nsq.config import Config
from nsq.connection.handshake import describe
from nsq.discovery.directory import Answer, Directory, LookupSchedule, Nsqd, Pauses
from nsq.errors import Closed, NsqError, UsageError
from nsq.http.message import Url
from nsq.http.nsqlookupd import NsqdNode, NsqlookupdApi, nsqlookupd_address
from nsq.http.sending import InterruptibleTransport
from nsq.transport.addresses import checked, checked_nsqds
from nsq.waiting import carry_out, join_threads

log = logging.getLogger("nsq.discovery")

T = TypeVar("T")

#: The address to dial for the one that an nsqd advertises.
Rewrite = Callable[[str], str]
#: Those of these addresses that this consumer connects to.
Accept = Callable[[list[str]], Iterable[str]]

#: A question ends by itself when its time is over, and says why. If it does not, it has failed so much later.
_MARGIN = 0.25
#: Pause after a bug of ours, so that it does not repeat as fast as the machine can.
_RESPITE = 1.0


class Host(Protocol):
    """The consumer. All but ``dial`` are called on the discovery thread and must not block."""

    def dial(self, address: str) -> None:
        """Return when there is a connection, NsqError when there is none. Has a thread of its own."""

    def refused(self, address: str, error: NsqError) -> None:
        """A dial has failed."""

    def drop(self, address: str) -> None:
        """Begin to close the connection. Like any other, its end is told to ``Discovery.lost``."""

    def expect(self, connections: int) -> None:
        """So many connections there will be shortly, including those that are there."""


class Asker:
    """Asks one nsqlookupd for nsqds: those that have the topic, or without a topic all. From any thread."""

    def __init__(self, topic: str | None, config: Config) -> None:
        self._topic = topic
        self._config = config
        self._transport = InterruptibleTransport()

    def ask(self, lookupd: str) -> frozenset[str]:
        """Return addresses; block no longer than ``lookupd_poll_timeout``, raise NsqError."""
        api = NsqlookupdApi.of(lookupd, self._config, self._transport)
        nodes: Sequence[NsqdNode] = api.nodes() if self._topic is None else api.nodes_of(self._topic)
        return frozenset(node.tcp_address for node in nodes)

    def cancel(self) -> None:
        """Have every ``ask`` end early, those to come as well."""
        self._transport.interrupt()

    def abandon(self) -> None:
        """Let go, in a forked child, of what is under way: it is the parent's."""
        self._transport.abandon()


class LogOnce:
    """Remembers what was logged: a problem is logged once, and again when it changes or comes back."""

    def __init__(self) -> None:
        self._said: dict[Hashable, str] = {}

    def is_news(self, about: Hashable, text: str) -> bool:
        """Whether this differs from what was said last; it is taken as said from now on."""
        if self._said.get(about) == text:
            return False
        self._said[about] = text
        return True

    def settle(self, about: Hashable) -> bool:
        """It is well again; return whether anything had been said."""
        return self._said.pop(about, None) is not None


class AddressFilter:
    """Runs the user's ``rewrite`` on each address of an answer, then ``accept`` on their sorted list.

    What they raise is logged and costs no connection. An address whose rewriting fails is used as it was.
    When ``accept`` fails the answer is unknown: its addresses are not dialed, and nothing is given up.
    """

    def __init__(self, rewrite: Rewrite | None, accept: Accept | None, log_once: LogOnce) -> None:
        self._rewrite = rewrite
        self._accept = accept
        self._log_once = log_once

    def apply(self, addresses: frozenset[str]) -> Answer:
        rewritten = frozenset(map(self._rewritten, addresses))
        if self._accept is None:
            return rewritten
        try:
            accepted = self._accept(sorted(rewritten))
            if isinstance(accepted, str):
                raise TypeError("it returned a str, not addresses")
            answer = frozenset(map(_text, accepted))
        except BaseException as error:  # SystemExit too: the thread goes on
            self._log("accept_addresses", "its addresses are left out", error)
            return None
        self._log_once.settle("accept_addresses")
        return answer

    def _rewritten(self, address: str) -> str:
        if self._rewrite is None:
            return address
        try:
            return _text(self._rewrite(address))
        except BaseException as error:
            self._log(f"rewrite_address({address!r})", "the address is used as it is", error)
            return address

    def _log(self, what: str, consequence: str, error: BaseException) -> None:
        if self._log_once.is_news(what, repr(error)):
            log.error("%s failed; %s", what, consequence, exc_info=error)


def _text(address: object) -> str:
    if not isinstance(address, str):
        raise TypeError(f"it returned {address!r}, not an address")
    checked_nsqds([address])
    return address


@dataclass(eq=False)
class Lookupd:
    """One nsqlookupd. One that is removed and added again is another. Times are of the monotonic clock."""

    text: str = field(repr=False)  # its address as the user gave it; the query may hold a secret
    address: str  # without the query
    answered_at: float | None = None
    listed: frozenset[str] = frozenset()  # by its last answer
    failed_at: float | None = None  # unless it has answered since
    error: str = ""

    def words(self, now: float) -> str:
        told = []
        if self.failed_at is not None:
            told.append(f"failed {now - self.failed_at:.1f} s ago: {self.error}")
        if self.answered_at is not None:
            told.append(f"answered {now - self.answered_at:.1f} s ago, listing {len(self.listed)}")
        return f"nsqlookupd {self.address}: " + ("; before that, ".join(told) or "has not answered yet")


@dataclass(frozen=True)
class DiscoveryState:
    """A snapshot: copies."""

    nsqlookupds: tuple[Lookupd, ...] = ()
    nsqds: tuple[Nsqd, ...] = ()


class Discovery:
    """Finds nsqds. For a consumer (``host``) it has those dialed that have the topic or were named; for a
    producer (``found``, and no topic) it tells all addresses at each answer: those that were named, and what
    each nsqlookupd said last.

    Its threads are NAME-lookupd and, each for a short while, NAME-ask-LOOKUPD and NAME-dial-NSQD.
    ``rewrite`` and ``accept`` are the user's, see ``AddressFilter``; they run on the discovery thread, so a
    slow one delays the finding of nsqds and nothing else. ``found`` runs there too and must not block.
    """

    def __init__(
        self,
        topic: str | None,
        config: Config,
        host: Host | None = None,
        *,
        found: Callable[[frozenset[str]], None] | None = None,
        name: str,
        nsqds: Iterable[str] = (),
        nsqlookupds: Iterable[str] = (),
        rewrite: Rewrite | None = None,
        accept: Accept | None = None,
        asker: Asker | None = None,
        interrupt_dials: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if (host is None) == (found is None):
            raise TypeError("give either host or found")
        self.absence = "none is discovered yet"
        """The reason why no nsqd is known, as the nsqlookupd heard last told it."""
        self._topic = topic
        self._host = host
        self._found = found
        self._name = name
        self._interrupt_dials = interrupt_dials
        self._clock = clock
        self._asker = asker or Asker(topic, config)
        # What the user wants. Any thread changes these two, one dict method at a time; the discovery thread
        # compares them with what it knows.
        self._nsqds = {address: address for address in checked_nsqds(nsqds)}
        self._nsqlookupds = {nsqlookupd_address(text): text for text in checked("nsqlookupd", nsqlookupds)}
        # Reports, each called on the discovery thread; None only wakes it.
        self._events: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._stopping = False
        self._thread: threading.Thread | None = None
        # From here on everything belongs to the discovery thread; tuples and snapshot are replaced, never
        # changed.
        self._tasks: tuple[threading.Thread, ...] = ()
        self._log_once = LogOnce()
        self._filter = AddressFilter(rewrite, accept, self._log_once)
        pauses = Pauses(config.reconnect_initial, config.reconnect_max, chance)
        self._directory = Directory(pauses, config.lookupd_poll_interval, prune=config.prune)
        self._poll_timeout = config.lookupd_poll_timeout
        self._schedule: LookupSchedule[Lookupd] = LookupSchedule(
            config.lookupd_poll_interval,
            config.lookupd_poll_jitter,
            self._poll_timeout + _MARGIN,
            Pauses(config.reconnect_initial, config.lookupd_poll_interval, chance),
        )
        self._direct: frozenset[str] = frozenset()  # the nsqds that the directory was told to dial
        self._lookupds: dict[Url, Lookupd] = {}  # that are asked
        self._expected = 0
        self._topic_doubtful = True  # it may be misspelt: neither listed yet nor warned about
        self._follow_user(clock())
        self._snapshot = self._state()

    # Beginning and end.

    @property
    def asks(self) -> bool:
        """Whether there are nsqlookupds."""
        return bool(self._nsqlookupds)

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """The threads that have been started and may still run."""
        return self._tasks if self._thread is None else (self._thread, *self._tasks)

    def start(self) -> None:
        """Start its thread, unless it has one or has nothing to do. After a RuntimeError, which says that no
        thread can be had, it can be called again.
        """
        if self._thread is not None or self._stopping or (self._host is None and not self.asks):
            return
        thread = threading.Thread(target=self._run, name=f"{self._name}-lookupd", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:
            self._thread = None
            raise

    def stop(self) -> None:
        """Ask and dial no more, and cut short what is under way. Does not wait. A dial that is past
        connecting is the host's to end.
        """
        self._stopping = True
        self._events.put(None)

    def join(self, deadline: float) -> bool:
        """After ``stop``, wait for all threads; return whether they have ended by ``deadline``."""
        # The tasks last: until its end the discovery thread starts more of them.
        return self._thread is None or not (
            join_threads([self._thread], deadline) or join_threads(self._tasks, deadline)
        )

    def abandon(self) -> None:
        """Let go of everything in a forked child, where none of these threads exist."""
        self._asker.abandon()

    def owns_current_thread(self) -> bool:
        """Whether this is where ``rewrite`` and ``accept`` run."""
        return threading.current_thread() is self._thread

    # What the user wants: any thread, signal handlers too. An exception may interrupt these at any bytecode.

    def add_nsqd(self, address: str) -> None:
        """Connect to it, and again whenever it is lost. Does nothing for one that was added before."""
        checked_nsqds([address])
        self._nsqds.setdefault(address, address)
        self._events.put(None)

    def remove_nsqd(self, address: str) -> None:
        """Disconnect from it, unless an nsqlookupd lists it."""
        self._remove(self._nsqds, address, address, f"nsqd {address}")

    def add_nsqlookupd(self, address: str) -> None:
        """Ask it too, and at once. Does nothing for one that was added before."""
        self._nsqlookupds.setdefault(nsqlookupd_address(address), address)
        self._events.put(None)

    def remove_nsqlookupd(self, address: str) -> None:
        """Ask it no more. Connections to what it listed stay as long as they last."""
        url = nsqlookupd_address(address)
        self._remove(self._nsqlookupds, url, address, f"nsqlookupd {url}")

    def _remove(self, wanted: dict[Any, str], key: object, address: str, what: str) -> None:
        if key not in wanted:
            names = ", ".join(sorted(map(str, wanted.copy()))) or "none"
            raise UsageError(f"{what} was never added, or has been removed; there are: {names}")
        if len(self._nsqds) + len(self._nsqlookupds) > 1:
            wanted.pop(key, None)
            if self._nsqds or self._nsqlookupds:
                self._events.put(None)
                return
            wanted.setdefault(key, address)  # another thread has removed the other one meanwhile
        raise UsageError(
            f"{what} is the last address of this consumer, which would never receive a message again: "
            "add another one first, or stop the consumer"
        )

    def lost(self, address: str, lived: float, cause: NsqError | None) -> None:
        """A connection has ended, as ordered or not, after ``lived`` seconds. Once for each that ``dial``
        made, also when ``dial`` has not returned yet.
        """
        error = "" if cause is None else describe(address, cause)
        self._events.put(lambda: self._directory.lost(address, lived, error, self._clock()))

    # What there is to know.

    def state(self) -> DiscoveryState:
        return self._snapshot

    def health(self) -> list[str]:
        """A line for each nsqlookupd and for each nsqd, for people."""
        now, state = self._clock(), self._snapshot
        return [each.words(now) for each in state.nsqlookupds] + [each.words(now) for each in state.nsqds]

    def _state(self) -> DiscoveryState:
        return DiscoveryState(tuple(map(copy, self._lookupds.values())), self._directory.nsqds())

    # The discovery thread.

    def _run(self) -> None:
        while not self._stopping:
            respite = 0.0
            try:
                self._act()
            except Exception:
                # Without this thread the client would be left with the connections it has.
                log.exception("%s-lookupd failed, which is a bug of ours; it goes on", self._name)
                respite = _RESPITE
            self._snapshot = self._state()
            due = min(self._schedule.next_due(), self._directory.next_due())
            carry_out(self._events, max(respite, due - self._clock()), log)
        self._guarded("cancelling questions", self._asker.cancel)
        self._guarded("interrupting dials", self._interrupt_dials)

    def _guarded(self, what: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            log.exception("%s-lookupd: %s failed, which is a bug of ours", self._name, what)

    def _act(self) -> None:
        """Do what is due."""
        now = self._clock()
        self._follow_user(now)
        for lookupd in self._schedule.overdue(now):
            self._note_failure(lookupd, f"{lookupd.address} did not answer within {self._poll_timeout:g} s")
        self._end_round(now)
        dials = self._directory.due(now)
        if self._directory.wants_round():
            self._schedule.request(now)
        for lookupd in self._schedule.due(now):
            self._start_task(
                f"ask-{lookupd.address}",
                partial(self._asker.ask, lookupd.text),
                partial(self._answered, lookupd),
                partial(self._failed, lookupd),
            )
        if self._host is not None:
            self._connect(self._host, dials, now)

    def _follow_user(self, now: float) -> None:
        """Take in which nsqds and nsqlookupds the user has added and removed."""
        direct = frozenset(self._nsqds.copy()) if self._host is not None else frozenset()
        for address in sorted(direct - self._direct):
            self._directory.add(address, now)
        for address in sorted(self._direct - direct):
            self._directory.remove(address)
        self._direct = direct
        wanted = self._nsqlookupds.copy()
        for url in self._lookupds.keys() - wanted.keys():
            lookupd = self._lookupds.pop(url)
            self._schedule.remove(lookupd)
            self._log_once.settle(lookupd)
            if not self._lookupds:
                self._directory.round_ended((), now)
        for url, text in wanted.items():
            if url not in self._lookupds:
                self._lookupds[url] = lookupd = Lookupd(text, str(url))
                self._schedule.add(lookupd, now)

    def _start_task(
        self, job: str, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[NsqError], None]
    ) -> None:
        """Have a thread do the work, which blocks; ``done`` or ``failed`` is called here in any case."""

        def task() -> None:
            try:
                event = partial(done, work())
            except NsqError as error:
                event = partial(failed, error)
            except BaseException as error:
                log.exception("%s-%s failed, which is a bug of ours", self._name, job)
                event = partial(failed, NsqError(f"{type(error).__name__}, a bug of ours; see the log"))
            self._events.put(event)

        thread = threading.Thread(target=task, name=f"{self._name}-{job}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._events.put(partial(failed, NsqError(f"no thread for {job}: {error}")))
        else:
            self._tasks = (*(each for each in self._tasks if each.is_alive()), thread)

    # nsqlookupds.

    def _answered(self, lookupd: Lookupd, listed: frozenset[str]) -> None:
        if lookupd not in self._lookupds.values():
            return  # it was removed meanwhile
        answer = self._filter.apply(listed)
        self._schedule.answered(lookupd, answer)
        if self._log_once.settle(lookupd):
            log.info("nsqlookupd %s answers again", lookupd.address)
        lookupd.answered_at, lookupd.listed = self._clock(), listed
        lookupd.failed_at, lookupd.error = None, ""
        if self._found is not None:
            self.absence = f"nsqlookupd {lookupd.address} lists none"
            self._found(
                frozenset(self._nsqds.copy()).union(*[each.listed for each in self._lookupds.values()])
            )
        elif answer is not None:
            self._directory.heard(answer)

    def _failed(self, lookupd: Lookupd, error: NsqError) -> None:
        if lookupd in self._lookupds.values() and self._schedule.failed(lookupd, self._clock()):
            self._note_failure(lookupd, str(error))

    def _note_failure(self, lookupd: Lookupd, reason: str) -> None:
        self.absence = reason
        lookupd.failed_at, lookupd.error = self._clock(), reason
        if self._log_once.is_news(lookupd, reason):
            extra = {"nsqlookupd_address": lookupd.address}
            log.warning("nsqlookupd %s cannot be asked: %s", lookupd.address, reason, extra=extra)

    def _end_round(self, now: float) -> None:
        answers = self._schedule.end_round()
        if answers is None or self._host is None:
            return
        self._directory.round_ended(answers.values(), now)
        if any(lookupd.listed for lookupd in answers):
            self._topic_doubtful = False
        elif self._topic_doubtful and None not in answers.values() and not self._direct:
            self._topic_doubtful = False
            log.warning(
                "no nsqlookupd lists an nsqd with topic %r (asked: %s). The first publish to a topic creates "
                "it; if there was one, the usual cause is a misspelt name",
                self._topic,
                ", ".join(lookupd.address for lookupd in answers),
                extra={"nsq_topic": self._topic},
            )

    # nsqds.

    def _connect(self, host: Host, dials: list[str], now: float) -> None:
        drops = self._directory.to_drop()
        # Before the dials: shares are then cut for all connections that come, not for the first ones.
        expected = self._directory.expected(now)
        if expected != self._expected:
            self._expected = expected
            self._guarded("announcing connections", partial(host.expect, expected))
        for address in drops:
            self._guarded(f"dropping {address}", partial(host.drop, address))
        for address in dials:
            self._start_task(
                f"dial-{address}",
                partial(self._dial, host, address),
                partial(self._dialed, address),
                partial(self._refused, host, address),
            )

    def _dial(self, host: Host, address: str) -> None:
        """On a thread of its own."""
        if self._stopping:
            raise Closed("the consumer is being stopped")
        host.dial(address)

    def _dialed(self, address: str, _: None) -> None:
        self._log_once.settle(("dial", address))
        self._directory.dialed(address, None, self._clock())

    def _refused(self, host: Host, address: str, error: NsqError) -> None:
        self._guarded(f"telling that {address} refused", partial(host.refused, address, error))
        reason = describe(address, error)
        # Closed: the consumer stops, or has this connection already.
        if not isinstance(error, Closed) and self._log_once.is_news(("dial", address), reason):
            log.warning("no connection to an nsqd, trying again: %s", reason, extra={"nsqd_address": address})
        self._directory.dialed(address, reason, self._clock())
