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
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from nsq.config import Config
from nsq.connection.handshake import describe
from nsq.discovery.directory import Answer, Directory, Lookupd, LookupSchedule, Nsqd, Pauses
from nsq.errors import Closed, NsqError, UsageError
from nsq.http.nsqlookupd import NsqdNode, NsqlookupdApi, nsqlookupd_address
from nsq.transport.addresses import checked, checked_nsqds
from nsq.transport.dialing import SocketTransport
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
        self._transport = SocketTransport(interrupt_streams=True)

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


def _text(address: object) -> str:
    if not isinstance(address, str):
        raise TypeError(f"it returned {address!r}, not an address")
    checked_nsqds([address])
    return address


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
    ``rewrite`` and ``accept`` are the user's: ``rewrite`` is called with each address of an answer, then
    ``accept`` with their sorted list. They run on the discovery thread, so a slow one delays the finding of
    nsqds and nothing else. ``found`` runs there too and must not block.
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
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.absence = "none is discovered yet"
        """The reason why no nsqd is known, as the nsqlookupd heard last told it."""
        self._topic = topic
        self._host = host
        self._found = found
        self._name = name
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
        self._rewrite, self._accept = rewrite, accept
        self._said: dict[str, str] = {}  # by function of the user's: the failure that was logged last
        pauses = Pauses(config.reconnect_initial, config.reconnect_max, chance)
        self._directory = Directory(pauses, config.lookupd_poll_interval, prune=config.prune)
        self._poll_timeout = config.lookupd_poll_timeout
        self._schedule = LookupSchedule(
            config.lookupd_poll_interval,
            config.lookupd_poll_jitter,
            self._poll_timeout + _MARGIN,
            Pauses(config.reconnect_initial, config.lookupd_poll_interval, chance),
        )
        self._direct: frozenset[str] = frozenset()  # the nsqds that the directory was told to dial
        self._lookupds = self._schedule.lookupds
        self._expected = 0
        self._topic_doubtful = True  # it may be misspelt: neither listed yet nor warned about
        self._follow_user(clock())
        self.state = self._look()

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
        """Ask and dial no more, and cut short what is asked. Does not wait. Dials are the host's to end."""
        self._stopping = True
        self._events.put(None)

    def join(self, deadline: float) -> list[str]:
        """After ``stop``, wait for all threads; return the names of those that have not ended by then."""
        # The tasks last: until its end the discovery thread starts more of them.
        own = [] if self._thread is None else [self._thread]
        return join_threads(own, deadline) or join_threads(self._tasks, deadline)

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

    def health(self) -> list[str]:
        """A line for each nsqlookupd and for each nsqd, for people."""
        now, state = self._clock(), self.state
        return [each.words(now) for each in state.nsqlookupds] + [each.words(now) for each in state.nsqds]

    def _look(self) -> DiscoveryState:
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
            self.state = self._look()
            due = min(self._schedule.next_due(), self._directory.next_due())
            carry_out(self._events, max(respite, due - self._clock()), log)
        self._asker.cancel()

    def _act(self) -> None:
        """Do what is due."""
        now = self._clock()
        self._follow_user(now)
        for lookupd in self._schedule.overdue(now):
            reason = f"{lookupd.address} did not answer within {self._poll_timeout:g} s"
            self._note_failure(lookupd, reason, still_busy=True)
        if self._schedule.round_over() and self._host is not None:
            self._end_round(now)
        if self._host is not None:
            self._connect(self._host, now)
        if self._directory.wants_round():
            self._schedule.request(now)
        for lookupd in self._schedule.due(now):
            ask, over = partial(self._asker.ask, lookupd.text), partial(self._asked, lookupd)
            self._start_task(f"ask-{lookupd.address}", ask, over)

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
            del self._lookupds[url]
            if not self._lookupds:
                self._directory.round_ended((), now)
        for url, text in wanted.items():
            if url not in self._lookupds:
                self._lookupds[url] = Lookupd(text, str(url))

    def _start_task(self, job: str, work: Callable[[], T], over: Callable[[T | NsqError], None]) -> None:
        """Have a thread do the work, which blocks; ``over`` is called here in any case."""

        def task() -> None:
            result: T | NsqError
            try:
                result = work()
            except NsqError as error:
                result = error
            except BaseException as error:
                log.exception("%s-%s failed, which is a bug of ours", self._name, job)
                result = NsqError(f"{type(error).__name__}, a bug of ours; see the log")
            self._events.put(partial(over, result))

        thread = threading.Thread(target=task, name=f"{self._name}-{job}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._events.put(partial(over, NsqError(f"no thread for {job}: {error}")))
        else:
            self._tasks = (*(each for each in self._tasks if each.is_alive()), thread)

    # nsqlookupds.

    def _asked(self, lookupd: Lookupd, listed: frozenset[str] | NsqError) -> None:
        if lookupd not in self._lookupds.values():
            return  # it was removed meanwhile
        if isinstance(listed, NsqError):
            self._note_failure(lookupd, str(listed))
            return
        if lookupd.error:
            log.info("nsqlookupd %s answers again", lookupd.address)
        answer = self._accepted(listed)
        self._schedule.answered(lookupd, listed, answer, self._clock())
        if self._found is not None:
            self.absence = f"nsqlookupd {lookupd.address} lists none"
            self._found(
                frozenset(self._nsqds.copy()).union(*[each.listed for each in self._lookupds.values()])
            )
        elif answer is not None:
            self._directory.heard(answer)

    def _note_failure(self, lookupd: Lookupd, reason: str, *, still_busy: bool = False) -> None:
        self.absence = reason
        if self._schedule.failed(lookupd, reason, self._clock(), still_busy=still_busy):
            extra = {"nsqlookupd_address": lookupd.address}
            log.warning("nsqlookupd %s cannot be asked: %s", lookupd.address, reason, extra=extra)

    def _end_round(self, now: float) -> None:
        lookupds = list(self._lookupds.values())
        answers = [lookupd.answer for lookupd in lookupds]
        self._directory.round_ended(answers, now)
        if any(lookupd.listed for lookupd in lookupds):
            self._topic_doubtful = False
        elif self._topic_doubtful and None not in answers and not self._direct:
            self._topic_doubtful = False
            log.warning(
                "no nsqlookupd lists an nsqd with topic %r (asked: %s). The first publish to a topic creates "
                "it; if there was one, the usual cause is a misspelt name",
                self._topic,
                ", ".join(lookupd.address for lookupd in lookupds),
                extra={"nsq_topic": self._topic},
            )

    # The user's functions. What they raise is logged and costs no connection.

    def _accepted(self, listed: frozenset[str]) -> Answer:
        """When ``accept`` fails the answer is unknown: its addresses are not dialed, none is given up."""
        rewritten = frozenset(map(self._rewritten, listed))
        if self._accept is None:
            return rewritten
        try:
            accepted = self._accept(sorted(rewritten))
            if isinstance(accepted, str):
                raise TypeError("it returned a str, not addresses")
            answer = frozenset(map(_text, accepted))
        except BaseException as error:  # SystemExit too: the thread goes on
            self._log_once("accept_addresses", "its addresses are left out", error)
            return None
        self._said.pop("accept_addresses", None)
        return answer

    def _rewritten(self, address: str) -> str:
        if self._rewrite is None:
            return address
        try:
            return _text(self._rewrite(address))
        except BaseException as error:
            self._log_once(f"rewrite_address({address!r})", "the address is used as it is", error)
            return address

    def _log_once(self, what: str, consequence: str, error: BaseException) -> None:
        """Once, and again when it changes or comes back."""
        if self._said.get(what) != repr(error):
            self._said[what] = repr(error)
            log.error("%s failed; %s", what, consequence, exc_info=error)

    # nsqds.

    def _connect(self, host: Host, now: float) -> None:
        drops = self._directory.to_drop()
        # Before the dials: shares are then cut for all connections that come, not for the first ones.
        expected = self._directory.expected(now)
        if expected != self._expected:
            self._expected = expected
            host.expect(expected)
        for address in drops:
            host.drop(address)
        for address in self._directory.due(now):
            over = partial(self._dialed, host, address)
            self._start_task(f"dial-{address}", partial(host.dial, address), over)

    def _dialed(self, host: Host, address: str, error: NsqError | None) -> None:
        reason = None if error is None else describe(address, error)
        news = self._directory.dialed(address, reason, self._clock())
        if error is not None:
            host.refused(address, error)
        # Closed: the consumer stops, or has this connection already.
        if news and not isinstance(error, Closed):
            log.warning("no connection to an nsqd, trying again: %s", reason, extra={"nsqd_address": address})
