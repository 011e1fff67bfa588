"""Messages on their way from a topic to its channels, of which some may have them already."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from nsq.daemons.nsqd.core.message import Message

if TYPE_CHECKING:
    from nsq.daemons.nsqd.core.channel import Channel


class Portion:
    """``late`` are channels that came after some of the messages; each gets the last so many."""

    def __init__(self, messages: list[Message], late: Mapping[Channel, int]) -> None:
        self.messages = messages
        self._late = late
        self._rest: dict[Channel, list[Message]] = {}

    def hand_over(self, channels: Collection[Channel]) -> None:
        """Raises StorageFailed; called again, it does not give twice."""
        if not any(channel in self._rest for channel in channels):
            # Nobody has got any, or whoever had is gone: they are for those that are there now.
            self._rest = self._shares(channels)
        for channel in channels:
            _give(channel, self._rest.get(channel, []))

    def _shares(self, channels: Collection[Channel]) -> dict[Channel, list[Message]]:
        if all(channel in self._late for channel in channels):
            # Those the first messages were for are gone.
            return {channel: list(self.messages) for channel in channels}
        everything = len(self.messages)
        counts = {channel: self._late.get(channel, everything) for channel in channels}
        return {channel: self.messages[-count:] for channel, count in counts.items() if count}


def _give(channel: Channel, messages: list[Message]) -> None:
    """What the channel has got is taken out of the list."""
    if immediate := [message.copy() for message in messages if not message.due]:
        channel.put(immediate)
        messages[:] = [message for message in messages if message.due]
    while messages:
        channel.put_deferred(messages[0].copy())
        del messages[0]
