"""Tracing: a line on the logger ``nsq.trace`` for each publish and each delivery of a traced topic.

    {"event":"publish","topic":"orders","partition":3,"nsqd":"10.0.0.7:4150",…,"offset":1024,"size":64}
    {"event":"delivery","topic":"orders","partition":3,"channel":"billing",…,"attempts":1}

A line is one JSON object of the fields that are known; the log record has the same as ``nsq_trace``, a dict.
Topics are switched on and off while producers and consumers run; nothing is subscribed again for it.
"""

from __future__ import annotations

import json
import time
from typing import Any

from nsq.errors import UsageError
from nsq.log import Logger
from nsq.message import Message
from nsq.wire.frames import Published

log = Logger("nsq.trace")

#: The fields of a line, in their order.
FIELDS = (
    "event",
    "topic",
    "partition",
    "channel",
    "nsqd",
    "local_ip",
    "message_id",
    "internal_id",
    "trace_id",
    "offset",
    "size",
    "attempts",
    "tag",
    "headers",
    "timestamp",
)


class Tracing:
    """The topics that are traced. Any thread may ask and switch, a signal handler too."""

    def __init__(self) -> None:
        self.topics: dict[str, None] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self.topics

    def switch(self, topic: str, on: bool) -> None:
        if not isinstance(on, bool):
            raise UsageError(f"tracing of {topic} is switched to {on!r}; it must be True or False")
        if on:
            self.topics[topic] = None
        else:
            self.topics.pop(topic, None)


def log_publish(
    topic: str,
    partition: int,
    nsqd: str,
    published: Published,
    *,
    local_ip: str | None = None,
    tag: str | None = None,
    headers: object = None,
) -> None:
    """Log a publish that nsqd has answered. ``timestamp`` is the time of the answer, in nanoseconds."""
    _log(
        event="publish",
        topic=topic,
        partition=partition,
        nsqd=nsqd,
        local_ip=local_ip,
        message_id=_message_id(published.internal_id, published.trace_id),
        internal_id=published.internal_id,
        trace_id=published.trace_id,
        offset=published.offset,
        size=published.size,
        tag=tag,
        headers=headers,
        timestamp=time.time_ns(),
    )


def log_delivery(message: Message, channel: str, *, local_ip: str | None = None) -> None:
    """Log a message that has come. ``timestamp`` is the time of its publish, in nanoseconds."""
    _log(
        event="delivery",
        topic=message.topic,
        partition=message.partition,
        channel=channel,
        nsqd=message.nsqd_address,
        local_ip=local_ip,
        message_id=message.id.hex(),
        internal_id=message.internal_id,
        trace_id=message.trace_id,
        offset=message.offset,
        size=message.size,
        attempts=message.attempts,
        tag=message.tag,
        headers=message.headers,
        timestamp=message.timestamp,
    )


def _message_id(internal_id: int | None, trace_id: int | None) -> str | None:
    """Return the id that a message has when it is delivered."""
    return None if internal_id is None else f"{internal_id:016x}{trace_id or 0:016x}"


def _log(**fields: Any) -> None:
    known = {name: fields[name] for name in FIELDS if fields.get(name) is not None}
    log.info("%s", json.dumps(known, separators=(",", ":"), default=repr), extra={"nsq_trace": known})
