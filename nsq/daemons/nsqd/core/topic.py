"""A topic: keeps messages until it has a channel, then copies each message to every channel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from nsq.daemons.nsqd.core.backlog import (
    Backlog,
    Batch,
    Message,
    PartlyStored,
    StorageFailed,
    Waiting,
    show,
    take_some,
    weight,
)
from nsq.daemons.nsqd.core.channel import Channel


class Portion:
    """Messages that a topic hands to its channels. ``late`` maps channels that were created after some of the
    messages to the number of last messages they get. ``forget`` is called with messages that the topic need
    not keep any more.
    """

    def __init__(
        self,
        messages: list[Message],
        late: Mapping[Channel, int],
        forget: Callable[[list[Message]], None],
    ) -> None:
        self.messages = messages
        self._late = late
        self._forget = forget
        self._rest: dict[Channel, list[Message]] = {}
        # By message id: how many channels have it only in memory. The topic's copy is the only one on disk.
        self._memory_only: Counter[bytes] = Counter()
        self._handed_over = False
        self.begun = False  # whether some channel has got its share

    def hand_over(self, channels: Collection[Channel], most: int) -> int:
        """Give ``most`` channels their share; return how many more it could have served, -1 if some have not
        got theirs. Another call goes on where this one ends.

        On a full disk consumers must still get messages, so a channel that cannot store its share keeps it in
        memory; StorageFailed if it holds too much already.
        """
        if not any(channel in self._rest for channel in channels):
            # No current channel has a share yet: compute the shares again.
            self._rest = self._shares(channels)
        alone = len(channels) == 1
        for channel in channels:
            rest = self._rest.get(channel)
            if not rest:
                continue
            if not most:
                return -1
            most -= 1
            share = len(rest)
            try:
                _give(channel, rest, alone)
            except StorageFailed:
                self.begun |= len(rest) < share
                if not channel.hold_in_memory([message.copy() for message in rest], self._finished):
                    raise
                self._memory_only.update(message.id for message in rest)
                rest.clear()
            self.begun = True
        self._handed_over = True
        self._forget_stored(self.messages)
        return most

    def _finished(self, messages: list[Message]) -> None:
        """Note that a channel has finished messages that it had only in memory."""
        self._memory_only.subtract(message.id for message in messages)
        if self._handed_over:
            self._forget_stored(messages)

    def _forget_stored(self, messages: list[Message]) -> None:
        """Forget those of the messages that no channel has only in memory."""
        held = self._memory_only
        self._forget([message for message in messages if held[message.id] <= 0] if held else messages)

    def _shares(self, channels: Collection[Channel]) -> dict[Channel, list[Message]]:
        if all(channel in self._late for channel in channels):
            # The channels that the earlier messages were for are deleted.
            return {channel: list(self.messages) for channel in channels}
        everything = len(self.messages)
        counts = {channel: self._late.get(channel, everything) for channel in channels}
        return {channel: self.messages[-count:] for channel, count in counts.items() if count}


def _give(channel: Channel, messages: list[Message], alone: bool) -> None:
    """Move the messages from the list to a channel, which gets copies unless it is the only one."""
    if repeated := channel.deferred.repeated:
        messages[:] = [message for message in messages if message.id not in repeated]
    if immediate := [message if alone else message.copy() for message in messages if not message.due]:
        channel.put(immediate)
        messages[:] = [message for message in messages if message.due]
    if messages:
        channel.put_deferred([message.copy() for message in messages])
        messages.clear()


#: The weight of one portion: messages handed from a topic to its channels at a time.
_LARGE_PORTION = 1000
#: The most copies of messages, for all channels together, that are made at a time.
COPIES_AT_ONCE = 5_000
#: With more channels than this, of which each may write a file, published messages wait in the topic, which
#: gives portions of this weight to some channels after the other.
_CHANNELS_AT_ONCE, _SMALL_PORTION = 200, 100


class TopicStarting(Exception):
    """The topic is new and does not know its channels on other nsqds yet. Nothing was published."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(f"topic {topic.name} does not know its channels yet")
        self.topic = topic


class Topic:
    """Keeps messages while the topic has not started, has no channel or is paused; otherwise copies them to
    its channels.
    """

    def __init__(
        self,
        name: str,
        backlog: Backlog,
        make_channel: Callable[[str, str], Channel],
        try_again: Callable[[Callable[[], None]], object],
        on_another_turn: Callable[[Callable[[], None]], object],
        kept: Callable[[Topic, int], None] | None = None,
    ) -> None:
        """``try_again`` calls after a while, ``on_another_turn`` in a later round of the event loop. ``kept``
        is told how many messages the topic has just kept because it does not flow.
        """
        self.name = name
        self.backlog = backlog
        self.channels: dict[str, Channel] = {}
        self.paused = False
        self.started = False
        self._when_started: list[Callable[[], None]] = []
        self.message_count = 0
        self.message_bytes = 0
        self.dropped_count = 0
        self._kept = kept
        self._make_channel = make_channel
        self._try_again = try_again
        self._trying_again = False
        self._portion: Portion | None = None  # refused by a channel's disk; later messages wait behind it
        self._on_another_turn = on_another_turn
        self._asked = False  # whether ``_go_on`` is scheduled
        # The weight of messages that came during a release, less half of what it has handed over.
        self._arrived = 0
        self._when_caught_up: list[Callable[[], None]] = []
        # Channels created during a release, and how many messages have come since.
        self._late: dict[Channel, int] = {}

    @property
    def depth(self) -> int:
        return len(self.backlog) + len(self._on_their_way)

    @property
    def _on_their_way(self) -> list[Message]:
        """The messages that were taken from the backlog and are not in all channels yet."""
        return self._portion.messages if self._portion else []

    @property
    def flows(self) -> bool:
        return self.started and not self.paused and bool(self.channels)

    @property
    def _releasing(self) -> bool:
        """Whether new messages have to wait behind older ones."""
        return self._asked or self._portion is not None

    @property
    def _passes_on(self) -> bool:
        """Whether new messages go to the channels at once."""
        return self.flows and not self._releasing and len(self.channels) <= _CHANNELS_AT_ONCE

    def at_once(self, most: int) -> int:
        """Return how many of ``most`` messages to hand over at a time: fewer to very many channels."""
        return max(1, min(most, COPIES_AT_ONCE // (len(self.channels) or 1)))

    @property
    def crowded(self) -> bool:
        """Whether messages come faster than the channels get them, so that publishers should wait."""
        return self._asked and self._arrived >= self._portion_weight

    @property
    def _portion_weight(self) -> int:
        return self.at_once(_LARGE_PORTION) if len(self.channels) <= _CHANNELS_AT_ONCE else _SMALL_PORTION

    def when_caught_up(self, call: Callable[[], None]) -> None:
        """Call ``call``, in a turn of its own, when the topic is not crowded any more."""
        self._when_caught_up.append(call)

    def put(self, messages: Batch) -> None:
        # ``_passes_on``, inlined: the calls would be a noticeable part of a PUB's cost.
        held = self._asked or self._portion is not None
        channels = self.channels
        if self.started and not self.paused and channels and not held and len(channels) <= _CHANNELS_AT_ONCE:
            try:
                for channel in channels.values():
                    channel.put(messages)
            except StorageFailed as error:
                self._refused(channel, error)
                raise
        else:
            self._keep(messages)
        self.message_count += len(messages.bodies)
        self.message_bytes += sum(map(len, messages.bodies))

    def put_deferred(self, messages: list[Message]) -> None:
        """Accept messages whose ``due`` is set."""
        if self._passes_on:
            try:
                for copies, channel in enumerate(self.channels.values()):
                    channel.put_deferred([message.copy() for message in messages] if copies else messages)
            except StorageFailed as error:
                self._refused(channel, error)
                raise
        else:
            self._keep(messages)
        self.message_count += len(messages)
        self.message_bytes += sum([len(message.body) for message in messages])

    def _refused(self, channel: Channel, error: StorageFailed) -> None:
        """Raise PartlyStored if other channels have got what this channel refused. Ask it first from now on:
        while its disk refuses, no other channel gets a message that its publisher is told is not stored.
        """
        if channel is not next(iter(self.channels.values())):
            self.channels = {channel.name: channel} | self.channels
            raise PartlyStored(f"{error} (channel {channel.name}; another has the messages)") from error

    def _keep(self, messages: Batch | list[Message]) -> None:
        if not self.flows:
            self.backlog.put(messages)
            if self._kept is not None:
                self._kept(self, len(messages))
            return
        before = len(self.backlog)
        self.backlog.put(messages)
        taken = len(self.backlog) - before
        self._arrived += weight(messages) if self._asked else 0
        for channel in self._late:
            self._late[channel] += taken
        if not self._releasing:
            self._ask_for_a_turn()

    def drop_oldest(self, count: int, now: float) -> list[Message]:
        """Drop the ``count`` oldest messages of a topic that does not flow, except those that are deferred;
        return the dropped ones.
        """
        taken = self.backlog.take(count)
        dropped = [message for message in taken if message.due <= now]
        if len(dropped) < len(taken):
            self.backlog.put_back([message for message in taken if message.due > now])
        self.backlog.finished(dropped)
        self.dropped_count += len(dropped)
        return dropped

    def channel(self, name: str) -> Channel:
        """Return the channel of that name, or create it: the first one gets all waiting messages."""
        channel = self.channels.get(name)
        if channel is None:
            came_late = self.flows and self._releasing
            channel = self.channels[name] = self._make_channel(self.name, name)
            if came_late:
                self._late[channel] = 0
            else:
                channel.spared = self.depth
            self.release()
        return channel

    def remove_channel(self, name: str) -> Channel | None:
        channel = self.channels.pop(name, None)
        if channel is not None:
            self._late.pop(channel, None)
        return channel

    def start(self) -> None:
        """Let messages flow to the channels, which are all known now."""
        self.started = True
        self.release()
        calls, self._when_started = self._when_started, []
        for call in calls:
            call()

    def when_started(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the topic starts."""
        self._when_started.append(call)

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self.release()

    async def peek(self, n: int, max_bytes: int) -> list[Waiting]:
        """Return the first ``n`` messages waiting in the topic, with at most ``max_bytes`` of their bodies.

        Changes nothing.
        """
        first = show(self._on_their_way, n, max_bytes)
        max_bytes -= sum(len(each.body) for each in first)
        return first + await self.backlog.peek(n - len(first), max_bytes)

    def empty(self) -> None:
        """Discard the waiting messages, but not those that some channels have got already."""
        self._finish_portion()
        if self._portion is not None and not self._portion.begun:
            self.backlog.finished(self._portion.messages)
            self._portion = None
        self.backlog.clear_waiting()
        self._late.clear()
        for channel in self.channels.values():
            channel.spared = 0

    def close(self) -> list[Message]:
        """Stop, when nsqd stops; the channels must still be open. Returns messages taken from the backlog and
        not in all channels yet.
        """
        self.started = False
        self._finish_portion()
        left = self._on_their_way
        self._portion = None
        return left

    def _finish_portion(self) -> None:
        """Give the portion to all channels if some have got it, unless their disk refuses it."""
        if self._portion is not None and self._portion.begun:
            with suppress(StorageFailed):
                self._portion.hand_over(self.channels.values(), len(self.channels))
                self._portion = None

    def release(self) -> None:
        """Hand the waiting messages to the channels in portions: they may not fit into memory."""
        if not self.flows:
            self._late.clear()  # when messages flow again, all channels of that time get what waits
        elif not self._asked:
            self._hand_over()
        if not self._asked:
            self._arrived = 0
        if not self.crowded:
            calls, self._when_caught_up = self._when_caught_up, []
            for call in calls:
                self._on_another_turn(call)

    def _hand_over(self) -> None:
        """Hand over one portion, or two if messages arrive meanwhile, to catch up in any case.

        With very many channels a portion is smaller, and only some of them get it at a time.
        """
        largest = room = self._portion_weight
        channels = len(self.channels)
        if channels <= _CHANNELS_AT_ONCE:
            room *= 2 if self._arrived else 1
            most = room * channels  # enough for all
        else:
            most = COPIES_AT_ONCE // _SMALL_PORTION
        while room > 0 and (portion := self._next_portion(min(room, largest))) is not None:
            try:
                most = portion.hand_over(self.channels.values(), most)
            except StorageFailed:
                self._release_later()
                return
            if most < 0:
                self._ask_for_a_turn()
                return
            self._portion = None
            handed_over = weight(portion.messages)
            room -= handed_over
            self._arrived = max(0, self._arrived - handed_over // 2)
        if room > 0 or not self.depth:
            self._late.clear()
        else:
            self._ask_for_a_turn()

    def _ask_for_a_turn(self) -> None:
        self._asked = True
        self._on_another_turn(self._go_on)

    def _next_portion(self, room: int) -> Portion | None:
        """Return the refused portion, or else the next one; None if no message is left."""
        if self._portion is None:
            most = min(room, _LARGE_PORTION)
            if messages := take_some(self.backlog, most, most * 1024):
                behind = len(self.backlog)
                late = {channel: max(0, count - behind) for channel, count in self._late.items()}
                self._portion = Portion(messages, late, self.backlog.finished)
        return self._portion

    def _go_on(self) -> None:
        self._asked = False
        self.release()

    def _release_later(self) -> None:
        if not self._trying_again:
            self._trying_again = True
            self._try_again(self._release_again)

    def _release_again(self) -> None:
        self._trying_again = False
        self.release()
