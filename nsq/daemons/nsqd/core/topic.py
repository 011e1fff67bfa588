"""A topic: it keeps messages until there is a channel, then copies each to every channel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
        self._trying_again = False
        self._portion: _Portion | None = None  # refused by a channel's disk: what comes later waits behind it

    @property
    def depth(self) -> int:
        return len(self.backlog) + (len(self._portion.messages) if self._portion else 0)

    @property
    def flows(self) -> bool:
        return self.started and not self.paused and bool(self.channels)

    def put(self, messages: list[Message]) -> None:
        if self.flows and self._portion is None:
            self._distribute(messages)
        else:
            self.backlog.put(messages)
        self.message_count += len(messages)
        self.message_bytes += sum([len(message.body) for message in messages])

    def put_deferred(self, message: Message) -> None:
        """Take a message whose ``due`` is set."""
        if self.flows and self._portion is None:
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
            self.release()
        return channel

    def remove_channel(self, name: str) -> Channel | None:
        return self.channels.pop(name, None)

    def start(self) -> None:
        """Let messages flow: the channels that must not miss one are there."""
        self.started = True
        self.release()

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self.release()

    def empty(self) -> None:
        self.backlog.clear()
        self._portion = None

    def shelve(self) -> None:
        """nsqd stops: what is on its way stays where it came from. Raises StorageFailed."""
        self.started = False
        portion, self._portion = self._portion, None
        self.backlog.close(portion.messages if portion else [])

    def release(self) -> None:
        """Hand over what has waited, in portions: it may be more than fits into memory."""
        while self.flows:
            if self._portion is None:
                waiting = self.backlog.take(_PORTION)
                if not waiting:
                    return
                self._portion = _Portion(waiting)
            try:
                self._portion.hand_over(self.channels.values())
            except StorageFailed:
                self._release_later()
                return
            self.backlog.finished(self._portion.messages)
            self._portion = None

    def _release_later(self) -> None:
        if not self._trying_again:
            self._trying_again = True
            self._try_again(self._release_again)

    def _release_again(self) -> None:
        self._trying_again = False
        self.release()


class _Portion:
    """Messages on their way from a topic to its channels, of which some may have them already."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self._rest: dict[Channel, list[Message]] = {}

    def hand_over(self, channels: Iterable[Channel]) -> None:
        """Raises StorageFailed; called again, it does not give twice."""
        if not any(channel in self._rest for channel in channels):
            # Nobody has got any, or whoever had is gone: they are for those that are there now.
            self._rest = {channel: list(self.messages) for channel in channels}
        for channel in channels:
            _give(channel, self._rest.get(channel, []))


def _give(channel: Channel, messages: list[Message]) -> None:
    """What the channel has got is taken out of the list."""
    if immediate := [message.copy() for message in messages if not message.due]:
        channel.put(immediate)
        messages[:] = [message for message in messages if message.due]
    while messages:
        channel.put_deferred(messages[0].copy())
        del messages[0]
