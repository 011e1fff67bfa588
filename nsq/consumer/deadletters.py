"""Where messages go that have failed too often: values for a consumer's ``give_up``.

Each keeps the message before it returns, or raises; the consumer finishes it only when it is kept.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from typing import Protocol

from nsq.message import Message
from nsq.wire.names import check_topic


class Publisher(Protocol):
    """A ``Producer``, or anything that publishes like one."""

    def publish(self, topic: str, body: bytes) -> object: ...


class DeadLetterTopic:
    """Publishes the message, as it is, to another topic."""

    def __init__(self, producer: Publisher, topic: str) -> None:
        self._producer = producer
        self._topic = check_topic(topic)

    def __call__(self, message: Message) -> None:
        self._producer.publish(self._topic, message.body)


class DeadLetterFile:
    """Appends a line of JSON: id, attempts, timestamp, nsqd and the body, as text or else as base64."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        line = json.dumps(_record(message), ensure_ascii=False).encode() + b"\n"
        # Opened every time: the file may be rotated away, and dead letters are rare. One write, so that lines
        # of several processes do not mix; on disk before nsqd is told to forget the message.
        with self._lock, open(self._path, "ab", buffering=0) as file:
            if file.write(line) != len(line):
                raise OSError(f"{self._path} took only a part of the dead letter: is its disk full?")
            os.fsync(file.fileno())


def _record(message: Message) -> dict[str, str | int]:
    record: dict[str, str | int] = {
        "id": message.id.decode("latin-1"),
        "attempts": message.attempts,
        "timestamp": message.timestamp,
        "nsqd_address": message.nsqd_address,
    }
    try:
        record["body"] = message.body.decode()
    except UnicodeDecodeError:
        record["body_base64"] = base64.b64encode(message.body).decode()
    return record
