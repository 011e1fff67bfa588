"""--max-channel-depth: drops the oldest messages of a channel in which more wait, and warns of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from nsq.daemons.nsqd.core.backlog import Message
from nsq.daemons.nsqd.core.channel import Channel
from nsq.daemons.nsqd.core.clock import Alarm, Clock
from nsq.daemons.nsqd.core.topic import Topic
from nsq.wire.names import is_ephemeral

#: Seconds between two warnings about the same queue, and the most queues that are named each time.
_WARN_EVERY = 60.0
_MOST_NAMED = 20


class Bound:
    """Drops messages of channels, and of topics that do not flow.

    A message that comes pushes out the oldest one. So a queue that is longer when nsqd starts is not cut: a
    mistyped bound must not delete a backlog. Nor does a message that is requeued push out another.
    """

    def __init__(self, most: int, clock: Clock, warn: Callable[[str], None]) -> None:
        self._most = most
        self._clock = clock
        self._warn = warn
        self._unsaid: Counter[str] = Counter()  # dropped since the last warning, by queue
        self._next_warning = float("-inf")
        self._alarm = Alarm(clock, self._warn_of_drops)

    def look_at_start(self, topics: Iterable[Topic]) -> None:
        """Warn of each queue that is longer already."""
        for topic in topics:
            self._warn_of_excess(f"topic {topic.name}", topic.depth)
            for channel in topic.channels.values():
                self._warn_of_excess(f"channel {topic.name}/{channel.name}", channel.depth)

    def _warn_of_excess(self, name: str, depth: int) -> None:
        if depth > self._most:
            self._warn(
                f"{name} has {depth} waiting messages, {depth - self._most} more than --max-channel-depth "
                f"({self._most}): the oldest will be dropped as new ones come"
            )

    def cut(self, channels: Iterable[Channel]) -> None:
        """Cut these channels. Called after consumers with room have got what they can."""
        for channel in channels:
            if not is_ephemeral(channel.name):
                dropped = channel.drop_oldest(self._most)
                self._dropped(f"channel {channel.topic_name}/{channel.name}", dropped)

    def cut_topic(self, topic: Topic, come: int) -> None:
        """Cut a topic to which so many messages have come."""
        excess = min(come, len(topic.backlog) - self._most)
        if excess > 0 and not is_ephemeral(topic.name):
            dropped = topic.drop_oldest(excess, self._clock.now())
            self._dropped(f"topic {topic.name}", dropped)

    # Warnings: at the first drop of all, and then at most once a minute.

    def _dropped(self, name: str, messages: list[Message]) -> None:
        if not messages:
            return
        self._unsaid[name] += len(messages)
        self._alarm.set(max(self._next_warning, self._clock.now()))

    def _warn_of_drops(self) -> None:
        self._next_warning = self._clock.now() + _WARN_EVERY
        unsaid, self._unsaid = self._unsaid.most_common(), Counter()
        for name, messages in unsaid[:_MOST_NAMED]:
            self._warn(
                f"{name} has dropped its oldest {messages} messages: --max-channel-depth is {self._most}"
            )
        if len(unsaid) > _MOST_NAMED:
            self._warn(f"so have {len(unsaid) - _MOST_NAMED} other topics and channels")

    def close(self) -> None:
        self._alarm.cancel()
