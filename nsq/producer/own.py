"""A blocking publish at the speed of a socket: connections that serve one caller at a time.

    take    pops an idle connection off the nsqd's stack; without one the publish goes through the loops
    send    writes the command and reads nsqd's reply, on the caller's thread, and puts the connection back;
            after anything odd it has the connection closed instead

Between the two only the caller has the connection, so an exception out of a signal handler,
at any bytecode, costs this publish and this connection and nothing else. If it comes between two lines that
nothing guards, the connection is neither idle nor used nor closed: ``reap`` finds and closes it.

The pool's thread decides how many there are and closes them, and one thread dials them. The connection with
the two loops judges whether the nsqd is well: when that one ends, the idle connections here are closed too.
"""

from __future__ import annotations

import _thread
import math
import time
from collections.abc import Callable, Collection, Container
from contextlib import suppress

from nsq.config import Config
from nsq.connection.handshake import Ready, ReplyStream, dial
from nsq.errors import ConnectionFailed, ConnectionLost, NsqError, ServerError, WireError, server_error
from nsq.log import Logger
from nsq.producer.publishes import Publish
from nsq.transport.base import Transport
from nsq.transport.layered import LayeredStream
from nsq.wire.frames import HEARTBEAT, OK, OK_FRAME, ErrorReply, Response
from nsq.wire.layers import TlsContext

log = Logger("nsq.producer")

#: Seconds. A publish that misses a connection has one dialed only if another one missed it just before: a
#: program that publishes now and then is served by the loops, whose connection is open anyway.
_SOON = 1.0
_PAUSE = 1.0  # seconds without a dial after one that failed
#: Seconds without round trips to an nsqd that has left a publish unanswered. If it is gone, the loops have
#: noticed that by then.
_REST = 0.2
_KEPT = 30.0  # seconds that an idle connection is kept when heartbeats are off
_SHORTEST = 0.005  # seconds of the shortest timeout of a read or a write
#: Seconds. An nsqd that ends hangs up on all connections together, so a look at one of them serves all that
#: were used a moment ago, for so long. A look is a system call, in which another thread may take the GIL.
_LOOK_INTERVAL = 0.001
#: Seconds after its last use in which a connection counts as used a moment ago: it has not been closed alone.
_FRESH = 0.005
_REPLY = 512  # bytes to read at once: more than a reply has
#: The most bytes that any idle connection takes at once, so that writing them takes no time worth a look at
#: the clock.
_AT_ONCE = 4096
_PIECE = 1024 * 1024  # the most bytes of one write: write_timeout then demands progress, not a fast link


def draining(address: str) -> ConnectionFailed:
    """Return the reason for not using an nsqd that would refuse all publishes."""
    return ConnectionFailed(f"{address} is draining: it takes no publishes and will stop soon")


class OwnConn:
    """A connection that one caller at a time uses."""

    def __init__(self, address: str, ready: Ready, config: Config) -> None:
        self.address = address
        self.caller: int | None = None  # the thread that uses it now
        self.deadline = -math.inf  # when that thread has stopped using it, at the latest
        self.used_at = -math.inf
        self.published = 0  # messages
        self.failed = 0  # publishes
        self.closed = False
        self._config = config
        self._exiting_not_stored = ready.reply.exiting_not_stored
        self._layered = layered = ready.stream
        # Without layers use the inner stream directly: it saves a call.
        self._stream = layered if layered.stack.layers else layered.stream
        self._replies = ReplyStream(address, self._stream)
        self._limits = (0.0, 0.0)  # the seconds and the patience for which the stream's read timeout is set
        #: Returns whether nsqd has sent something, or has hung up. None: a user's own stream cannot tell.
        self.readable: Callable[[], bool] | None = getattr(self._stream, "readable", None)

    def round_trip(self, command: bytes, seconds: float, patience: float) -> bytes:
        """Send a command and return nsqd's response, or raise its error, which is a ServerError. Any other
        NsqError means that it was not answered: close the connection then.
        """
        if len(command) <= _AT_ONCE:
            self._stream.write(command, seconds)
        else:
            seconds = self._write_large(command, seconds)
        if (seconds, patience) != self._limits:  # setting it takes a system call
            self._stream.read_timeout = self._wait(seconds, patience)
            self._limits = seconds, patience
        data = self._stream.read(_REPLY)
        return OK if data == OK_FRAME else self._answer(data, self._wait(seconds, patience))

    def _wait(self, seconds: float, patience: float) -> float:
        return max(min(seconds, patience, self._config.read_timeout), _SHORTEST)

    def _write_large(self, command: bytes, seconds: float) -> float:
        """Write it piece by piece; return the seconds that are left."""
        deadline = time.monotonic() + seconds
        for start in range(0, len(command), _PIECE):
            left = max(deadline - time.monotonic(), _SHORTEST)
            self._stream.write(command[start : start + _PIECE], min(left, self._config.write_timeout))
        return deadline - time.monotonic()

    def _answer(self, data: bytes, wait: float) -> bytes:
        """Read on until the reply is complete; answer heartbeats before and behind it."""
        if not data:
            raise ConnectionLost(f"{self.address} closed the connection")
        replies = self._replies
        # What has come may be a heartbeat: the publish's time has passed on.
        replies.rest, replies.deadline = data, min(time.monotonic() + wait, self.deadline)
        self._limits = (0.0, 0.0)  # what it sets is not known here
        reply: Response | ErrorReply | None = None
        while reply is None or replies.rest:
            frame = replies.next_frame()
            if frame.data == HEARTBEAT:
                continue
            if reply is not None:
                raise _odd(self.address, b", ".join([reply.data, frame.data]))
            reply = frame
        if isinstance(reply, ErrorReply):
            raise server_error(reply.data, exiting_not_stored=self._exiting_not_stored)
        return reply.data

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


def _odd(address: str, said: bytes) -> WireError:
    return WireError(f"{address} sent a reply that a publish cannot have: {said[:80]!r}")


class OwnConns:
    """All such connections to one nsqd. Only the pool's thread changes ``everyone``.

    ``dispose`` has that thread close a connection: an interrupt could leave it half closed here.
    """

    def __init__(
        self, address: str, config: Config, clock: Callable[[], float], dispose: Callable[[OwnConn], None]
    ) -> None:
        self.address = address
        self.everyone: tuple[OwnConn, ...] = ()
        self.suspended_until = -math.inf  # until then blocking publishes prefer another nsqd
        self._idle: list[OwnConn] = []
        self._counts = [0, 0]  # ``published`` and ``failed`` of connections that are closed
        self._limit = config.publish_connections
        self._missed_at = self._looked_at = -math.inf
        self._asked = False  # one is being dialed, or there are as many as allowed
        self._dial_at = -math.inf  # not before
        self._stopped = False
        self._opening: LayeredStream | None = None
        self._unused: dict[OwnConn, float] = {}  # by connection that was lost, perhaps: its ``used_at``
        self._config, self._clock, self._dispose = config, clock, dispose

    # Callers.

    def take(self, now: float) -> OwnConn | None:
        """Take an idle connection; None when there is none."""
        while self._idle:
            try:
                conn = self._idle.pop()
            except IndexError:
                break
            fresh = now - conn.used_at < _FRESH and now - self._looked_at < _LOOK_INTERVAL
            if not fresh:
                self._looked_at = now
            if fresh or not conn.readable():  # type: ignore[misc]  # ``dial`` returns no other
                conn.used_at = now
                return conn
            self._drop(conn)
        return None

    def send(
        self, conn: OwnConn, command: bytes, seconds: float, patience: float, publish: Publish | None = None
    ) -> None:
        """Make a round trip over a connection that was taken, and put it back. Raise NsqError unless nsqd has
        stored what the command publishes: without a ``publish``, one message. Then the connection is closed,
        and the trip ends when the caller sets ``conn.caller`` to None.
        """
        try:
            conn.caller = _thread.get_ident()
            response = conn.round_trip(command, seconds, patience)
            if response != OK and (publish is None or not publish.rules.accepts(publish, response)):
                raise _odd(self.address, response)
            conn.published += 1 if publish is None else publish.messages
            conn.caller = None
            self._put_back(conn)
        except BaseException as error:
            if conn.caller is not None:  # else a signal handler has interrupted us when it was put back
                self._drop(conn)
                if isinstance(error, NsqError):
                    conn.failed += 1
                    if not isinstance(error, ServerError):
                        # Unanswered. For a moment the loops get this nsqd's publishes, and judge it.
                        self.suspended_until = self._clock() + _REST
                        self.drop_idle()
            raise

    def _put_back(self, conn: OwnConn) -> None:
        self._idle.append(conn)
        if self._stopped:  # after the line above: either ``stop`` finds the connection, or we see this
            self.drop_idle()

    def _drop(self, conn: OwnConn) -> None:
        self._dispose(conn)
        self._asked = False

    def drop_idle(self) -> None:
        """Have the idle connections closed: something is wrong with the nsqd. Any thread may call this."""
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

    def in_use(self, exempt: Collection[int]) -> list[OwnConn]:
        """Return those that other threads than the ``exempt`` ones use now. Any thread may call this."""
        # After its deadline a caller does not count: it was interrupted twice, and so is still noted here.
        since = self._clock() - _REST
        callers = [(conn, conn.caller) for conn in self.everyone if conn.deadline > since]
        return [conn for conn, caller in callers if caller is not None and caller not in exempt]

    # The pool's thread.

    @property
    def may_grow(self) -> bool:
        return sum(not conn.closed for conn in self.everyone) < self._limit and not self._stopped

    def adopt(self, conn: OwnConn) -> None:
        conn.used_at = self._clock()
        self.everyone += (conn,)
        self._put_back(conn)
        self._asked = False

    def reap(self) -> None:
        """Close connections that were idle for long. Close and forget those that an interrupted caller has
        lost: at two looks in a row no thread uses them, and they are not idle.
        """
        now, beat = self._clock(), self._config.heartbeat_interval
        idle = set(self._idle.copy())
        unused = {}
        for conn in self.everyone:
            if conn in idle:
                if now - conn.used_at > (beat if beat > 0 else _KEPT):
                    with suppress(ValueError):  # taken meanwhile
                        self._idle.remove(conn)
                        conn.dispose()
            elif conn.caller is None or conn.closed or conn.deadline < now:
                unused[conn] = conn.used_at
        gone = {conn for conn, used_at in unused.items() if self._unused.get(conn) == used_at}
        for conn in gone:
            conn.dispose()
            self._counts[0] += conn.published
            self._counts[1] += conn.failed
        self._unused = unused
        self._asked &= not gone
        self.everyone = tuple(conn for conn in self.everyone if conn not in gone)

    def stop(self) -> None:
        """Close what is idle, and the rest when it comes back; end a dial."""
        self._stopped = True
        if self._opening is not None:
            self._opening.close()
        self.drop_idle()

    def cut_off(self, exempt: Container[int | None]) -> None:
        """End all connections but those that the ``exempt`` threads use."""
        for conn in self.everyone:
            if conn.caller not in exempt:
                conn.cut_off()

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
        address, config = self.address, self._config
        try:
            ready = dial(address, config, transport, context, deadline=deadline, opened=self._opened)
            if ready.reply.draining:
                ready.stream.close()
                raise draining(address)
        except BaseException as error:  # a user's transport may raise anything, SystemExit too
            # Not a warning: the connection with the loops reports what is wrong with the nsqd.
            log.info("no connection to %s for a publish of its own: %s", address, error)
            self._dial_at = self._clock() + _PAUSE
            self._asked = False
            return None
        finally:
            self._opening = None
        conn = OwnConn(address, ready, config)
        if ready.rest or conn.readable is None:
            conn.dispose()
            # Before each publish ``take`` must ask the stream whether nsqd has sent something. As this one
            # cannot tell, no other stream of this transport can: dial no more.
            self._limit = 0
            return None
        return conn

    def _opened(self, stream: LayeredStream) -> None:
        self._opening = stream
        if self._stopped:  # after the line above: either ``stop`` sees the stream, or we see this
            stream.close()

    # Reports: any thread.

    @property
    def busy(self) -> int:
        """How many serve a publish now."""
        return len(self.everyone) - len(self._idle)

    @property
    def published(self) -> int:
        return self._counts[0] + sum(conn.published for conn in self.everyone)

    @property
    def failed(self) -> int:
        return self._counts[1] + sum(conn.failed for conn in self.everyone)
