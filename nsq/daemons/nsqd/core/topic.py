"""A topic: it keeps messages until there is a channel, then copies each to every channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsq.daemons.nsqd.core.backlog import Backlog, StorageFailed
from nsq.daemons.nsqd.core.message import Message

if TYPE_CHECKING:
    from nsq.daemons.nsqd.core.channel import Channel

#: Messages that are on their way from a topic to its channels at a time.
_PORTION = 1000


class Topic:
    """Messages flow once the topic has started, has a channel and is not paused; until then they wait
    here.
    """

    def __init__(
        self,
        name: str,
        backlog: Backlog,
        make_channel: Callable[[str, str], Channel],
        try_again: Callable[[Callable[[], None]], object],
    ) -> None:
        self.name = name
        self.backlog = backlog
        self.channels: dict[str, Channel] = {}
        self.paused = False
        self.started = False
        self.message_count = 0
        self.message_bytes = 0
        self._make_channel = make_channel
        self._try_again = try_again

    @property
    def depth(self) -> int:
        return len(self.backlog)

    @property
    def flows(self) -> bool:
        return self.started and not self.paused and bool(self.channels)

    def put(self, messages: list[Message]) -> None:
        if self.flows:
            self._distribute(messages)
        else:
            self.backlog.put(messages)
        self.message_count += len(messages)
        self.message_bytes += sum([len(message.body) for message in messages])

    def put_deferred(self, message: Message) -> None:
        """Take a message whose ``due`` is set."""
        if self.flows:
            self._distribute_deferred(message)
        else:
            self.backlog.put([message])
        self.message_count += 1
        self.message_bytes += len(message.body)

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

    def _release(self) -> None:
        """Hand over what has waited, in portions: it may be more than fits into memory."""
        while self.flows and (waiting := self.backlog.take(_PORTION)):
            try:
                self._hand_over(waiting)
            except StorageFailed:
                # What some channels have already may come twice; nothing is lost.
                self.backlog.put_back(waiting)
                self._try_again(self._release)
                return
            self.backlog.finished(waiting)

    def _hand_over(self, waiting: list[Message]) -> None:
        if immediate := [message for message in waiting if not message.due]:
            self._distribute(immediate)
        for message in waiting:
            if message.due:
                self._distribute_deferred(message)
