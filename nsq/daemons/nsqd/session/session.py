"""The V2 protocol as nsqd speaks it: one ``Session`` per client.

The shell gives it the bytes that arrive and carries away what it writes to its ``Link``; everything a client
can send is testable without a socket.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

from nsq.daemons.logs import DaemonLog
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import Channel, NotInFlight, TooManyConsumers
from nsq.daemons.nsqd.core.clock import Clock
from nsq.daemons.nsqd.core.message import Message
from nsq.daemons.nsqd.core.subscriber import Subscriber
from nsq.daemons.nsqd.options import Options
from nsq.daemons.nsqd.session.authorization import AuthError, Authority, Credentials, Grant
from nsq.daemons.nsqd.session.liveness import Liveness
from nsq.daemons.nsqd.session.negotiation import Agreement, negotiate, reply_to
from nsq.daemons.nsqd.session.refusals import Failed, Refused, quoted
from nsq.daemons.nsqd.session.stream import BadMagic, Link, Stream
from nsq.errors import LayerError
from nsq.wire.commands import Command, Limits
from nsq.wire.frames import CLOSE_WAIT, HEARTBEAT, OK, encode_error, encode_message, encode_response
from nsq.wire.identify import AuthReply, BadJson, IdentifyRequest
from nsq.wire.layers import Deflate, Snappy, Tls
from nsq.wire.names import valid_channel, valid_topic

# States as /stats numbers them.
INIT, SUBSCRIBED, CLOSING = 0, 3, 4

_OK_FRAME = encode_response(OK)
_HEARTBEAT_FRAME = encode_response(HEARTBEAT)
_ID_SIZE = 16

#: What the parser has made of a command's body: None, bytes, or MPUB's list of bytes; each verb knows its
#: own.
_Body = Any


class Environment:
    """What all sessions of one nsqd share."""

    def __init__(
        self,
        options: Options,
        broker: Broker,
        clock: Clock,
        log: DaemonLog,
        *,
        tls: ssl.SSLContext | None = None,
        authority: Authority | None = None,
    ) -> None:
        self.options = options
        self.broker = broker
        self.clock = clock
        self.log = log
        self.tls = tls
        self.authority = authority
        self.limits = Limits(
            max_msg_size=options.max_msg_size,
            max_body_size=options.max_body_size,
            max_req_timeout_ms=round(options.max_req_timeout * 1000),
        )


class Session:
    """Executes commands and answers them. Ends itself through its link; is told of the end by ``lost``."""

    def __init__(self, environment: Environment, link: Link, remote_address: str) -> None:
        self._environment = environment
        self._options = environment.options
        self._broker = environment.broker
        self._clock = environment.clock
        self._log = environment.log
        self.remote_address = remote_address
        self.connected_at = environment.clock.time_ns() // 1_000_000_000
        self.request = IdentifyRequest()
        self.agreement = Agreement.initial(environment.options)
        self.state = INIT
        self.subscriber: Subscriber | None = None
        self.grant: Grant | None = None
        self.tls: Tls | None = None
        self.pub_counts: dict[str, int] = {}
        self._stream = Stream(link, environment.limits)
        self._channel: Channel | None = None
        self._secret = ""
        self._suspended = False
        self._waiting: list[Command] = []
        self._ended = False
        self._liveness = Liveness(self._clock, beat=self._send_heartbeat, silent=self._fell_silent)
        self._handlers: dict[bytes, Callable[[list[bytes], _Body], None]] = {
            b"FIN": self._fin,
            b"RDY": self._rdy,
            b"PUB": self._pub,
            b"MPUB": self._mpub,
            b"DPUB": self._dpub,
            b"REQ": self._req,
            b"TOUCH": self._touch,
            b"NOP": self._nop,
            b"SUB": self._sub,
            b"CLS": self._cls,
            b"IDENTIFY": self._identify,
            b"AUTH": self._auth,
        }
        self._liveness.start(self.agreement.heartbeat)

    # Commands in.

    def receive(self, data: bytes) -> None:
        """Execute what has become complete, and send the answers."""
        if self._ended:
            return
        try:
            for commands in self._stream.read(data):
                self._liveness.heard()
                self._execute(commands)
            if self._stream.error is not None and not self._suspended:
                self._refuse(bytes(self._stream.error))
            else:
                self._stream.flush()
        except BadMagic as fault:
            self._log.error("client(%s) bad protocol magic %s", self.remote_address, fault)
            self._stream.write(encode_error(b"E_BAD_PROTOCOL"))
            self._end()
        except LayerError as fault:
            self._broken(fault)

    def _execute(self, commands: list[Command]) -> None:
        handlers, check_tls = self._handlers, self._options.requires_tls
        for index, (verb, params, body) in enumerate(commands):
            try:
                if check_tls:
                    self._check_tls(verb)
                handler = handlers.get(verb)
                if handler is None:
                    raise Refused("E_INVALID", f"invalid command {_text(verb)}")
                handler(params, body)
            except Refused as refused:
                self._answer_refusal(refused)
            if self._ended:
                return
            if self._suspended:
                self._waiting = commands[index + 1 :]
                return

    def _check_tls(self, verb: bytes) -> None:
        if self.tls is None and verb != b"IDENTIFY":
            raise Refused("E_INVALID", f"cannot {_text(verb)} in current state, TLS required")

    def _answer_refusal(self, refused: Refused) -> None:
        if refused.fatal:
            self._refuse(bytes(refused))
        else:
            self._log.debug("client(%s) - %s", self.remote_address, refused)
            self._stream.write(encode_error(bytes(refused)))

    def _refuse(self, reason: bytes) -> None:
        if self._ended:
            return
        self._log.error("client(%s) - %s", self.remote_address, reason.decode("utf-8", "backslashreplace"))
        self._stream.write(encode_error(reason))
        self._end()

    # Messages out.

    @property
    def full(self) -> bool:
        return self._stream.congested

    def deliver(self, messages: list[Message]) -> None:
        try:
            self._stream.write_all([encode_message(m.timestamp, m.attempts, m.id, m.body) for m in messages])
        except LayerError as fault:
            self._broken(fault)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except LayerError as fault:
            self._broken(fault)

    def writable(self) -> None:
        """The link is no longer congested."""
        if self._channel is not None:
            self._channel.wake()

    # The end, from either side.

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._leave()
            self._stream.finish()

    def _broken(self, fault: LayerError) -> None:
        self._log.error("client(%s) - %s", self.remote_address, fault)
        self._end()

    def lost(self) -> None:
        """The connection is gone."""
        self._ended = True
        self._leave()

    def _leave(self) -> None:
        self._liveness.stop()
        channel, self._channel = self._channel, None
        if channel is not None and self.subscriber is not None:
            self._broker.unsubscribe(channel, self.subscriber)

    def channel_closed(self) -> None:
        self._channel = None
        self._end()

    def close(self) -> None:
        """nsqd stops."""
        self._end()

    def _send_heartbeat(self) -> None:
        self._stream.write(_HEARTBEAT_FRAME)
        self.flush()

    def _fell_silent(self) -> None:
        self._log.error("client(%s) sent nothing for two heartbeat intervals", self.remote_address)
        self._end()

    # IDENTIFY, and the layers it brings.

    def _identify(self, params: list[bytes], body: _Body) -> None:
        if self.state != INIT:
            raise Refused("E_INVALID", "cannot IDENTIFY in current state")
        try:
            request = IdentifyRequest.decode(body)
        except BadJson:
            raise Refused("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
        agreement = negotiate(request, self._options)
        if self._stream.layered and (agreement.tls or agreement.snappy or agreement.deflate):
            raise Refused("E_INVALID", "cannot IDENTIFY in current state")
        self.request, self.agreement = request, agreement
        self._liveness.start(agreement.heartbeat)
        if not request.feature_negotiation:
            self._stream.write(_OK_FRAME)
            return
        self._stream.write(encode_response(reply_to(agreement, self._options).encode()))
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
        """Each layer confirms itself by an OK through it."""
        if self.agreement.snappy:
            self._stream.push(Snappy())
        elif self.agreement.deflate:
            self._stream.push(Deflate(self.agreement.deflate_level))
        else:
            return
        self._stream.write(_OK_FRAME)

    # AUTH, and who may do what.

    def _auth(self, params: list[bytes], body: _Body) -> None:
        if self.state != INIT:
            raise Refused("E_INVALID", "cannot AUTH in current state")
        if self.grant is not None:
            raise Refused("E_INVALID", "AUTH already set")
        if self._environment.authority is None:
            raise Refused("E_AUTH_DISABLED", "AUTH disabled")
        self._secret = _text(body)
        self._ask_authority(self._authenticated)

    def _authenticated(self, grant: Grant) -> None:
        if not grant.rules:
            raise Refused("E_UNAUTHORIZED", "AUTH no authorizations found")
        reply = AuthReply(
            identity=grant.identity, identity_url=grant.identity_url, permission_count=len(grant.rules)
        )
        self._stream.write(encode_response(reply.encode()))

    def _ask_authority(self, then: Callable[[Grant], None]) -> None:
        """Stop executing until the auth server has answered, then call ``then`` and go on."""
        authority = self._environment.authority
        if authority is None:
            raise Refused("E_AUTH_DISABLED", "AUTH disabled")
        self._suspended = True
        self._stream.pause()
        remote_ip = self.remote_address.rpartition(":")[0].strip("[]")
        common_name = self.tls.peer_common_name if self.tls is not None else ""
        credentials = Credentials(self._secret, remote_ip, self.tls is not None, common_name)
        authority.ask(credentials, lambda answer: self._authority_answered(answer, then))

    def _authority_answered(self, answer: Grant | AuthError, then: Callable[[Grant], None]) -> None:
        if self._ended:
            return
        self._suspended = False
        try:
            if isinstance(answer, AuthError):
                self._log.error("client(%s) - %s", self.remote_address, answer)
                raise Refused("E_AUTH_FAILED", "AUTH failed")
            self.grant = answer
            then(answer)
        except Refused as refused:
            self._answer_refusal(refused)
        self._catch_up()

    def _catch_up(self) -> None:
        """Go on with what was read before the session was suspended."""
        if self._ended:
            return
        commands, self._waiting = self._waiting, []
        self._execute(commands)
        if not self._suspended and not self._ended:
            self._stream.resume()
            self.receive(b"")

    def _when_allowed(
        self, verb: str, topic: bytes, channel: bytes, act: Callable[..., None], *args: object
    ) -> None:
        """Act now if the client may, after asking again if what it was granted has expired."""
        if self._environment.authority is None:
            act(*args)
            return
        if self.grant is None or not self.grant.rules:
            raise Refused("E_AUTH_FIRST", f"AUTH required before {verb}")

        def check(grant: Grant) -> None:
            if not grant.allows(topic.decode(), channel.decode()):
                what = f"AUTH failed for {verb} on {quoted(topic)} {quoted(channel)}"
                raise Refused("E_UNAUTHORIZED", what)
            act(*args)

        if self.grant.expires <= self._clock.now():
            self._ask_authority(check)
        else:
            check(self.grant)

    # Publishing.

    def _pub(self, params: list[bytes], body: _Body) -> None:
        self._when_allowed("PUB", params[0], b"", self._publish, params[0].decode(), [body])

    def _mpub(self, params: list[bytes], body: _Body) -> None:
        self._when_allowed("MPUB", params[0], b"", self._publish, params[0].decode(), body)

    def _dpub(self, params: list[bytes], body: _Body) -> None:
        topic, delay = params[0].decode(), int(params[1]) / 1000
        if delay:
            self._when_allowed("DPUB", params[0], b"", self._publish_deferred, topic, body, delay)
        else:
            self._when_allowed("DPUB", params[0], b"", self._publish, topic, [body])

    def _publish(self, topic: str, bodies: list[bytes]) -> None:
        self._broker.publish(topic, bodies)
        self._published(topic, len(bodies))

    def _publish_deferred(self, topic: str, body: bytes, delay: float) -> None:
        self._broker.publish_deferred(topic, body, delay)
        self._published(topic, 1)

    def _published(self, topic: str, count: int) -> None:
        self.pub_counts[topic] = self.pub_counts.get(topic, 0) + count
        self._stream.write(_OK_FRAME)

    # Subscribing.

    def _sub(self, params: list[bytes], body: _Body) -> None:
        if self.state != INIT:
            raise Refused("E_INVALID", "cannot SUB in current state")
        if self.agreement.heartbeat <= 0:
            raise Refused("E_INVALID", "cannot SUB with heartbeats disabled")
        if len(params) < 2:
            raise Refused("E_INVALID", "SUB insufficient number of parameters")
        topic, channel = params[0], params[1]
        if not valid_topic(topic):
            raise Refused("E_BAD_TOPIC", f"SUB topic name {quoted(topic)} is not valid")
        if not valid_channel(channel):
            raise Refused("E_BAD_CHANNEL", f"SUB channel name {quoted(channel)} is not valid")
        self._when_allowed("SUB", topic, channel, self._subscribe, topic.decode(), channel.decode())

    def _subscribe(self, topic: str, channel: str) -> None:
        subscriber = Subscriber(
            self,
            msg_timeout=self.agreement.msg_timeout,
            max_msg_timeout=self._options.max_msg_timeout,
            sample_rate=self.agreement.sample_rate,
        )
        try:
            self._channel = self._broker.subscribe(topic, channel, subscriber)
        except TooManyConsumers as refused:
            raise Refused("E_SUB_FAILED", f"SUB failed {refused}") from None
        self.subscriber = subscriber
        self.state = SUBSCRIBED
        self._stream.write(_OK_FRAME)

    def _rdy(self, params: list[bytes], body: _Body) -> None:
        if self.state == CLOSING:
            return
        if self.state != SUBSCRIBED or self.subscriber is None or self._channel is None:
            raise Refused("E_INVALID", "cannot RDY in current state")
        count = 1
        if params:
            count = _number("RDY", "count", params[0])
        if count > self._options.max_rdy_count:
            limit = self._options.max_rdy_count
            raise Refused("E_INVALID", f"RDY count {count} out of range 0-{limit}")
        self.subscriber.rdy = count
        self._channel.wake()

    def _subscription(self, verb: str) -> tuple[Channel, Subscriber]:
        if self._channel is None or self.subscriber is None:
            raise Refused("E_INVALID", f"cannot {verb} in current state")
        return self._channel, self.subscriber

    def _fin(self, params: list[bytes], body: _Body) -> None:
        channel, subscriber = self._subscription("FIN")
        if not params:
            raise Refused("E_INVALID", "FIN insufficient number of params")
        try:
            channel.finish(subscriber, _message_id(params[0]))
        except NotInFlight as reason:
            raise Failed("E_FIN_FAILED", f"FIN {_text(params[0])} failed {reason}") from None

    def _req(self, params: list[bytes], body: _Body) -> None:
        channel, subscriber = self._subscription("REQ")
        if len(params) < 2:
            raise Refused("E_INVALID", "REQ insufficient number of params")
        message_id = _message_id(params[0])
        delay = min(_number("REQ", "timeout", params[1]) / 1000, self._options.max_req_timeout)
        try:
            channel.requeue(subscriber, message_id, delay)
        except NotInFlight as reason:
            raise Failed("E_REQ_FAILED", f"REQ {_text(params[0])} failed {reason}") from None

    def _touch(self, params: list[bytes], body: _Body) -> None:
        channel, subscriber = self._subscription("TOUCH")
        if not params:
            raise Refused("E_INVALID", "TOUCH insufficient number of params")
        try:
            channel.touch(subscriber, _message_id(params[0]))
        except NotInFlight as reason:
            raise Failed("E_TOUCH_FAILED", f"TOUCH {_text(params[0])} failed {reason}") from None

    def _cls(self, params: list[bytes], body: _Body) -> None:
        if self.state != SUBSCRIBED or self.subscriber is None:
            raise Refused("E_INVALID", "cannot CLS in current state")
        self.state = CLOSING
        self.subscriber.closing = True
        self.subscriber.rdy = 0
        self._stream.write(encode_response(CLOSE_WAIT))

    def _nop(self, params: list[bytes], body: _Body) -> None:
        """The answer to a heartbeat; that it came is all that matters."""


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _message_id(text: bytes) -> bytes:
    if len(text) != _ID_SIZE:
        raise Refused("E_INVALID", "invalid message ID")
    return text


def _number(verb: str, what: str, text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        raise Refused("E_INVALID", f"{verb} could not parse {what} {_text(text)}")
    return int(text)
