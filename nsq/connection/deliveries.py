"""The messages in flight on one connection, and its RDY. Pure: time is an argument.

Threads share two tables without a lock: every step is one operation of a dict or a set. ``_in_flight`` holds
the messages without an answer; the thread that pops a message answers it. ``_unsettled`` holds these and the
messages that a thread has popped and whose answer the write loop has not written yet.
"""

from __future__ import annotations

import math
from collections import deque

from nsq.errors import WireError
from nsq.message import Message, begun
from nsq.wire.identify import IdentifyReply

#: For an nsqd that does not negotiate and so does not tell its own values.
_DEFAULT_MSG_TIMEOUT = 60.0
_DEFAULT_MAX_MSG_TIMEOUT = 900.0
_DEFAULT_MAX_RDY = 2500
#: The shortest message timeout that we reckon with: a shorter one keeps the consumer busy with the clock.
_LEAST_MSG_TIMEOUT = 0.1

#: ``expires_at`` of a message that was not answered in time, and of one whose connection has ended.
TIMED_OUT = 0.0
GONE = -math.inf

#: A server may lag behind our RDY. If it sends more than this many times the highest RDY, it is broken.
_EXCESS = 2


class Deliveries:
    """Only the read loop calls ``admit``, only the write loop ``written``; any thread calls the rest."""

    def __init__(self, reply: IdentifyReply) -> None:
        self.msg_timeout = max(reply.msg_timeout / 1000 or _DEFAULT_MSG_TIMEOUT, _LEAST_MSG_TIMEOUT)
        self.max_msg_timeout = max(reply.max_msg_timeout / 1000 or _DEFAULT_MAX_MSG_TIMEOUT, self.msg_timeout)
        self.max_rdy = reply.max_rdy_count or _DEFAULT_MAX_RDY
        self.rdy = 0
        self.closing = False  # we have sent CLS
        self.close_wait = False  # nsqd has answered CLS: no new message comes
        self.received = 0
        self.finished = 0
        self.requeued = 0
        self._in_flight: dict[bytes, Message] = {}
        self._unsettled: set[Message] = set()  # until the answer is written, or the time is up
        self.overtook = False  # whether nsqd has ever delivered a message again before its time was up here
        self._overtaken: deque[Message] = deque()  # delivered again before their time was up here
        self._repeated = 0  # since the last ``expire``: redeliveries long before a message's time was up here
        self._timed_out = 0
        self._dropped: deque[Message] = deque()  # timed out too; ``expire`` will count them
        self._highest_rdy = 0
        self._left = 0  # of the last RDY sent, if the server counts it down

    # The read loop.

    def admit(self, messages: list[Message], now: float) -> None:
        """Note new messages; raise WireError when the server sends far beyond any RDY it was given."""
        in_flight = self._in_flight
        self._unsettled.update(messages)
        for message in messages:
            overtaken = in_flight.get(message.id)
            in_flight[message.id] = message
            if overtaken is not None:
                # nsqd has sent the message again: by nsqd's clock its time was up.
                self._repeated += overtaken.expires_at - now > self.msg_timeout / 2
                overtaken.expires_at = TIMED_OUT
                self.overtook = True
                self._unsettled.discard(overtaken)
                self._overtaken.append(overtaken)
        self.received += len(messages)
        self._left -= len(messages)
        limit = _EXCESS * self._highest_rdy
        if len(in_flight) + self._repeated > limit:
            alive = self._repeated + sum(message.expires_at > now for message in in_flight.copy().values())
            if alive > limit:
                raise WireError(f"{alive} messages in flight, though RDY was never above {self._highest_rdy}")

    # Answers.

    @property
    def in_flight(self) -> int:
        self._in_flight.pop(b"", None)  # locks the dict, so that no answer given before this is missed
        return len(self._in_flight)

    def holds(self, message: Message) -> bool:
        # By identity: after a requeue the same id may be in flight again, as another delivery.
        return self._in_flight.get(message.id) is message

    def take(self, message: Message) -> bool:
        """Claim the right to answer a message; return whether the caller has got it."""
        taken = self._in_flight.pop(message.id, None)
        if taken is message:
            return True
        if taken is not None:
            self._in_flight.setdefault(message.id, taken)  # another delivery has just come
        return False

    def written(self, messages: list[Message]) -> None:
        """Note that the write loop is about to write the answers to these messages."""
        self._unsettled.difference_update(messages)

    def drop(self, message: Message) -> bool:
        """Drop a message without an answer, because nsqd has it again; return whether it was in flight."""
        released = self.take(message)
        if released:
            message.expires_at = TIMED_OUT
            self._unsettled.discard(message)
            self._dropped.append(message)
        return released

    def expire(self, now: float) -> list[Message]:
        """Drop and return the messages whose time is up: nsqd has them again, and would refuse an answer."""
        expired = []
        for message in self._unsettled.copy():
            if message.expires_at <= now:
                if self.take(message):
                    message.expires_at = TIMED_OUT
                    expired.append(message)
                # Else its answer waits to be written, or the answering thread was interrupted.
                self._unsettled.discard(message)
        self._repeated = 0
        while self._overtaken:
            expired.append(self._overtaken.popleft())
        self._timed_out += len(expired)
        while self._dropped:
            self._timed_out += 1
            self._dropped.popleft()
        return expired

    @property
    def timed_out(self) -> int:
        return self._timed_out + len(self._dropped)

    @property
    def totals(self) -> tuple[int, int, int, int]:
        return self.received, self.finished, self.requeued, self.timed_out

    def release_all(self) -> None:
        """Drop all messages, as nsqd has them again: answers are refused, and no handler begins one."""
        messages = self._in_flight.copy().values()
        self._in_flight.clear()
        self._unsettled.clear()
        for message in messages:
            message.expires_at = GONE

    def touch(self, message: Message, now: float) -> bool:
        """Restart a message's time, within nsqd's limit for one delivery; return whether it is in flight."""
        if not self.holds(message):
            return False
        message.expires_at = min(now + self.msg_timeout, message.received_at + self.max_msg_timeout)
        return True

    def expiring(self, now: float) -> list[Message]:
        """Return the messages that have used half of their time and can get more."""
        soon = now + self.msg_timeout / 2
        return [
            message
            for message in self._in_flight.copy().values()
            if now < message.expires_at <= soon
            and message.expires_at < message.received_at + self.max_msg_timeout
        ]

    def oldest(self, now: float, *, waiting: bool = False) -> float:
        """Return the age in seconds of the oldest message in flight, or of one that no handler has begun."""
        messages = self._in_flight.copy().values()
        since = [each.received_at for each in messages if not (waiting and begun(each))]
        return now - min(since, default=now)

    @property
    def answered(self) -> bool:
        """Whether every message is answered, and every answer written."""
        return not self._unsettled

    @property
    def drained(self) -> bool:
        """Whether the connection may end: no more messages come, and all are answered."""
        return self.close_wait and not self._unsettled.copy()  # ``copy`` locks the set; ``bool`` does not

    # RDY.

    def set_rdy(self, count: int) -> None:
        self.rdy = self._left = count
        self._highest_rdy = max(self._highest_rdy, count)

    def rdy_refresh(self, answered: bool) -> int:
        """Return the RDY that the write loop must send again, or 0. ``answered``: it just sent answers.

        nsqd takes RDY as a window and needs it once. The guides for clients describe servers that count RDY
        down with every message, and send nothing more at zero.
        """
        rdy, left, in_flight = self.rdy, self._left, len(self._in_flight)
        if left >= rdy or (left > 1 and left >= rdy / 4):
            return 0
        if in_flight and not (answered and in_flight <= rdy / 2):
            return 0
        self._left = rdy
        return rdy
