"""What a connection knows of itself once it is ready: messages in flight, RDY, how far its end has come.

``parse`` belongs to the reading thread. Everything else is state that several threads share: the owner's lock
guards it. Pure.
"""

from __future__ import annotations

from functools import partial
from typing import cast

from nsq.errors import AlreadyResponded, WireError
from nsq.message import Message, MessageDelegate
from nsq.wire.frames import OK_FRAME, OKAY, ErrorReply, FrameParser, Oks, Response
from nsq.wire.identify import IdentifyReply

#: For an nsqd that negotiates nothing and so does not say.
_DEFAULT_MSG_TIMEOUT = 60.0
_DEFAULT_MAX_MSG_TIMEOUT = 900.0

#: A server may lag behind our RDY; one that sends more than this many times the highest we gave is broken.
_EXCESS = 2


class Session:
    """The state of one connection, from its handshake to its end."""

    def __init__(self, reply: IdentifyReply, delegate: MessageDelegate, *, max_frame: int) -> None:
        self._delegate = delegate
        self._in_flight: dict[bytes, Message] = {}
        self._overtaken: list[Message] = []  # delivered again before their time was up here
        self._highest_rdy = 0
        self.msg_timeout = reply.msg_timeout / 1000 or _DEFAULT_MSG_TIMEOUT
        self.max_msg_timeout = reply.max_msg_timeout / 1000 or _DEFAULT_MAX_MSG_TIMEOUT
        self._parser: FrameParser[Message] = FrameParser(self._message_at(0.0), max_frame=max_frame)
        self.max_rdy = reply.max_rdy_count
        self.rdy = 0
        self.closing = False  # CLS is sent
        self.close_wait = False  # and answered: nothing new comes
        self.unsent = 0  # answers decided on that have no place on the wire yet
        self.received = 0
        self.finished = 0
        self.requeued = 0
        self.timed_out = 0

    # Reading.

    def parse(self, data: bytes, now: float) -> tuple[list[Message], list[Response | ErrorReply]]:
        """What ``data`` completes: messages, whose time runs from ``now``, and all else. Nothing but OKs are
        one response, whose data is ``Oks``.
        """
        parser = self._parser
        if data == OK_FRAME and not parser.buffered:  # all that comes to one who publishes and waits
            return [], [OKAY]
        parser.message = self._message_at(now)
        replies = parser.replies
        frames = parser.feed(data)
        if parser.replies == replies:
            return cast("list[Message]", frames), []
        if parser.replies - replies == len(frames):
            if len(frames) > 1 and frames.count(OKAY) == len(frames):
                return [], [Response(Oks(len(frames)))]
            return [], cast("list[Response | ErrorReply]", frames)
        messages = [frame for frame in frames if isinstance(frame, Message)]
        return messages, [frame for frame in frames if not isinstance(frame, Message)]

    def _message_at(self, now: float) -> partial[Message]:
        return partial(Message, self._delegate, now, now + self.msg_timeout)

    # In flight.

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def drained(self) -> bool:
        """Whether the connection may end: nothing comes any more, nothing is left to answer."""
        return self.close_wait and not self._in_flight and not self.unsent

    def admit(self, messages: list[Message], now: float) -> None:
        """Take them in flight; raises WireError from a server that sends far beyond any RDY it was given."""
        in_flight = self._in_flight
        for message in messages:
            if message.id in in_flight:
                self._overtake(in_flight[message.id])
            in_flight[message.id] = message
        self.received += len(messages)
        limit = _EXCESS * self._highest_rdy
        if len(in_flight) > limit:
            self.expire(now)
            if len(in_flight) > limit:
                raise WireError(
                    f"{len(in_flight)} messages in flight, though RDY was never above {self._highest_rdy}"
                )

    def _overtake(self, message: Message) -> None:
        """nsqd has sent it again, so its time was up: as nsqd counts it, from the moment it was sent."""
        message.expires_at = 0.0
        self._overtaken.append(message)

    def holds(self, message: Message) -> bool:
        # By identity: after a requeue the same id may be in flight again, as another delivery.
        return self._in_flight.get(message.id) is message

    def require(self, message: Message) -> None:
        if self._in_flight.get(message.id) is not message:
            raise AlreadyResponded(
                f"{message!r} from {message.nsqd_address} is not in flight: "
                "answered before, or timed out, or its connection is gone"
            )

    def release(self, message: Message) -> int:
        """Let go of it; how many are left. One step with ``require``: this is done for every message."""
        in_flight = self._in_flight
        held = in_flight.pop(message.id, None)
        if held is not message:
            if held is not None:
                in_flight[message.id] = held
            self.require(message)
        return len(in_flight)

    def release_those_held(self, messages: list[Message]) -> list[Message]:
        """As ``release``, of many; which of them were in flight."""
        held = []
        for message in messages:  # a handler's list, which may name one twice
            if self._in_flight.get(message.id) is message:
                del self._in_flight[message.id]
                held.append(message)
        return held

    def answered(self, ticket: int) -> bool:
        """One of the unsent answers has its place on the wire now."""
        self.unsent -= 1
        return True

    def release_all(self) -> list[Message]:
        messages = list(self._in_flight.values())
        self._in_flight.clear()
        return messages

    def expire(self, now: float) -> list[Message]:
        """Let go of the messages whose time is up: nsqd has them again, and our answer would be an error."""
        expired = [message for message in self._in_flight.values() if message.expires_at <= now]
        for message in expired:
            del self._in_flight[message.id]
        expired += self._overtaken
        self._overtaken = []
        self.timed_out += len(expired)
        return expired

    def touch(self, message: Message, now: float) -> None:
        """Let its time run anew, up to the most that nsqd allows a delivery."""
        self.require(message)
        message.expires_at = min(now + self.msg_timeout, message.received_at + self.max_msg_timeout)

    # RDY.

    def set_rdy(self, count: int) -> None:
        self.rdy = count
        self._highest_rdy = max(self._highest_rdy, count)
