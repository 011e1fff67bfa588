"""Creating, deleting, emptying and pausing topics and channels."""

from __future__ import annotations

from nsq.daemons.nsqd.http.context import Context, argument, topic_name
from nsq.daemons.routes import EMPTY, HttpError, Reply, Request
from nsq.wire.names import valid_topic


class Administration:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._broker = context.broker

    def create_topic(self, request: Request) -> Reply:
        self._broker.topic(topic_name(request))
        return EMPTY

    def delete_topic(self, request: Request) -> Reply:
        self._broker.delete_topic(self._context.existing_topic(request).name)
        return EMPTY

    def empty_topic(self, request: Request) -> Reply:
        if not valid_topic(argument(request, "topic")):
            raise HttpError(400, "INVALID_TOPIC")
        self._context.existing_topic(request).empty()
        return EMPTY

    def pause_topic(self, request: Request) -> Reply:
        self._broker.pause(self._context.existing_topic(request), True)
        return EMPTY

    def unpause_topic(self, request: Request) -> Reply:
        self._broker.pause(self._context.existing_topic(request), False)
        return EMPTY

    def create_channel(self, request: Request) -> Reply:
        topic, name = self._context.topic_and_channel_name(request)
        topic.channel(name)
        return EMPTY

    def delete_channel(self, request: Request) -> Reply:
        topic, channel = self._context.existing_channel(request)
        self._broker.delete_channel(topic, channel.name)
        return EMPTY

    def empty_channel(self, request: Request) -> Reply:
        self._context.existing_channel(request)[1].empty()
        return EMPTY

    def pause_channel(self, request: Request) -> Reply:
        self._broker.pause(self._context.existing_channel(request)[1], True)
        return EMPTY

    def unpause_channel(self, request: Request) -> Reply:
        self._broker.pause(self._context.existing_channel(request)[1], False)
        return EMPTY
