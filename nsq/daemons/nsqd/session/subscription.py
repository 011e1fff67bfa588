"""A client's subscription: its state, and the commands that use it."""

from __future__ import annotations

from nsq.daemons.nsqd.core.backlog import StorageFailed
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import Channel, NotInFlight, Sink, Subscriber, TooManyConsumers
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.session.negotiation import Agreement
from nsq.daemons.nsqd.session.stream import Failed, Refused, readable
from nsq.wire.names import quoted, valid_channel, valid_topic

# States as /stats numbers them.
INIT, SUBSCRIBED, CLOSING = 0, 3, 4

_ID_SIZE = 16


class Subscription:
    """Executes commands without writing replies: the session replies when a method returns."""

    def __init__(self, broker: Broker, options: NsqdOptions) -> None:
        self._broker = broker
        self._options = options
        self._channel: Channel | None = None
        self.subscriber: Subscriber | None = None
        self.state = INIT

    def check(self, params: list[bytes], agreement: Agreement) -> tuple[bytes, bytes]:
        """Return the topic and channel that a SUB names. Raises Refused if they are not valid."""
        self.require_init("SUB")
        if agreement.heartbeat <= 0:
            raise Refused("E_INVALID", "cannot SUB with heartbeats disabled")
        if len(params) < 2:
            raise Refused("E_INVALID", "SUB insufficient number of parameters")
        topic, channel = params[0], params[1]
        if not valid_topic(topic):
            raise Refused("E_BAD_TOPIC", f"SUB topic name {quoted(topic)} is not valid")
        if not valid_channel(channel):
            raise Refused("E_BAD_CHANNEL", f"SUB channel name {quoted(channel)} is not valid")
        return topic, channel

    def begin(self, topic: str, channel: str, sink: Sink, agreement: Agreement) -> None:
        subscriber = Subscriber(
            sink,
            msg_timeout=agreement.msg_timeout,
            max_msg_timeout=self._options.max_msg_timeout,
            sample_rate=agreement.sample_rate,
            locality=agreement.locality,
        )
        try:
            self._channel = self._broker.subscribe(topic, channel, subscriber)
        except TooManyConsumers as refused:
            raise Refused("E_SUB_FAILED", f"SUB failed {refused}") from None
        except StorageFailed as error:
            raise Refused("E_SUB_FAILED", f"SUB failed {error}") from None
        self.subscriber = subscriber
        self.state = SUBSCRIBED

    def end(self) -> None:
        """Unsubscribe, because the connection ends."""
        channel, self._channel = self._channel, None
        if channel is not None and self.subscriber is not None:
            self._broker.unsubscribe(channel, self.subscriber)

    def channel_closed(self) -> None:
        self._channel = None

    def wake(self) -> None:
        """Deliver more messages: the client has read its output."""
        if self._channel is not None:
            self._channel.wake(self.subscriber)

    # The commands. The session passes a body to all of them; only a run of FINs has one.

    def rdy(self, params: list[bytes], body: None = None) -> None:
        if self.state == CLOSING:
            return
        channel, subscriber = self._active("RDY")
        count = _number("RDY", "count", params[0]) if params else 1
        if count > self._options.max_rdy_count:
            limit = self._options.max_rdy_count
            raise Refused("E_INVALID", f"RDY count {count} out of range 0-{limit}")
        subscriber.rdy = count
        channel.wake(subscriber)

    def fin(self, params: list[bytes], run: list[bytes] | None = None) -> list[Failed]:
        """Finish one message, or the ids of a run; return the errors of those that fail."""
        channel, subscriber = self._active("FIN")
        if run is None:
            if not params:
                raise Refused("E_INVALID", "FIN insufficient number of params")
            run = [_message_id(params[0])]
        return [
            Failed("E_FIN_FAILED", f"FIN {readable(message_id)} failed {reason}")
            for message_id, reason in channel.finish(subscriber, run)
        ]

    def req(self, params: list[bytes], body: None = None) -> None:
        channel, subscriber = self._active("REQ")
        if len(params) < 2:
            raise Refused("E_INVALID", "REQ insufficient number of params")
        message_id = _message_id(params[0])
        delay = min(_number("REQ", "timeout", params[1]) / 1000, self._options.max_req_timeout)
        try:
            channel.requeue(subscriber, message_id, delay)
        except NotInFlight as reason:
            raise Failed("E_REQ_FAILED", f"REQ {readable(params[0])} failed {reason}") from None

    def touch(self, params: list[bytes], body: None = None) -> None:
        channel, subscriber = self._active("TOUCH")
        if not params:
            raise Refused("E_INVALID", "TOUCH insufficient number of params")
        try:
            channel.touch(subscriber, _message_id(params[0]))
        except NotInFlight as reason:
            raise Failed("E_TOUCH_FAILED", f"TOUCH {readable(params[0])} failed {reason}") from None

    def cls(self) -> None:
        if self.state != SUBSCRIBED or self.subscriber is None:
            raise Refused("E_INVALID", "cannot CLS in current state")
        self.state = CLOSING
        self.subscriber.closing = True
        self.subscriber.rdy = 0

    def require_init(self, verb: str) -> None:
        if self.state != INIT:
            raise Refused("E_INVALID", f"cannot {verb} in current state")

    def _active(self, verb: str) -> tuple[Channel, Subscriber]:
        if self._channel is None or self.subscriber is None:
            raise Refused("E_INVALID", f"cannot {verb} in current state")
        return self._channel, self.subscriber


def _message_id(text: bytes) -> bytes:
    if len(text) != _ID_SIZE:
        raise Refused("E_INVALID", "invalid message ID")
    return text


def _number(verb: str, what: str, text: bytes) -> int:
    text = text or b"0"  # Go's nsqd reads an empty number as 0
    if not text.isdigit() or len(text) > 18:
        raise Refused("E_INVALID", f"{verb} could not parse {what} {readable(text)}")
    return int(text)
