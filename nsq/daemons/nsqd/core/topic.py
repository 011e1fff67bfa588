"""A topic: it keeps messages until there is a channel, then copies each to every channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsq.daemons.nsqd.core.backlog import Backlog
from nsq.daemons.nsqd.core.message import Message

if TYPE_CHECKING:
    from nsq.daemons.nsqd.core.channel import Channel


class Topic:
    """Messages flow once the topic has started, has a channel and is not paused; until then they wait
    here.
    """

    def __init__(self, name: str, backlog: Backlog, make_channel: Callable[[str, str], Channel]) -> None:
        self.name = name
        self.backlog = backlog
        self.channels: dict[str, Channel] = {}
        self.paused = False
        self.started = False
        self.message_count = 0
        self.message_bytes = 0
        self._make_channel = make_channel
        self._deferred: list[Message] = []

    @property
    def depth(self) -> int:
        return len(self.backlog) + len(self._deferred)

    @property
    def flows(self) -> bool:
        return self.started and not self.paused and bool(self.channels)

    def put(self, messages: list[Message]) -> None:
        self.message_count += len(messages)
        self.message_bytes += sum(len(message.body) for message in messages)
        if self.flows:
            self._distribute(messages)
        else:
            self.backlog.put(messages)

    def put_deferred(self, message: Message) -> None:
        """Take a message whose ``due`` is set."""
        self.message_count += 1
        self.message_bytes += len(message.body)
        if self.flows:
            self._distribute_deferred(message)
        else:
            self._deferred.append(message)

    def _distribute(self, messages: list[Message]) -> None:
        for copies, channel in enumerate(self.channels.values()):
            channel.put([message.copy() for message in messages] if copies else messages)

    def _distribute_deferred(self, message: Message) -> None:
        for copies, channel in enumerate(self.channels.values()):
            channel.put_deferred(message.copy() if copies else message)

    def channel(self, name: str) -> Channel:
        """The channel of that name, made when there is none: the first one gets all that has waited."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self.channels[name] = self._make_channel(self.name, name)
            self._release()
        return channel

    def remove_channel(self, name: str) -> Channel | None:
        return self.channels.pop(name, None)

    def start(self) -> None:
        """Let messages flow: the channels that must not miss one are there."""
        self.started = True
        self._release()

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self._release()

    def empty(self) -> None:
        self.backlog.clear()
        self._deferred.clear()

    def _release(self) -> None:
        if not self.flows:
            return
        if waiting := self.backlog.take(len(self.backlog)):
            self._distribute(waiting)
        deferred, self._deferred = self._deferred, []
        for message in deferred:
            self._distribute_deferred(message)
