"""The V2 protocol on nsqd's side: one ``Session`` per client.

``Connection`` passes it the bytes that arrive, and sends the bytes that it writes to its ``Link``. So tests
need no socket.
"""

from __future__ import annotations

import dataclasses
import functools
import ssl
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Protocol

from nsq.daemons.nsqd.core.backlog import Message, PartlyStored, StorageFailed
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import Subscriber
from nsq.daemons.nsqd.core.clock import Alarm, Clock, call_after
from nsq.daemons.nsqd.core.topic import COPIES_AT_ONCE, TopicStarting
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.session.authorization import AuthError, Authority, Credentials, Grant, Permit
from nsq.daemons.nsqd.session.negotiation import Agreement, Liveness, negotiate, reply_to
from nsq.daemons.nsqd.session.stream import BadMagic, Link, Refused, Stream, readable
from nsq.daemons.nsqd.session.subscription import Subscription
from nsq.daemons.serve.bodies import STALL_SECONDS, PendingBodies
from nsq.daemons.serve.logs import DaemonLog
from nsq.errors import LayerError
from nsq.wire.commands import Command, Limits, deferred_run
from nsq.wire.frames import CLOSE_WAIT, HEARTBEAT, OK, encode_error, encode_messages, encode_response
from nsq.wire.identify import AuthReply, BadJson, IdentifyRequest
from nsq.wire.layers import Deflate, Snappy, Tls

_OK_FRAME = encode_response(OK)
_HEARTBEAT_FRAME = encode_response(HEARTBEAT)

#: The most decompressed bytes whose commands are executed at once.
_MAX_PORTION = 64 * 1024

#: The most characters kept of a name in IDENTIFY, because a session keeps it as long as it lives.
_MAX_NAME = 1024
#: The largest secret of AUTH. It is kept to ask again when the grant expires.
_MAX_SECRET = 64 * 1024

#: A command's parsed body: None, bytes, a list of bytes (an MPUB's messages, the ids of a run of FINs), or a
#: list of delays and bytes (a run of DPUBs).
_Body = Any
#: The broker's ``publish`` or ``publish_deferred``.
_Publish = Callable[[str, Any, bool], int]


class SyncNotifier(Protocol):
    """Calls back when written messages are fsynced."""

    def on_synced(self, call: Callable[[int], None], /) -> int:
        """Return a ticket. When everything written so far is fsynced, call ``call`` with it or a later one;
        with a negative number if the sync failed. Never calls at once."""


class Environment:
    """The objects and counters that all sessions of one nsqd share."""

    def __init__(
        self,
        options: NsqdOptions,
        broker: Broker,
        clock: Clock,
        log: DaemonLog,
        *,
        tls: ssl.SSLContext | None = None,
        authority: Authority | None = None,
        sync_notifier: SyncNotifier | None = None,
        bodies: PendingBodies | None = None,
    ) -> None:
        self.sync_notifier = sync_notifier
        self.bodies = bodies or PendingBodies(
            max(options.max_total_body_size, options.max_body_size), clock.now
        )
        self.errors: Counter[str] = Counter()  # refusals by code
        self.http_errors: Counter[str] = Counter()
        self.connections = 0
        self.options = options
        self.broker = broker
        self.clock = clock
        self.log = log
        self.tls = tls
        self.authority = authority
        self.limits = Limits(
            max_msg_size=options.max_msg_size,
            max_body_size=options.max_body_size,
            max_defer_ms=round(options.max_defer_timeout * 1000),
        )


class Session:
    """Executes a client's commands and replies. It closes its link; ``lost`` reports the connection's end."""

    def __init__(self, environment: Environment, link: Link, remote_address: str) -> None:
        self._environment = environment
        self._options = environment.options
        self._broker = environment.broker
        self._clock = environment.clock
        self._log = environment.log
        self.remote_address = remote_address
        self.connected_at = environment.clock.time_ns() // 1_000_000_000
        self._remote_ip = remote_address.rpartition(":")[0].strip("[]")
        # The defaults for a client that sends no IDENTIFY.
        self.request = IdentifyRequest(client_id=self._remote_ip, hostname=self._remote_ip)
        self.agreement = Agreement.initial(environment.options)
        self.tls: Tls | None = None
        self.pub_counts: defaultdict[str, int] = defaultdict(int)
        self._link = link
        self._stream = Stream(link, environment.limits)
        self._subscription = Subscription(environment.broker, environment.options)
        self._permit = Permit(environment.authority is not None, environment.clock, self._ask, self._decide)
        self._suspended = False
        self._waiting: list[Command] = []
        self._copies = 0  # made by publishes since other clients had their turns
        self._bodies = environment.bodies
        self._body_size = 0  # bytes of an unfinished command, as last reported to ``_bodies``
        self._waits_for_room = False
        self._room_alarm = Alarm(environment.clock, self._look_for_room)
        self._check_tls_first = environment.options.requires_tls
        self._durable = environment.sync_notifier is not None
        self._ended = False
        self._made_channel = False  # whether a SUB whose reply is held created its channel
        self._liveness = Liveness(self._clock, beat=self._send_heartbeat, silent=self._on_silence)
        self._handlers: dict[bytes, Callable[[list[bytes], _Body], None]] = {
            b"FIN": self._fin,
            b"RDY": self._subscription.rdy,
            b"PUB": self._pub,
            b"MPUB": self._mpub,
            b"DPUB": self._dpub,
            b"REQ": self._subscription.req,
            b"TOUCH": self._subscription.touch,
            b"NOP": self._nop,
            b"SUB": self._sub,
            b"CLS": self._cls,
            b"IDENTIFY": self._identify,
            b"AUTH": self._auth,
        }
        self._liveness.start(self.agreement.heartbeat)

    # For /stats.

    @property
    def state(self) -> int:
        return self._subscription.state

    @property
    def subscriber(self) -> Subscriber | None:
        return self._subscription.subscriber

    @property
    def grant(self) -> Grant | None:
        return self._permit.grant

    # Commands in.

    def receive(self, data: bytes) -> None:
        """Execute the commands that are complete now, and send the replies."""
        if self._ended:
            return
        try:
            for commands in self._stream.read(data):
                self._liveness.heard_at = self._clock.now()
                self._execute(commands)
            malformed = self._stream.parser.error
            if malformed is not None and not self._suspended:
                self._refuse(bytes(malformed))
            else:
                self._stream.flush()
                if self._stream.layered:
                    self._execute_rest_later()
        except BadMagic as error:
            self._log.error("client(%s) bad protocol magic %s", self.remote_address, error)
            self._environment.errors["E_BAD_PROTOCOL"] += 1
            self._stream.write(encode_error(b"E_BAD_PROTOCOL"))
            self._end()
        except LayerError as error:
            self._on_layer_error(error)
        if self._durable:
            self._hold_until_synced()
        if self._stream.parser.held != self._body_size and not self._ended:
            self._count_body()

    # An incomplete body.

    def _count_body(self) -> None:
        self._body_size = self._stream.parser.held
        self._bodies.count(self, self._body_size)

    def wait_for_room(self) -> None:
        """Stop reading: the unfinished bodies of all clients together are too large."""
        self._waits_for_room = True
        self._link.pause_reading()
        self._room_alarm.set(self._clock.now() + STALL_SECONDS)

    def go_on(self) -> None:
        self._waits_for_room = False
        self._room_alarm.cancel()
        self._liveness.heard_at = self._clock.now()
        self._link.resume_reading()

    def _look_for_room(self) -> None:
        self._room_alarm.set(self._clock.now() + STALL_SECONDS)
        self._bodies.cut_off_the_idle()

    def cut_off(self) -> None:
        self._refuse(b"E_BAD_BODY the body arrives too slowly while other clients wait")

    # With --durable, the session holds replies until the preceding writes are fsynced.

    def _hold_until_synced(self) -> None:
        """Hold the current replies until the next sync, also after commands that failed."""
        notifier = self._environment.sync_notifier
        if notifier is not None and self._stream.unsealed:
            self._stream.seal(notifier.on_synced(self._synced))

    def _synced(self, ticket: int) -> None:
        if ticket < 0:
            # Neither OK nor an error would be true, so close without a reply: the client must publish again.
            self._log.error("client(%s) its messages may be lost: disk failure", self.remote_address)
            self._stream.drop_held()
            if self._made_channel:
                self._stream.write(encode_error(b"E_SUB_FAILED SUB failed the channel could not be saved"))
            self._end()
            return
        self._made_channel = False
        try:
            self._stream.release(ticket)
        except LayerError as error:
            self._on_layer_error(error)

    def _execute_rest_later(self) -> None:
        """Execute the rest later: a few compressed bytes can expand to a thousand times as many commands."""
        if self._stream.readable:
            self._stream.pause()
            self._clock.call_soon(self._execute_rest)

    def _execute_rest(self) -> None:
        if not self._ended and not self._suspended:
            self._stream.resume()
            self.receive(b"")

    def _execute(self, commands: list[Command]) -> None:
        handlers = self._handlers
        in_runs = self._environment.authority is None
        body: _Body
        position, end = 0, len(commands)
        while position < end:
            verb, params, body = commands[position]
            position += 1
            if verb == b"PUB":
                # Consecutive PUBs to a topic are published as one batch, which costs little more than one.
                # Not with auth servers: a grant may expire between two PUBs.
                body = [body]
                while in_runs and position < end and commands[position][1] is params:
                    body.append(commands[position][2])
                    position += 1
            elif verb == b"DPUB":
                body = deferred_run(commands, position - 1, end if in_runs else position)
                position += len(body) - 1
            try:
                if self._check_tls_first:
                    self._check_tls(verb)
                handler = handlers.get(verb)
                if handler is None:
                    raise Refused("E_INVALID", f"invalid command {readable(verb)}")
                handler(params, body)
            except Refused as refused:
                self._answer_refusal(refused)
            if self._ended:
                return
            if self._suspended:
                self._waiting = commands[position:]
                return

    def _check_tls(self, verb: bytes) -> None:
        if self.tls is None and verb != b"IDENTIFY":
            raise Refused("E_INVALID", f"cannot {readable(verb)} in current state (TLS required)")

    def _answer_refusal(self, refused: Refused) -> None:
        if refused.fatal:
            self._refuse(bytes(refused))
        else:
            self._log.debug("client(%s) - %s", self.remote_address, refused)
            self._environment.errors[str(refused).partition(" ")[0]] += 1
            self._stream.write(encode_error(bytes(refused)))

    def _refuse(self, reason: bytes) -> None:
        if self._ended:
            return
        shown = reason.decode("utf-8", "backslashreplace")
        self._log.error("client(%s) - %s", self.remote_address, shown)
        self._environment.errors[shown.partition(" ")[0]] += 1
        self._stream.write(encode_error(reason))
        self._end()

    # Messages out.

    @property
    def full(self) -> bool:
        return self._link.full

    def deliver(self, messages: list[Message]) -> None:
        try:
            self._stream.write(b"".join(encode_messages(messages)))
        except LayerError as error:
            self._on_layer_error(error)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except LayerError as error:
            self._on_layer_error(error)

    def writable(self) -> None:
        """Go on: the link is no longer full."""
        self._subscription.wake()
        self.receive(b"")

    # Closing, by either side.

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._clean_up()
            self._stream.finish()

    def _on_layer_error(self, error: LayerError) -> None:
        self._log.error("client(%s) - %s", self.remote_address, error)
        self._end()

    def lost(self) -> None:
        """Clean up after the connection has ended."""
        self._ended = True
        self._clean_up()
        self._stream.drop()
        self._waiting.clear()
        self.tls = None  # free it now: the session is part of a reference cycle

    def _clean_up(self) -> None:
        self._liveness.stop()
        self._room_alarm.cancel()
        self._subscription.end()
        self._broker.unfinished.discard(self)
        if self._body_size:
            self._body_size = 0
            self._bodies.count(self, 0)

    def channel_closed(self) -> None:
        self._subscription.channel_closed()
        self._end()

    def close(self) -> None:
        """End the connection, because nsqd stops."""
        self._end()

    def _send_heartbeat(self) -> None:
        # A client that has not sent the magic yet may not speak V2.
        # The first frame after a TLS handshake must be the OK that confirms it.
        if self._stream.magic_received and not self._stream.handshaking:
            try:
                self._stream.write_at_once(_HEARTBEAT_FRAME)
            except LayerError as error:
                self._on_layer_error(error)

    def _on_silence(self) -> None:
        if self._suspended or self._waits_for_room:
            self._liveness.restart_silence()
            return
        self._log.error("client(%s) sent nothing for two heartbeat intervals", self.remote_address)
        self._end()

    # IDENTIFY, and the layers it negotiates.

    def _identify(self, params: list[bytes], body: _Body) -> None:
        self._subscription.require_init("IDENTIFY")
        try:
            request = IdentifyRequest.decode(body)
        except BadJson:
            raise Refused("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
        request = dataclasses.replace(
            request,
            client_id=(request.client_id or request.short_id)[:_MAX_NAME],
            hostname=(request.hostname or request.long_id)[:_MAX_NAME],
            user_agent=request.user_agent[:_MAX_NAME],
            topology_region=request.topology_region[:_MAX_NAME],
            topology_zone=request.topology_zone[:_MAX_NAME],
            short_id="",
            long_id="",
        )
        agreement = negotiate(request, self._options)
        # Held replies would have to be sent through the layers in force when they were written.
        too_late = self._stream.layered or self._stream.holding
        if too_late and (agreement.tls or agreement.snappy or agreement.deflate):
            raise Refused("E_INVALID", "cannot IDENTIFY in current state")
        self.request, self.agreement = request, agreement
        self._liveness.start(agreement.heartbeat)
        if not request.feature_negotiation:
            self._stream.write(_OK_FRAME)
            return
        self._stream.write(
            encode_response(reply_to(agreement, self._options, draining=self._broker.draining).encode())
        )
        if agreement.tls and self._environment.tls is not None:
            layer = Tls(self._environment.tls, server_side=True, server_hostname=None)
            self._stream.push_tls(layer, self._encrypted)
        else:
            self._compress()

    def _encrypted(self, layer: Tls) -> None:
        self.tls = layer
        self._stream.write(_OK_FRAME)
        self._compress()

    def _compress(self) -> None:
        """Start the negotiated compression, and confirm it by an OK through the new layer."""
        if self.agreement.snappy:
            self._stream.push(Snappy(_MAX_PORTION))
        elif self.agreement.deflate:
            self._stream.push(Deflate(self.agreement.deflate_level, _MAX_PORTION))
        else:
            return
        self._stream.write(_OK_FRAME)

    # AUTH, and permissions.

    def _auth(self, params: list[bytes], body: _Body) -> None:
        self._subscription.require_init("AUTH")
        if len(body) > _MAX_SECRET:
            raise Refused("E_BAD_BODY", f"AUTH body too big {len(body)} > {_MAX_SECRET}")
        self._permit.authenticate(readable(body), self._authenticated)

    def _authenticated(self, grant: Grant) -> None:
        reply = AuthReply(
            identity=grant.identity, identity_url=grant.identity_url, permission_count=len(grant.rules)
        )
        self._stream.write(encode_response(reply.encode()))

    def _ask(self, secret: str, then: Callable[[Grant], None]) -> None:
        common_name = self.tls.peer_common_name if self.tls is not None else ""
        credentials = Credentials(secret, self._remote_ip, self.tls is not None, common_name)
        authority = self._suspend()
        authority.ask(credentials, lambda answer: self._authority_answered(answer, then))

    def _decide(self, grant: Grant, topic: str, channel: str, then: Callable[[Grant], None]) -> None:
        authority = self._suspend()
        authority.decide(grant, topic, channel, lambda answer: self._authority_answered(answer, then))

    def _suspend(self) -> Authority:
        """Execute no further commands until the authority has replied."""
        authority = self._environment.authority
        if authority is None:
            raise Refused("E_AUTH_DISABLED", "AUTH disabled")
        self._suspended = True
        self._stream.pause()
        return authority

    def _authority_answered(self, answer: Grant | AuthError, then: Callable[[Grant], None]) -> None:
        if self._ended:
            return
        self._suspended = False
        self._liveness.heard_at = self._clock.now()
        try:
            self._act_on(answer, then)
            self._catch_up()
        except LayerError as error:
            self._on_layer_error(error)
        self._hold_until_synced()

    def _act_on(self, answer: Grant | AuthError, then: Callable[[Grant], None]) -> None:
        try:
            if isinstance(answer, AuthError):
                self._log.error("client(%s) - %s", self.remote_address, answer)
                raise Refused("E_AUTH_FAILED", "AUTH failed")
            then(answer)
        except Refused as refused:
            self._answer_refusal(refused)

    def _catch_up(self) -> None:
        """Execute the commands that were read before the session was suspended."""
        if self._ended:
            return
        if not self._suspended:
            commands, self._waiting = self._waiting, []
            self._execute(commands)
        if self._suspended:
            self._stream.flush()
        elif not self._ended:
            self._stream.resume()
            self.receive(b"")

    # Publishing.

    def _pub(self, params: list[bytes], body: _Body) -> None:
        if self._environment.authority is None:  # one call less for each PUB
            self._publish("PUB", self._broker.publish, params[0].decode(), body)
        else:
            self._publish_if_allowed("PUB", self._broker.publish, params, body)

    def _mpub(self, params: list[bytes], body: _Body) -> None:
        self._publish_if_allowed("MPUB", self._broker.publish, params, body)

    def _dpub(self, params: list[bytes], body: _Body) -> None:
        if body[0][0]:
            self._publish_if_allowed("DPUB", self._broker.publish_deferred, params, body)
        else:
            self._publish_if_allowed("DPUB", self._broker.publish, params, [body[0][1]])

    def _publish_if_allowed(self, verb: str, publish: _Publish, params: list[bytes], bodies: _Body) -> None:
        arguments = verb, publish, params[0].decode(), bodies
        self._permit.when_allowed(verb, params[0], b"", self._publish, *arguments)

    def _publish(self, verb: str, publish: _Publish, topic: str, bodies: list[Any], start: int = 0) -> None:
        """Publish the bodies from ``start`` on, in parts. Answer PUBs and DPUBs part by part, an MPUB at the
        end. ``publish`` is the broker's ``publish``, or ``publish_deferred``, whose bodies come with delays.
        """
        end = start + self._broker.at_once(topic) if len(bodies) > 1 else 1
        part = bodies[start:end] if start or end < len(bodies) else bodies
        try:
            self._copies += publish(topic, part, start > 0)
        except TopicStarting as starting:
            again = functools.partial(self._publish, verb, publish, topic, bodies, start)
            self._wait_for(starting.topic.when_started, again)
            return
        except PartlyStored as error:
            self._refuse_partly_stored(verb, error)
            return
        except StorageFailed as error:
            raise Refused(f"E_{verb}_FAILED", f"{verb} failed {error}") from None
        self.pub_counts[topic] += len(part)
        last = end >= len(bodies)
        if last or verb != "MPUB":
            if self._durable:
                self._stream.hold()
            self._stream.write(_OK_FRAME if verb == "MPUB" else _OK_FRAME * len(part))
        if not last:
            self._broker.unfinished.add(self)
            self._end_turn(topic, functools.partial(self._publish, verb, publish, topic, bodies, end))
            return
        if start:
            self._broker.unfinished.discard(self)
        if self._copies >= COPIES_AT_ONCE:
            self._end_turn(topic)

    def _refuse_partly_stored(self, verb: str, error: PartlyStored) -> None:
        """Refuse messages that consumers may get all the same. Only the error of an MPUB says so: instead of
        that of a PUB or DPUB, close without an answer.
        """
        if verb == "MPUB":
            raise Refused("E_MPUB_FAILED", f"MPUB failed {error}") from None
        self._log.error("client(%s) %s neither stored nor refused: %s", self.remote_address, verb, error)
        self._end()

    def _end_turn(self, topic_name: str, go_on: Callable[[], None] = lambda: None) -> None:
        """Serve other clients and let the topic's channels catch up, then go on."""
        self._copies = 0
        topic = self._broker.topics.get(topic_name)
        if topic is not None and topic.crowded:
            self._wait_for(topic.when_caught_up, go_on)
            return
        took = self._clock.now() - self._liveness.heard_at  # which was set when the turn began
        self._wait_for(functools.partial(call_after, took, self._clock), go_on)

    def _wait_for(self, when: Callable[[Callable[[], None]], object], publish: Callable[[], None]) -> None:
        """Execute no further commands until ``when`` calls back (a topic has its channels, is not crowded any
        more, or other clients have been served); then publish.
        """
        self._suspended = True
        self._stream.pause()
        when(lambda: self._publish_now(publish))

    def _publish_now(self, publish: Callable[[], None]) -> None:
        if self._ended:
            return
        self._suspended = False
        self._liveness.heard_at = self._clock.now()
        try:
            try:
                publish()
            except Refused as refused:
                self._answer_refusal(refused)
            self._catch_up()
        except LayerError as error:
            self._on_layer_error(error)
        self._hold_until_synced()

    # Subscribing.

    def _sub(self, params: list[bytes], body: _Body) -> None:
        topic, channel = self._subscription.check(params, self.agreement)
        self._permit.when_allowed("SUB", topic, channel, self._subscribe, topic.decode(), channel.decode())

    def _subscribe(self, topic: str, channel: str) -> None:
        found = self._broker.topics.get(topic)
        new = found is None or channel not in found.channels
        self._subscription.begin(topic, channel, self, self.agreement)
        if new:
            self._made_channel = True
            if self._durable:
                self._stream.hold()
        self._stream.write(_OK_FRAME)

    def _cls(self, params: list[bytes], body: _Body) -> None:
        self._subscription.cls()
        self._stream.write(encode_response(CLOSE_WAIT))

    def _fin(self, params: list[bytes], body: _Body) -> None:
        for failed in self._subscription.fin(params, body):
            self._answer_refusal(failed)

    def _nop(self, params: list[bytes], body: _Body) -> None:
        """Do nothing: the reply to a heartbeat only shows that the client is alive."""
