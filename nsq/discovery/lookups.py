"""Discovery of nsqds for a client: one thread that asks nsqlookupds and reports which nsqds are wanted.

``Directory`` and ``LookupSchedule`` decide. They belong to that thread alone. Other threads change a dict,
put an event into the thread's queue, and take no lock: a signal handler may interrupt them at any bytecode
and call the same method.

Each nsqlookupd is also asked which NSQ it belongs to. If one does not belong to the original NSQ, but to a
partitioned one, another ``Asker`` asks from then on, which the client provides. Must not import socket.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

from nsq.config import Config
from nsq.connection.backoff import Pauses
from nsq.connection.endpoint import Key, Wanted
from nsq.connection.subscription import Subscription
from nsq.discovery.directory import SPACING, Answer, Directory, Kind, Lookupd, LookupSchedule
from nsq.errors import ApiError, ApiRefused, NsqError, UsageError
from nsq.http.message import Url
from nsq.http.nsqlookupd import NsqdNode, NsqlookupdApi, nsqlookupd_address
from nsq.log import Logger
from nsq.threads.owner import Owner
from nsq.threads.waiters import join_threads
from nsq.transport.addresses import checked, checked_nsqds
from nsq.transport.dialing import SocketTransport

log = Logger("nsq.discovery")

#: Maps the address that an nsqd advertises to the address to dial.
Rewrite = Callable[[str], str]
#: Returns those of the addresses to which this consumer connects.
Accept = Callable[[list[str]], Iterable[str]]

#: A question ends by itself at its deadline, with a reason. If not, it has failed so many seconds later.
_MARGIN = 0.25


class Asker:
    """Asks an nsqlookupd for the nsqds that have the topic, or for all without a topic. Any thread may ask.

    With ``detect`` it asks first which NSQ this is.
    """

    absence_hint = (
        "The first publish to a topic creates it; if there was one, the usual cause is a misspelt name"
    )
    """Why no nsqlookupd lists the topic, perhaps: for the log."""

    def __init__(
        self,
        topic: str | None,
        config: Config,
        *,
        detect: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic, self._config, self._detect, self._clock = topic, config, detect, clock
        self._transport = SocketTransport(interrupt_streams=True)

    def ask(self, lookupd: str) -> frozenset[str] | None:
        """Return addresses; None if it belongs to another NSQ, for which another one asks. Raises NsqError.
        Blocks no longer than ``lookupd_poll_timeout``.
        """
        deadline = self._clock() + self._config.lookupd_poll_timeout
        if self._detect:
            try:
                self._api(lookupd, deadline).list_lookupds()
                return None
            except ApiRefused as refusal:
                if refusal.status != 404:  # the original one does not know the question
                    raise
        api = self._api(lookupd, deadline)
        nodes: Sequence[NsqdNode] = api.nodes() if self._topic is None else api.nodes_of(self._topic)
        return frozenset(node.tcp_address for node in nodes)

    def _api(self, lookupd: str, deadline: float) -> NsqlookupdApi:
        return NsqlookupdApi.of(lookupd, self._config, self._transport, self._time_left(lookupd, deadline))

    def _time_left(self, lookupd: str, deadline: float) -> float:
        left = deadline - self._clock()
        if left <= 0:
            raise ApiError(f"{nsqlookupd_address(lookupd)} did not answer in time")
        return left

    def cancel(self) -> None:
        """End every ``ask`` early, also later ones."""
        self._transport.interrupt()

    def abandon(self) -> None:
        self._transport.abandon()

    # Discovery's thread.

    def wanted(self, named: dict[Key, Wanted]) -> dict[Key, Wanted]:
        """Return the connections to have. ``named`` are the nsqds that the user and the nsqlookupds name."""
        return named

    def turn(self) -> float:
        """Do what is due; return when to call this again."""
        return math.inf


def _text(address: object) -> str:
    if not isinstance(address, str):
        raise TypeError(f"it returned {address!r}, not an address")
    checked_nsqds([address])
    return address


class Discovery:
    """Finds the nsqds that a client wants: those that the user names, and those that have the topic of
    ``subscription``; without one, all that there are.

    ``found`` gets all of them whenever they change, ``dropped`` one that the user has removed, or that was
    pruned: disconnect from it. ``original`` is called once when an nsqlookupd belongs to the original NSQ.
    ``other`` is called once when one belongs to a partitioned NSQ, perhaps after that, and returns what asks
    from then on. All run on the discovery thread and must not block. With ``is_other`` the client has use for
    a partitioned NSQ alone.

    ``rewrite``, a user's function, gets each address of an answer, then ``accept`` gets their sorted list. A
    slow one delays discovery alone. The threads are NAME-lookupd and, for a short while, NAME-ask-LOOKUPD.
    """

    def __init__(
        self,
        subscription: Subscription | None,
        config: Config,
        *,
        found: Callable[[dict[Key, Wanted]], object],
        dropped: Callable[[Key], object] = lambda _: None,
        original: Callable[[], object] = lambda: None,
        other: Callable[[Discovery], Asker] | None = None,
        is_other: bool = False,
        name: str,
        nsqds: Iterable[str] = (),
        nsqlookupds: Iterable[str] = (),
        rewrite: Rewrite | None = None,
        accept: Accept | None = None,
        asker: Asker | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        # Why no nsqd is known, by the latest answer or failure of an nsqlookupd.
        self.absence = "none is discovered yet"
        # Which NSQ the nsqlookupds belong to; None until one has answered.
        self.kind: Kind | None = "original" if config.cluster == "original" else None
        self._subscription = subscription
        self._topic = None if subscription is None else subscription.topic
        self._found, self._dropped = found, dropped
        self._original, self._other = original, other
        self._name, self.clock = name, clock
        self._detects = other is not None and config.cluster != "original"
        self._askers = [asker or Asker(self._topic, config, detect=self._detects)]  # the last one asks
        # The user's addresses. Any thread changes these dicts, one method call at a time; the discovery
        # thread compares them with its own state.
        self._nsqds = {address: address for address in checked_nsqds(nsqds)}
        self._nsqlookupds = {nsqlookupd_address(text): text for text in checked("nsqlookupd", nsqlookupds)}
        self._listed: Mapping[Url, str] = {}  # nsqlookupds that others list; replaced, never changed
        self.owner = Owner(f"{name}-lookupd", log, turn=self._turn, clock=clock)
        self._stopping = False
        # All attributes below belong to the discovery thread; it replaces the tuples and ``wanted``, and
        # never changes them.
        self._tasks: tuple[threading.Thread, ...] = ()
        self._rewrite, self._accept = rewrite, accept
        self._said: dict[str, str] = {}  # by user's function: the failure logged last
        self._config = config
        self._directory = Directory(config.lookupd_poll_interval, prune=config.prune)
        interval, timeout = config.lookupd_poll_interval, config.lookupd_poll_timeout + _MARGIN
        retries = Pauses(config.reconnect_initial, interval, chance)
        self._schedule = LookupSchedule(interval, config.lookupd_poll_jitter, timeout, retries)
        self._lookupds = self._schedule.lookupds
        self._topic_doubtful = self._topic is not None  # perhaps misspelt: not listed, and no warning given
        self.wanted: dict[Key, Wanted] = {}  # as ``found`` got them last
        if other is not None and self._nsqlookupds and (is_other or config.cluster == "partitioned"):
            self._switch(other)
        self._follow_user(clock())
        self.nsqlookupds: tuple[Lookupd, ...] = self._copies()

    # Beginning and end.

    @property
    def asks(self) -> bool:
        return bool(self._nsqlookupds)

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """The threads that have been started and may still run."""
        own = self.owner.thread
        return self._tasks if own is None else (own, *self._tasks)

    def start(self) -> None:
        """Start the thread, unless it exists. Raises RuntimeError if that is impossible; repeatable then."""
        if self.owner.exists or self._stopping:
            return
        self.owner.start()
        if self.owner.failure is not None:
            raise self.owner.failure

    def stop(self) -> None:
        """Begin no more questions, and cut short those under way. Does not wait."""
        self._stopping = True
        self.owner.wake()

    def join(self, deadline: float) -> list[str]:
        """Wait for all threads after ``stop``; return the names of those that have not ended in time."""
        # The tasks last: until its end the discovery thread starts more of them.
        return self.owner.join(deadline) or join_threads(self._tasks, deadline)

    def abandon(self) -> None:
        for asker in self._askers:
            asker.abandon()

    # As in ``Consumer``: any thread, signal handlers too. An exception may interrupt these anywhere. To add
    # an address again does nothing.

    def add_nsqd(self, address: str) -> None:
        checked_nsqds([address])
        self._nsqds.setdefault(address, address)
        self.owner.wake()

    def remove_nsqd(self, address: str) -> None:
        self._remove(self._nsqds, address, address, f"nsqd {address}")

    def add_nsqlookupd(self, address: str) -> None:
        self._nsqlookupds.setdefault(nsqlookupd_address(address), address)
        self.owner.wake()

    def remove_nsqlookupd(self, address: str) -> None:
        url = nsqlookupd_address(address)
        self._remove(self._nsqlookupds, url, address, f"nsqlookupd {url}")

    def _remove(self, wanted: dict[Any, str], key: object, address: str, what: str) -> None:
        if key not in wanted:
            names = ", ".join(sorted(map(str, wanted.copy()))) or "none"
            raise UsageError(f"{what} was never added, or has been removed; there are: {names}")
        if len(self._nsqds) + len(self._nsqlookupds) + len(self._listed) > 1:
            wanted.pop(key, None)
            if self._nsqds or self._nsqlookupds or self._listed:
                self.owner.wake()
                return
            wanted.setdefault(key, address)  # another thread has removed the other one meanwhile
        raise UsageError(
            f"{what} is the last address of this consumer, which would never receive a message again: "
            "add another one first, or stop the consumer"
        )

    def ask_soon(self, spacing: float = SPACING) -> None:
        """Have the nsqlookupds asked ahead of time, at most once in ``spacing`` seconds."""
        self.owner.ask(lambda: self._schedule.request(self.clock(), spacing))

    # For an ``Asker``: any thread.

    @property
    def given_nsqlookupds(self) -> tuple[str, ...]:
        return tuple(self._nsqlookupds.copy().values())

    def also_ask(self, nsqlookupds: Iterable[str]) -> None:
        """Ask these nsqlookupds too, instead of those of the call before."""
        listed = {nsqlookupd_address(text): text for text in nsqlookupds}
        if listed != self._listed:
            self._listed = listed
            self.owner.wake()

    def rewritten(self, address: str) -> str:
        if self._rewrite is None:
            return address
        try:
            return _text(self._rewrite(address))
        except BaseException as error:
            self._log_once(f"rewrite_address({address!r})", "the address is used as it is", error)
            return address

    def health(self) -> list[str]:
        now = self.clock()
        return [each.words(now) for each in self.nsqlookupds]

    def _copies(self) -> tuple[Lookupd, ...]:
        return tuple(map(copy, self._lookupds.values()))

    # The discovery thread.

    def _turn(self) -> float | None:
        if self._stopping:
            for asker in self._askers:
                asker.cancel()
            return None
        now = self.clock()
        try:
            self._follow_user(now)
            for lookupd in self._schedule.overdue(now):
                reason = f"{lookupd.address} did not answer within {self._config.lookupd_poll_timeout:g} s"
                self._note_failure(lookupd, reason, still_busy=True)
            if self._schedule.round_over():
                self._end_round(now)
            self._report()
            for lookupd in self._schedule.due(now):
                self._ask(lookupd)
        finally:
            self.nsqlookupds = self._copies()
        return min(self._schedule.next_due(), self._askers[-1].turn())

    def _follow_user(self, now: float) -> None:
        self._directory.give(self._nsqds.copy())
        wanted = {**self._listed, **self._nsqlookupds.copy()}
        for url in self._lookupds.keys() - wanted.keys():
            del self._lookupds[url]
            if not self._lookupds:
                self._directory.round_ended((), now)
        for url, text in wanted.items():
            if url not in self._lookupds:
                self._lookupds[url] = Lookupd(text, str(url))

    def _report(self) -> None:
        named = {}
        for address, nsqd in sorted(self._directory.nsqds.items()):
            dial = self._directory.may_be_there(nsqd)
            want = Wanted(address, self._subscription, nsqd.given, nsqd.listed, dial)
            named[want.key] = want
        wanted = self._askers[-1].wanted(named)
        if wanted != self.wanted:
            self.wanted = wanted
            self._found(wanted)
        # After ``found``: a connection that is ready between the two is refused, or dropped like any other.
        for address in self._directory.to_drop():
            self._dropped(Wanted(address, self._subscription).key)

    def _ask(self, lookupd: Lookupd) -> None:
        def task() -> None:
            result: frozenset[str] | NsqError | None
            try:
                result = asker.ask(lookupd.text)
            except NsqError as error:
                result = error
            except BaseException as error:
                log.exception("%s failed, which is a bug of ours", name)
                result = NsqError(f"{type(error).__name__}, a bug of ours; see the log")
            self.owner.ask(partial(self._asked, lookupd, result))

        asker, name = self._askers[-1], f"{self._name}-ask-{lookupd.address}"
        thread = threading.Thread(target=task, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self.owner.ask(partial(self._asked, lookupd, NsqError(f"no thread for {name}: {error}")))
        else:
            self._tasks = (*(each for each in self._tasks if each.is_alive()), thread)

    # nsqlookupds.

    def _asked(self, lookupd: Lookupd, listed: frozenset[str] | NsqError | None) -> None:
        if lookupd not in self._lookupds.values():
            return  # the user has removed it meanwhile
        if isinstance(listed, NsqError):
            self._note_failure(lookupd, str(listed))
            return
        if listed is None:
            self._schedule.ask_again(lookupd)
            if self._other is not None and len(self._askers) == 1:
                log.info("%s: the nsqlookupds belong to a partitioned NSQ", self._name)
                self._switch(self._other)
            return
        if self._detects and self.kind is None:
            self.kind = "original"
            self._original()
        if lookupd.error:
            log.info("nsqlookupd %s answers again", lookupd.address)
        answer = self._accepted(listed)
        self._schedule.answered(lookupd, listed, answer, self.clock())
        self.absence = f"nsqlookupd {lookupd.address} lists none"
        if answer is not None:
            self._directory.heard(answer)

    def _switch(self, other: Callable[[Discovery], Asker]) -> None:
        self._askers.append(other(self))
        self.kind = "partitioned"
        self._schedule.request(self.clock(), 0.0)

    def _note_failure(self, lookupd: Lookupd, reason: str, *, still_busy: bool = False) -> None:
        self.absence = reason
        if self._schedule.failed(lookupd, reason, self.clock(), still_busy=still_busy):
            extra = {"nsqlookupd_address": lookupd.address}
            # At the interpreter's end, Python 3.12 and later start no thread for the question.
            level = logging.WARNING if threading.main_thread().is_alive() else logging.DEBUG
            log.log(level, "nsqlookupd %s cannot be asked: %s", lookupd.address, reason, extra=extra)

    def _end_round(self, now: float) -> None:
        lookupds = list(self._lookupds.values())
        answers = [lookupd.answer for lookupd in lookupds]
        self._directory.round_ended(answers, now)
        if any(lookupd.listed for lookupd in lookupds):
            self._topic_doubtful = False
        elif self._topic_doubtful and None not in answers and not self._nsqds:
            self._topic_doubtful = False
            log.warning(
                "no nsqlookupd lists an nsqd with topic %r (asked: %s; asked again in %.1f s, then less "
                "often, at last every %g s). %s",
                self._topic,
                ", ".join(lookupd.address for lookupd in lookupds),
                max(0.0, min(lookupd.ask_at for lookupd in lookupds) - now),
                self._config.lookupd_poll_interval,
                self._askers[-1].absence_hint,
                extra={"nsq_topic": self._topic},
            )

    # The user's functions. Their exceptions are logged and end no connection.

    def _accepted(self, listed: frozenset[str]) -> Answer:
        """Return the accepted addresses. If ``accept`` fails, None: dial none of them, and give up none."""
        rewritten = frozenset(map(self.rewritten, listed))
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

    def _log_once(self, what: str, consequence: str, error: BaseException) -> None:
        """Log an error once, and again when it changes or comes back."""
        if self._said.get(what) != repr(error):
            self._said[what] = repr(error)
            log.error("%s failed; %s", what, consequence, exc_info=error)
