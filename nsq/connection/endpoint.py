"""One nsqd as a client wants it: dialed, connected, lost, and dialed again. And all nsqds of a client.

    owner         wants endpoints, and permits each to dial when its pause is over: so many at a time
    read thread   dials, then runs the connection's read loop; tells the owner how each of them ended
    write thread  runs the connection's write loop

Producer and consumer subclass ``Endpoint``: they differ in what they do with a connection, and in when a lost
one counts as a failure. An endpoint has its two threads from a permit until the dial has failed or the
connection has ended. Then they rest until another permit, the same endpoint's or another one's. So at the end
of a program, when Python starts no more threads, an nsqd can still be dialed again.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Generic, TypeVar

from nsq.config import Config
from nsq.connection.backoff import DialBackoff
from nsq.connection.conn import Conn
from nsq.connection.handshake import describe
from nsq.connection.subscription import Subscription
from nsq.errors import ConnectionLost, DialFailed, NsqError
from nsq.log import Logger
from nsq.threads.owner import Owner
from nsq.threads.waiters import join_threads

log = Logger("nsq.connection")

#: The most endpoints of one client that dial at the same time.
DIALS = 32
#: Seconds that a write loop may take to end after its connection's read loop, which has waited for it.
_WRITER_GRACE = 1.0

#: Distinguishes the endpoints of a client: the address, and the key of the subscription or the number.
Key = tuple[str, Hashable]


@dataclass(frozen=True)
class Wanted:
    """An nsqd to which a client wants a connection, for this subscription or for publishing."""

    address: str
    subscription: Subscription | None = None
    given: bool = False  # by the user
    listed: bool = False  # by an nsqlookupd
    dial: bool = True  # Whether to dial it. If not, no nsqlookupd lists it any more: ask them again instead.
    number: int = 0  # above 0: one more endpoint for publishing to the same nsqd

    @property
    def key(self) -> Key:
        return self.address, (self.number or None) if self.subscription is None else self.subscription.key

    @property
    def label(self) -> str:
        """Its name among those of threads."""
        address, key = self.key
        return address if key is None else f"{address}/{key}"


class Status(Enum):
    WAITING = "waiting"
    DIALING = "dialing"
    CONNECTED = "connected"


class Endpoint:
    """One nsqd and its latest connection. ``wanted`` is None once the client wants it no more.

    The owner changes ``wanted`` and gives permits. From a permit until it reports, the read thread alone
    changes ``status``, ``conn`` and ``backoff``.
    """

    def __init__(
        self, wanted: Wanted, config: Config, clock: Callable[[], float], draw: Callable[[int], float]
    ) -> None:
        self.wanted: Wanted | None = wanted
        self.address, self.label = wanted.address, wanted.label
        self.subscription = wanted.subscription
        self.conn: Conn | None = None  # the latest, which may still be dialed
        self.status = Status.WAITING
        self.backoff = DialBackoff(draw)
        self.loops: LoopThreads | None = None  # as far as the owner knows: from a permit until the report
        self._config, self._clock = config, clock
        self._stopped = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label} {self.status.value}>"

    # What producer and consumer do with a connection: the read thread.

    def make_conn(self) -> Conn:
        raise NotImplementedError

    def connected(self, conn: Conn) -> None:
        """Note a new connection, before its loops run. Raises NsqError if it is not needed any more."""

    def refused(self, error: NsqError, news: bool) -> None:
        """Note that a dial has failed. ``news``: not for the same reason as the one before."""

    def ended(self, conn: Conn, cause: NsqError | None) -> None:
        """Set the pause after a connection has ended. ``cause`` is None if we asked for the end."""

    # The owner.

    def stop(self) -> None:
        """End a dial under way, and every later one. Does not wait."""
        self._stopped = True
        if self.conn is not None and self.status is not Status.CONNECTED:
            self.conn.close()

    def cut_off(self) -> None:
        if self.conn is not None:
            self.conn.close()

    def abandon(self) -> None:
        if self.conn is not None:
            self.conn.abandon()

    # The read thread.

    def dial(self) -> Conn | None:
        """Return a connection; None, with the reason in ``backoff``, if there is none."""
        self.conn = conn = self.make_conn()
        try:
            # After the line above: either ``stop`` sees the connection, or we see ``_stopped`` here.
            if self._stopped:
                conn.close()
            conn.connect(self._clock() + self._config.handshake_timeout)
            self.connected(conn)
        except BaseException as error:
            if not isinstance(error, NsqError):  # from a user's transport; SystemExit too: the thread goes on
                log.exception("dialing %s failed", self.address, extra={"nsqd_address": self.address})
                error = DialFailed(f"{self.address}: {error!r}")
            self._refused(conn, error)
            return None
        self.status = Status.CONNECTED
        return conn

    def _refused(self, conn: Conn, error: NsqError) -> None:
        conn.close()  # an unclosed connection would count as open
        news = str(error) != str(self.backoff.reason)
        self.backoff.failed(error, self._clock(), final=not error.retry)
        self.status = Status.WAITING
        try:
            self.refused(error, news)
        except Exception:
            log.exception("noting that %s refuses failed, which is a bug of ours", self.address)

    def read(self, conn: Conn) -> None:
        """Run the read loop of a new connection, until that ends."""
        try:
            self.ended(conn, conn.read_loop())
        except Exception as error:
            log.exception("the connection to %s failed, which is a bug of ours", self.address)
            conn.close()
            self.backoff.failed(ConnectionLost(f"{self.address}: {error!r}"), self._clock())
        self.status = Status.WAITING

    # Reports: any thread.

    @property
    def dialing(self) -> bool:
        return self.status is Status.DIALING

    @property
    def closing(self) -> bool:
        return self.conn is not None and self.conn.deliveries.closing

    @property
    def reason(self) -> str:
        """The reason why this nsqd has no connection; names its address."""
        reason = self.backoff.reason
        if reason is None:
            return f"{self.address}: {'still being dialed' if self.dialing else 'not reached yet'}"
        return describe(self.address, reason)

    def words(self, now: float) -> str:
        wanted = self.wanted
        origins = [] if wanted is None else ["given"] * wanted.given + ["listed"] * wanted.listed
        status = self.status.value
        if self.status is Status.WAITING:
            status = f"next dial in {max(0.0, self.backoff.due_at(urgent=False) - now):.1f} s"
        elif self.status is Status.CONNECTED and self.closing:
            status = "leaving"
        error = f"; last error: {self.reason}" if self.backoff.reason is not None else ""
        return f"nsqd {self.label} ({' and '.join(origins) or 'no longer listed'}): {status}{error}"


class LoopThreads:
    """Two threads that serve one endpoint after the other. The owner calls the methods."""

    def __init__(self, name: str, owner: Owner, endpoints: Endpoints[Any]) -> None:
        self.stuck = False  # a write loop has outlived its connection: they can serve no endpoint any more
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self._read, self._write)]
        self._name, self._owner, self._endpoints = name, owner, endpoints
        self._to_dial: queue.SimpleQueue[Endpoint | None] = queue.SimpleQueue()  # None: end
        self._to_write: queue.SimpleQueue[Conn | None] = queue.SimpleQueue()
        self._written: queue.SimpleQueue[None] = queue.SimpleQueue()  # for each write loop that has ended

    def start(self) -> None:
        """Start both. Raises RuntimeError when one cannot be started; call ``end`` then."""
        for thread in self.threads:
            thread.start()

    def serve(self, endpoint: Endpoint | None) -> None:
        """Dial for an endpoint, and run its connection. None: end both, after the connection's end."""
        self._to_dial.put(endpoint)

    def name_after(self, endpoint: Endpoint | None) -> None:
        label = "" if endpoint is None else f"-{endpoint.label}"
        for thread, job in zip(self.threads, ("read", "write"), strict=True):
            thread.name = f"{self._name}-{job}{label}"

    def _read(self) -> None:
        while (endpoint := self._to_dial.get()) is not None:
            conn = endpoint.dial()
            self._owner.ask(partial(self._endpoints.note, endpoint, ended=conn is None))
            if conn is None:
                continue
            self._to_write.put(conn)
            endpoint.read(conn)
            try:
                self._written.get(timeout=_WRITER_GRACE)
            except queue.Empty:
                self.stuck = True
            self._owner.ask(partial(self._endpoints.note, endpoint, ended=True))
        self._to_write.put(None)

    def _write(self) -> None:
        while (conn := self._to_write.get()) is not None:
            conn.write_loop()  # raises nothing
            self._written.put(None)


E = TypeVar("E", bound=Endpoint)


class Endpoints(Generic[E]):
    """All endpoints of a client, the schedule of their dials, and their threads. Only the owner calls the
    methods; other threads read ``table``, which is swapped, never changed.

    ``name`` begins the threads' names. ``make`` makes an endpoint, ``removed`` is called with one that is no
    longer wanted, ``search`` has the nsqlookupds asked again. ``urgent`` tells whether pauses must be short.
    With ``spare`` the threads for one more endpoint are kept ready.
    """

    def __init__(
        self,
        name: str,
        owner: Owner,
        make: Callable[[Wanted], E],
        clock: Callable[[], float],
        *,
        removed: Callable[[E], object] = lambda _: None,
        search: Callable[[], object] = lambda: None,
        urgent: Callable[[], bool] = lambda: False,
        spare: bool = False,
    ) -> None:
        self.table: dict[Key, E] = {}
        self.changed = False  # an endpoint has come, gone, or changed; the client sets it False again
        self._name, self._owner, self._make, self._clock = name, owner, make, clock
        self._removed, self._search, self._urgent = removed, search, urgent
        self._spare = spare
        # Of the table, those without threads, and those whose dial is under way. A client may have thousands
        # of connections, and looks at these after every event.
        self._waiting: dict[E, None] = {}
        self._dialing: set[E] = set()
        # Threads that serve no endpoint, and those that were asked to end. Other threads may look at them.
        self._resting: list[LoopThreads] = []
        self._ending: list[LoopThreads] = []
        self._stopped = False
        self._looked_at = -math.inf  # when ``dial_due`` was last called

    @property
    def all(self) -> tuple[E, ...]:
        return tuple(self.table.values())

    # Facts.

    def want(self, wanted: Mapping[Key, Wanted]) -> None:
        """Replace the wanted nsqds. One that is no longer wanted is kept while its connection lasts."""
        table = dict(self.table)
        for key, want in wanted.items():
            endpoint = table.get(key)
            if endpoint is None:
                table[key] = endpoint = self._make(want)
                self._waiting[endpoint] = None
                continue
            before, endpoint.wanted = endpoint.wanted, want
            endpoint.subscription = want.subscription  # for the next dial
            found_again = before is None or not before.dial or want.given > before.given
            if found_again and want.dial and endpoint.loops is None:
                endpoint.backoff.pause = 0.0
        self.table, self.changed = table, True
        for key in table.keys() - wanted.keys():
            endpoint = table[key]
            endpoint.wanted = None
            if endpoint.loops is None:
                self._remove(endpoint)

    def note(self, endpoint: E, *, ended: bool) -> None:
        """Note a new connection, or, ``ended``, a dial that has failed or a connection that has ended."""
        self.changed = True
        self._dialing.discard(endpoint)
        if not ended:
            return
        self._waiting[endpoint] = None
        loops, endpoint.loops = endpoint.loops, None
        assert loops is not None
        if loops.stuck:
            self._end(loops)
        else:
            loops.name_after(None)
            self._resting.append(loops)
        if endpoint.wanted is None:
            self._remove(endpoint)

    def _remove(self, endpoint: E) -> None:
        self.table = {key: each for key, each in self.table.items() if each is not endpoint}
        del self._waiting[endpoint]
        endpoint.stop()
        self._removed(endpoint)

    # The schedule.

    def dial_due(self) -> bool:
        """Permit those that are due to dial, ``DIALS`` at a time; return whether that started threads."""
        self._looked_at = now = self._clock()
        due = [each for each, due_at in self._due_times() if due_at <= now and not self._stopped]
        # Those first that have failed least, and longest ago.
        due.sort(key=lambda each: (each.backoff.failures, each.backoff.failed_at))
        started = search = False
        for endpoint in due:
            if len(self._dialing) >= DIALS:
                break
            if endpoint.wanted is not None and not endpoint.wanted.dial:
                # No nsqlookupd lists it: instead of dialing ask them again, less and less often.
                search = True
                endpoint.backoff.failed(endpoint.backoff.reason, now)
                continue
            try:
                if not self._resting:
                    self._start_two(endpoint)
                    started = True
            except RuntimeError as error:  # no more threads, or the interpreter is ending
                reason = ConnectionLost(f"{endpoint.address} is not dialed: no thread for it: {error}")
                endpoint.backoff.failed(reason, now)
                endpoint.refused(reason, endpoint.backoff.failures == 1)
                continue
            endpoint.status = Status.DIALING
            endpoint.loops = loops = self._resting.pop()
            loops.name_after(endpoint)
            del self._waiting[endpoint]
            self._dialing.add(endpoint)
            loops.serve(endpoint)
        while len(self._resting) > self._needed:
            self._end(self._resting.pop())
        if search:
            self._search()
        return started

    def next_due(self) -> float:
        """Return when to call ``dial_due`` again unless an endpoint reports before."""
        # Those that were due already wait until others end their dials.
        times = [due_at for _, due_at in self._due_times() if due_at > self._looked_at]
        return math.inf if self._stopped else min(times, default=math.inf)

    def _due_times(self) -> list[tuple[E, float]]:
        """Return the endpoints that may dial, each with the time when it is due."""
        urgent = self._urgent()
        return [(each, each.backoff.due_at(urgent=urgent)) for each in self._waiting]

    def expected(self) -> int:
        """Count the connections, including those whose first dial is under way or due."""
        # An nsqd that refused or was lost may stay away for hours: it gets its share when it is back.
        return sum(
            not each.closing
            if each.status is Status.CONNECTED
            else each.wanted is not None and each.wanted.dial and not each.backoff.failures
            for each in self.table.values()
        )

    # Threads.

    @property
    def threads(self) -> list[threading.Thread]:
        """All that may still run. Any thread may ask."""
        serving = [loops for each in self.all if (loops := each.loops) is not None]
        pairs = (*serving, *self._resting, *self._ending)
        return [thread for loops in pairs for thread in loops.threads]

    @property
    def _needed(self) -> int:
        """How many pairs of threads can be needed besides those that serve an endpoint."""
        if self._stopped:
            return 0
        return min(DIALS - len(self._dialing), len(self._waiting)) + self._spare

    def start_threads(self) -> None:
        """Start threads ahead of the dials. Raises RuntimeError when one cannot be started."""
        while len(self._resting) < self._needed:
            self._start_two(None)

    def _start_two(self, endpoint: E | None) -> None:
        loops = LoopThreads(self._name, self._owner, self)
        loops.name_after(endpoint)
        try:
            loops.start()
        except RuntimeError:
            self._end(loops)
            raise
        self._resting.append(loops)

    def _end(self, loops: LoopThreads) -> None:
        loops.serve(None)
        alive = [each for each in self._ending if any(thread.is_alive() for thread in each.threads)]
        self._ending = [*alive, loops]

    # The end.

    def stop(self) -> None:
        """End dials, and threads without a connection. Does not wait."""
        self._stopped = True
        for endpoint in self.all:
            endpoint.stop()
            if endpoint.loops is not None:
                endpoint.loops.serve(None)
        for loops in self._resting:
            loops.serve(None)

    def join(self, deadline: float, *, dialing: bool = True) -> list[str]:
        """Wait for the threads, also those that dial if ``dialing``; return the names of those that run."""
        dials = [each.loops for each in self.all if each.status is Status.DIALING and each.loops is not None]
        later = [] if dialing else [thread for each in dials for thread in each.threads]
        return join_threads([thread for thread in self.threads if thread not in later], deadline)

    def abandon(self) -> None:
        for endpoint in self.all:
            endpoint.abandon()
