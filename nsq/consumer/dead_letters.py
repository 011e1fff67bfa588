"""Messages that have failed too often: they are lost, or go to a dead-letter topic or a user's function.

A consumer calls its ``GiveUpPolicy`` on a handler thread. That stores the message before it returns, or
raises: the consumer finishes the message only after it is stored.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol

from nsq.config import Config
from nsq.connection.subscription import Subscription
from nsq.consumer.decisions import GivenUp, GiveUp, ToGiveUp
from nsq.errors import BadBody, BadMessage, Closed, ConfigError
from nsq.log import Logger
from nsq.message import Message
from nsq.transport.base import Transport
from nsq.wire.commands import batches
from nsq.wire.envelope import DEAD_LETTER, wrap
from nsq.wire.names import EPHEMERAL, check_topic

if TYPE_CHECKING:
    from nsq.producer.producer import Producer

log = Logger("nsq.consumer")

#: Bytes; no message of nsqd's is larger.
_MAX_SIZE = 2**31 - 1
#: Seconds; the shortest timeout of a publish.
_LEAST_TIMEOUT = 0.001
#: The most characters of an error's text in a dead letter.
_MOST_OF_AN_ERROR = 1000


class GiveUpPolicy:
    """Calls ``give_up`` with each message. ``fate`` says, for the log, what has become of it then."""

    #: Whether a message is given up right when it fails at its last attempt, while its error is known.
    wants_error = False

    def __init__(self, give_up: Callable[[Message], object], fate: str) -> None:
        self._give_up, self._fate = give_up, fate

    def __call__(self, given_up: ToGiveUp, nsqds: set[str], nsqlookupds: set[str]) -> str:
        """Store messages; return what has become of them. They may be published to the nsqds, or in a
        partitioned NSQ to those that the nsqlookupds know.
        """
        for message, _ in given_up:
            self._give_up(message)
        return self._fate

    def close(self, timeout: float) -> list[str]:
        """Release everything; return the names of threads that have not ended in time. Called when no message
        is in flight any more.
        """
        return []


class DeadLetters(GiveUpPolicy):
    """The option ``dead_letters``: publishes the unchanged body to ``topic``, on the nsqds that the consumer
    knows. With ``reasons_of``, which is the consumer's name then, the body stands in an envelope that says
    why the message was given up.

    The producer is made for the first message. No thread that a signal can interrupt takes the lock, and a
    forked child does not use it.
    """

    def __init__(self, topic: str, config: Config, transport: Transport | None, reasons_of: str = "") -> None:
        # Here, not for the first message: at the end of a program it may be too late for an import.
        from nsq.producer.producer import Producer

        super().__init__(lambda _: None, f"topic {topic} has it")
        self._topic = topic
        self.wants_error = bool(reasons_of)
        self._new_producer = partial(
            Producer,
            transport=transport,
            # nsqd has accepted this body before, whatever our own limits are.
            config=replace(config, max_msg_size=_MAX_SIZE),
        )
        self._timeout, self._reasons_of = config.publish_timeout, reasons_of
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._nsqds: set[str] = set()
        self._closed = False

    def __call__(self, given_up: ToGiveUp, nsqds: set[str], nsqlookupds: set[str]) -> str:
        """Publish as many as possible at once: one by one would take ten times as long."""
        if not nsqlookupds:
            nsqds.update(message.nsqd_address for message, _ in given_up)
        producer, consumer = self._producer_for(nsqds, nsqlookupds), self._reasons_of
        letters = [
            (each, dead_letter(each, why, consumer) if consumer else each.body) for each, why in given_up
        ]
        for some in batches(letters, lambda letter: len(letter[1])):
            seconds = min(self._time_for(message) for message, _ in some)
            try:
                if len(some) > 1:
                    producer.multi_publish(self._topic, [letter for _, letter in some], timeout=seconds)
                    continue
            except (BadMessage, BadBody):
                pass  # nothing is stored: find the one that is too large
            for message, letter in some:
                self._publish(producer, message, letter)
        return self._fate

    def _producer_for(self, nsqds: set[str], nsqlookupds: set[str]) -> Producer:
        with self._lock:
            if self._closed:
                raise Closed("the consumer has stopped")
            if self._producer is None:
                self._producer = self._new_producer(nsqd=nsqds, nsqlookupd=nsqlookupds)
            elif nsqds != self._nsqds:
                self._producer.set_nsqds(nsqds)
            self._nsqds = nsqds
            return self._producer

    def _publish(self, producer: Producer, message: Message, letter: bytes) -> None:
        try:
            producer.publish(self._topic, letter, timeout=self._time_for(message))
        except BadMessage:
            if not self._reasons_of:
                raise
            text = "with its reason %r is too large for the topic %s: only its body goes there"
            log.warning(text, message, self._topic)
            producer.publish(self._topic, message.body, timeout=self._time_for(message))

    def _time_for(self, message: Message) -> float:
        """Return no more seconds than the message is ours: after that another consumer has it."""
        return max(_LEAST_TIMEOUT, min(self._timeout, message.time_left))

    def close(self, timeout: float) -> list[str]:
        """Close the producer, which ends publishes under way."""
        with self._lock:
            self._closed = True
        return [] if self._producer is None else self._producer.close(timeout).unfinished_threads


def dead_letter(message: Message, given_up: GivenUp, consumer: str) -> bytes:
    """Return the message in an envelope whose headers say why ``consumer`` has given it up."""
    error = given_up.error
    # The error that it was raised from, if there is one, says more.
    frames = [] if error is None else traceback.extract_tb((error.__cause__ or error).__traceback__)
    headers = {
        "id": f"{message.id_text}-{message.attempts}",
        "source": f"/{consumer}",
        "type": DEAD_LETTER,
        "time": _iso(time.time()),
        "reason": given_up.reason,
        "error": "" if error is None else _in_one_line(error),
        "place": f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else "",
        "attempts": str(message.attempts),
        "published": _iso(message.timestamp / 1e9),
        "nsqd": message.nsqd_address,
    }
    return wrap(message.body, {name: value for name, value in headers.items() if value})


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _in_one_line(error: BaseException) -> str:
    """Return class and text of an error, without characters that a header of CloudEvents may not have."""
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be had)"
    name = "" if isinstance(error, GiveUp) else type(error).__qualname__
    joined = ": ".join(part for part in (name, text) if part)
    return "".join(each if each.isprintable() else " " for each in joined[:_MOST_OF_AN_ERROR])


def give_up_policy(
    consumed: Subscription,
    config: Config,
    transport: Transport | None,
    dead_letters: str | None,
    reasons: bool,
    give_up: Callable[[Message], object] | None,
) -> GiveUpPolicy:
    """Check these options of a consumer, and return what they ask for."""
    if not isinstance(reasons, bool):
        raise ConfigError(f"dead_letter_reasons is {reasons!r}; it must be True or False")
    if dead_letters is None:
        if reasons:
            raise ConfigError("dead_letter_reasons needs dead_letters: give the topic for them")
        if give_up is not None:
            return GiveUpPolicy(give_up, "give_up has it")
        would = f"Consumer(…, dead_letters={consumed.topic.removesuffix(EPHEMERAL) + '.dead'!r})"
        return GiveUpPolicy(lambda _: None, f"it is lost. {would} would keep it in that topic")
    topic = check_topic(dead_letters)
    if topic == consumed.topic:
        raise ConfigError(
            f"dead_letters is {topic!r}, the topic of this consumer, which would get them again for "
            "ever: give another topic"
        )
    if give_up is not None:
        raise ConfigError("dead_letters and give_up exclude each other: give one of them")
    if not config.max_attempts and not config.max_age:
        raise ConfigError(
            "dead_letters needs max_attempts above 0, or max_age: without them no message is ever given up"
        )
    return DeadLetters(topic, config, transport, f"{consumed.topic}/{consumed.channel}" if reasons else "")


# Values for the option ``give_up``.


class Publisher(Protocol):
    """A ``Producer``, or another object with its ``publish``."""

    def publish(self, topic: str, body: bytes) -> object: ...


class DeadLetterTopic:
    """Publishes the unchanged body of a message to another topic."""

    def __init__(self, producer: Publisher, topic: str) -> None:
        self._producer = producer
        self._topic = check_topic(topic)

    def __call__(self, message: Message) -> None:
        self._producer.publish(self._topic, message.body)


class DeadLetterFile:
    """Appends a line of JSON to a file: id, attempts, timestamp, nsqd, and the body as text or base64."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        record: dict[str, str | int] = {
            "id": message.id_text,
            "attempts": message.attempts,
            "timestamp": message.timestamp,
            "nsqd_address": message.nsqd_address,
        }
        try:
            record["body"] = message.body.decode()
        except UnicodeDecodeError:
            record["body_base64"] = base64.b64encode(message.body).decode()
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        # Open the file every time: it may be rotated away, and dead letters are rare. One write, so that
        # lines of several processes do not mix; fsync before the consumer finishes the message.
        with self._lock, open(self._path, "ab+", buffering=0) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    line = b"\n" + line  # a write was cut short, by a full disk or a crash
            if file.write(line) != len(line):
                raise OSError(f"{self._path} took only a part of the dead letter: is its disk full?")
            os.fsync(file.fileno())
