"""What the handlers work on, and the arguments most of them take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from nsq.daemons.logs import DaemonLog
from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.core.channel import Channel
from nsq.daemons.nsqd.core.topic import Topic
from nsq.daemons.nsqd.memory import Memory
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqd.registration import Registration
from nsq.daemons.nsqd.session.session import Session
from nsq.daemons.nsqd.storage.committer import Committer
from nsq.daemons.routes import HttpError, Request
from nsq.wire.names import valid_channel, valid_topic


class Persistence(Protocol):
    """What a handler needs to know of the storage."""

    @property
    def health(self) -> str:
        """ "OK", or what is wrong."""

    @property
    def waits(self) -> Committer | None:
        """What an answer to a publisher has to wait for, if for anything."""


@dataclass(frozen=True)
class Context:
    """One nsqd, as its HTTP API sees it. ``sessions`` gives the clients connected at the moment."""

    options: NsqdOptions
    broker: Broker
    log: DaemonLog
    registration: Registration
    sessions: Callable[[], Iterable[Session]]
    ports: Callable[[], tuple[int, int]]
    start_time: int
    memory: Memory
    storage: Persistence

    def existing_topic(self, request: Request) -> Topic:
        name = argument(request, "topic")
        topic = self.broker.topics.get(name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return topic

    def topic_and_channel_name(self, request: Request) -> tuple[Topic, str]:
        topic_name = argument(request, "topic")
        if not valid_topic(topic_name):
            raise HttpError(400, "INVALID_ARG_TOPIC")
        channel_name = argument(request, "channel")
        if not valid_channel(channel_name):
            raise HttpError(400, "INVALID_ARG_CHANNEL")
        return self.existing_topic(request), channel_name

    def existing_channel(self, request: Request) -> tuple[Topic, Channel]:
        topic, channel_name = self.topic_and_channel_name(request)
        channel = topic.channels.get(channel_name)
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return topic, channel


def argument(request: Request, name: str) -> str:
    value = request.args.get(name)
    if value is None:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return value


def topic_name(request: Request) -> str:
    name = argument(request, "topic")
    if not valid_topic(name):
        raise HttpError(400, "INVALID_TOPIC")
    return name
