"""A blocking publish at the speed of a socket: connections that serve one publish at a time.

    take        pops an idle connection off the nsqd's stack; without one the publish goes through the loops
    send        writes the command and reads nsqd's answer, on the caller's thread
    put_back    appends the connection to the stack; after anything odd, ``drop`` has it closed instead

Between ``take`` and ``put_back`` only the caller has the connection, so an exception out of a signal handler,
at any bytecode, costs this publish and this connection and nothing else. If it comes between two lines that
nothing guards, the connection is neither idle nor closed: ``sweep`` finds and closes it.

The pool's thread decides how many there are and closes them, and one thread dials them. The connection with
the two loops judges whether the nsqd is well: when that one ends, the idle connections here are closed too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from contextlib import suppress

from nsq.config import Config
from nsq.connection.handshake import Ready, dial
from nsq.errors import (
    ConnectionFailed,
    ConnectionLost,
    NsqError,
    ServerError,
    Unanswered,
    WireError,
    server_error,
)
from nsq.log import Logger
from nsq.producer.publishes import Publish, Verdict, unanswered
from nsq.transport.base import Transport
from nsq.transport.layered import LayeredStream
from nsq.wire import commands
from nsq.wire.frames import HEARTBEAT, OK, OK_FRAME, ErrorReply, Response, split_reply
from nsq.wire.layers import TlsContext

log = Logger("nsq.producer")

#: Seconds. A publish that misses a connection has one dialed only if another one missed it just before: a
#: program that publishes now and then is served by the loops, whose connection is open anyway.
_SOON = 1.0
#: Seconds without a dial after one that failed.
_PAUSE = 1.0
#: Seconds in which the loops notice that an nsqd is gone which has just left a publish unanswered.
_REST = 0.2
#: Seconds that an idle connection is kept when heartbeats are off.
_KEPT = 30.0
#: Seconds by which the timeout of a read may differ from the wanted one: setting it takes a system call.
_CLOSE_ENOUGH = 0.005
#: The most bytes of one write: write_timeout then demands progress, not a fast link.
_PIECE = 1024 * 1024


def draining(address: str) -> ConnectionFailed:
    """Return the reason for not using an nsqd that would refuse all publishes."""
    return ConnectionFailed(f"{address} is draining: it takes no publishes and will stop soon")


class OwnConn:
    """A connection that one caller at a time uses."""

    __slots__ = (
        "_config",
        "_exiting_not_stored",
        "_layered",
        "_stream",
        "_wait",
        "address",
        "closed",
        "failed",
        "holder",
        "in_step",
        "published",
        "readable",
        "used_at",
    )

    def __init__(self, address: str, ready: Ready, config: Config) -> None:
        self.address = address
        self.holder: Publish | None = None
        """The publish that uses it now."""
        self.used_at = -math.inf
        self.published = 0  # messages
        self.failed = 0  # publishes
        self.in_step = True
        """Whether the next bytes that nsqd sends will answer the next command."""
        self.closed = False
        self._config = config
        self._exiting_not_stored = ready.reply.exiting_not_stored
        self._layered = layered = ready.stream
        # Without layers use the inner stream directly: it saves a call.
        self._stream = layered if layered.stack.layers else layered.stream
        self._wait = 0.0  # the stream's read timeout
        self.readable: Callable[[], bool] | None = getattr(self._stream, "readable", None)
        """Returns whether nsqd has sent something, or has hung up. None: a user's own stream cannot tell."""

    def round_trip(self, publish: Publish, clock: Callable[[], float]) -> ServerError | None:
        """Send a publish and return None for nsqd's OK, or its error. Raises NsqError if it is not answered:
        close the connection then.
        """
        command = publish.command or commands.pub(publish.lane, publish.body)
        for start in range(0, len(command), _PIECE):
            left = max(publish.deadline - clock(), _CLOSE_ENOUGH)
            self._stream.write(command[start : start + _PIECE], min(left, self._config.write_timeout))
        wait = min(publish.deadline - clock(), self._config.read_timeout, publish.rules.patience)
        if abs(wait - self._wait) > _CLOSE_ENOUGH:
            self._set_wait(wait)
        data = self._stream.read()
        return None if data == OK_FRAME else self._answer(data, publish, clock)

    def _set_wait(self, wait: float) -> None:
        self._stream.read_timeout = self._wait = max(wait, _CLOSE_ENOUGH)

    def _answer(self, data: bytes, publish: Publish, clock: Callable[[], float]) -> ServerError | None:
        """Read until the answer is complete; answer heartbeats before and behind it."""
        self.in_step = False
        replies: list[Response | ErrorReply] = []
        while data or not replies:
            found = split_reply(data)
            if found is None:
                left = publish.deadline - clock()
                if left <= 0:
                    raise Unanswered(f"{self.address} has not answered in time")
                self._set_wait(min(left, self._config.read_timeout, publish.rules.patience))
                more = self._stream.read()
                if not more:
                    raise ConnectionLost(f"{self.address} closed the connection")
                data += more
                continue
            reply, data = found
            if reply.data == HEARTBEAT:
                self._stream.write(commands.NOP, self._config.write_timeout)
            else:
                replies.append(reply)
        reply = replies[0]
        known = (
            isinstance(reply, ErrorReply) or reply.data == OK or publish.rules.accepts(publish, reply.data)
        )
        if len(replies) > 1 or not known:
            said = b", ".join(each.data for each in replies)[:80]
            raise WireError(f"{self.address} sent a reply that a publish cannot have: {said!r}")
        error = None
        if isinstance(reply, ErrorReply):
            error = server_error(reply.data, exiting_not_stored=self._exiting_not_stored)
        self.in_step = error is None or not error.fatal  # nsqd closes after a fatal error
        return error

    def cut_off(self) -> None:
        """End the connection under the thread that uses it, which then drops it."""
        self.closed = True
        self._layered.close()

    def dispose(self) -> None:
        """Close the connection. No thread uses it, though an interrupted one may not have left the stream
        properly, which then keeps its descriptor open: ``abandon`` closes that in any case.
        """
        self.cut_off()
        self._layered.abandon()

    def abandon(self) -> None:
        self.closed = True
        self._layered.abandon()


class OwnConns:
    """All such connections to one nsqd. Only the pool's thread changes ``everyone``.

    ``dispose`` has that thread close a connection: an interrupt could leave it half closed here.
    """

    def __init__(
        self, config: Config, clock: Callable[[], float], dispose: Callable[[OwnConn], None]
    ) -> None:
        self.address = ""  # set before the first ``take``
        self.everyone: tuple[OwnConn, ...] = ()
        self.rests_until = -math.inf
        """Until then blocking publishes prefer another nsqd."""
        self._idle: list[OwnConn] = []
        self._gone = [0, 0]  # ``published`` and ``failed`` of connections that are closed
        self._limit = config.publish_connections
        self._missed_at = -math.inf
        self._asked = False  # one is being dialed, or there are as many as allowed
        self._dial_at = -math.inf  # not before
        self._stopped = False
        self._opening: LayeredStream | None = None
        self._suspects: dict[OwnConn, float] = {}
        self._config, self._clock, self._dispose = config, clock, dispose

    # Callers.

    def take(self, publish: Publish) -> OwnConn | None:
        """Take an idle connection for this publish; None when there is none."""
        while self._idle:
            try:
                conn = self._idle.pop()
            except IndexError:
                break
            conn.holder, conn.used_at = publish, publish.started
            if not conn.readable():  # type: ignore[misc]  # ``dial`` returns no other
                return conn
            self.drop(conn, publish)
        return None

    def send(self, publish: Publish, conn: OwnConn) -> list[Verdict]:
        """Send a publish, and put its connection back. Return no verdict when nsqd has stored it."""
        verdicts: list[Verdict] = []
        try:
            try:
                error = conn.round_trip(publish, self._clock)
            except NsqError as cause:
                conn.failed += 1
                self.drop(conn, publish)
                self.doubt()
                return self._unanswered(publish, cause)
            if error is None:
                conn.published += publish.messages
            else:
                conn.failed += 1
                took = self._clock() - publish.started
                verdicts = publish.rules.refused(
                    [publish], error, self.address, retry_uncertain=self._config.retry_uncertain, took=took
                )
                conn.in_step = not error.fatal
            self.put_back(conn)
        except BaseException:
            self.drop(conn, publish)
            raise
        return verdicts

    def _unanswered(self, publish: Publish, cause: NsqError) -> list[Verdict]:
        if isinstance(cause, Unanswered):
            publish.rules.note_silence(publish, self.address)
        if self._clock() >= publish.deadline:
            error = unanswered(publish, self.address, "no answer in time", cause)
            return [Verdict(publish, error, again=False)]
        retry = self._config.retry_uncertain
        return publish.rules.lost([publish], cause, self.address, executed=True, retry_uncertain=retry)

    def put_back(self, conn: OwnConn) -> None:
        if self._stopped or not conn.in_step:
            self._dispose(conn)
            self._asked = False
        else:
            conn.holder = None
            self._idle.append(conn)
            if self._stopped:  # after the line above: either ``stop`` finds the connection, or we see this
                self.drop_idle()

    def drop(self, conn: OwnConn, publish: Publish) -> None:
        """Have the connection closed, if this publish still has it."""
        if conn.holder is publish:
            self._dispose(conn)
            self._asked = False

    def doubt(self) -> None:
        """Use no connection of this nsqd's for a moment: it has left a publish unanswered. Then its publishes
        go through the loops, which judge it.
        """
        self.rests_until = self._clock() + _REST
        self.drop_idle()

    def drop_idle(self) -> None:
        """Have the idle connections closed: something is wrong with the nsqd. For any thread."""
        with suppress(IndexError):
            while True:
                self._dispose(self._idle.pop())
        self._asked = False

    def miss(self, now: float) -> bool:
        """Note that a publish found none; return whether the pool must be asked for one more."""
        soon, self._missed_at = now - self._missed_at < _SOON, now
        if self._asked or not soon or now < self._dial_at or not self._limit:
            return False
        self._asked = True
        return True

    # The pool's thread.

    @property
    def may_grow(self) -> bool:
        return sum(not conn.closed for conn in self.everyone) < self._limit and not self._stopped

    def adopt(self, conn: OwnConn) -> None:
        """Add a connection that has been dialed."""
        conn.used_at = self._clock()
        self.everyone += (conn,)
        self.put_back(conn)
        self._asked = False

    def sweep(self) -> None:
        """Close connections that were idle for long; forget closed ones, and those that an interrupted caller
        has lost: these are not idle, serve no publish, and did not at the last sweep.
        """
        now, beat = self._clock(), self._config.heartbeat_interval
        idle = set(self._idle.copy())
        suspects = {}
        for conn in self.everyone:
            if conn in idle:
                if now - conn.used_at > (beat if beat > 0 else _KEPT):
                    with suppress(ValueError):  # taken meanwhile
                        self._idle.remove(conn)
                        conn.dispose()
            elif conn.holder is None or conn.holder.done():
                suspects[conn] = conn.used_at
        gone = {conn for conn, used_at in suspects.items() if self._suspects.get(conn) == used_at}
        for conn in gone:
            conn.dispose()
            self._gone[0] += conn.published
            self._gone[1] += conn.failed
        self._suspects = suspects
        self._asked &= not gone
        self.everyone = tuple(conn for conn in self.everyone if conn not in gone)

    def stop(self) -> None:
        """Close what is idle, and the rest when it comes back; end a dial."""
        self._stopped = True
        if self._opening is not None:
            self._opening.close()
        self.drop_idle()

    def cut_off(self, spared: Container[int]) -> None:
        """Close all but the connections of publishes whose callers are ``spared``."""
        for conn in self.everyone:
            holder = conn.holder
            if holder is None or holder.caller not in spared:
                conn.cut_off()

    def dispose_of_lost(self) -> None:
        """Close the connections that interrupted callers lost, after ``cut_off`` and the last publish."""
        for conn in self.everyone:
            if conn.holder is None or conn.holder.done():
                conn.dispose()

    def abandon(self) -> None:
        """Drop everything in a forked child: it belongs to the parent."""
        self._stopped = True
        for conn in self.everyone:
            conn.abandon()
        if self._opening is not None:
            self._opening.abandon()

    # The dialing thread.

    def dial(self, transport: Transport, context: TlsContext | None) -> OwnConn | None:
        """Return a new connection, or None."""
        deadline = self._clock() + self._config.handshake_timeout
        try:
            ready = dial(
                self.address, self._config, transport, context, deadline=deadline, opened=self._opened
            )
            if ready.reply.draining:
                ready.stream.close()
                raise draining(self.address)
        except BaseException as error:  # a user's transport may raise anything, SystemExit too
            # Not a warning: the connection with the loops reports what is wrong with the nsqd.
            log.info("no connection to %s for a publish of its own: %s", self.address, error)
            self._dial_at = self._clock() + _PAUSE
            self._asked = False
            return None
        finally:
            self._opening = None
        conn = OwnConn(self.address, ready, self._config)
        if ready.rest or conn.readable is None:
            conn.dispose()
            # It cannot tell whether nsqd has sent something, as it must before each publish. No connection of
            # this transport can: dial no more.
            self._limit = 0
            return None
        return conn

    def _opened(self, stream: LayeredStream) -> None:
        self._opening = stream
        if self._stopped:  # after the line above: either ``stop`` sees the stream, or we see this
            stream.close()

    @property
    def busy(self) -> int:
        """How many serve a publish now."""
        return len(self.everyone) - len(self._idle)

    @property
    def published(self) -> int:
        """Messages that nsqd has stored over these connections."""
        return self._gone[0] + sum(conn.published for conn in self.everyone)

    @property
    def failed(self) -> int:
        """Publishes that have failed over these connections."""
        return self._gone[1] + sum(conn.failed for conn in self.everyone)
