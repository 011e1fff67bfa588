"""What a consumer subscribes to in a partitioned NSQ: one partition of its topic with each connection.

SUB           messages as they come
SUB_ADVANCED  with their places in the partition, from a position of one's choice
SUB_ORDERED   in order, one at a time
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from nsq.connection.conn import Conn
from nsq.connection.subscription import Subscription
from nsq.errors import ConfigError, NsqError, OrderIsMust
from nsq.message import Message, MessageDelegate
from nsq.partitioned import wire
from nsq.partitioned.messages import PartitionedMessage, read_detailed
from nsq.partitioned.table import TopicTable
from nsq.partitioned.tracing import log_delivery

_START = "start is {!r}; it must be 'end', 'offset:BYTES', 'count:MESSAGES' or an aware datetime"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a consumer reads its topic: the options that a partitioned NSQ alone understands, checked."""

    ordered: bool = False
    partitions: frozenset[int] | None = None
    """None: all."""
    start: str = ""
    trace: bool = False
    desired_tag: str | None = None
    header_filter: tuple[str, str] | None = None

    @classmethod
    def checked(
        cls,
        *,
        ordered: object = False,
        partitions: object = None,
        start: object = None,
        trace: object = False,
        desired_tag: object = None,
        header_filter: object = None,
    ) -> Reading:
        """Check a user's options."""
        for name, value in (("ordered", ordered), ("trace", trace)):
            if not isinstance(value, bool):
                raise ConfigError(f"{name} is {value!r}; it must be True or False")
        if ordered and start is not None:
            raise ConfigError("start is given with ordered=True: ordered topics take no position to start at")
        return cls(
            ordered=bool(ordered),
            partitions=None if partitions is None else _checked_partitions(partitions),
            start="" if start is None else _checked_start(start),
            trace=bool(trace),
            desired_tag=None if desired_tag is None else wire.checked_tag(desired_tag),
            header_filter=None if header_filter is None else _checked_filter(header_filter),
        )

    @property
    def given(self) -> list[str]:
        """The names of the options that were given."""
        return [name for name in self.__dataclass_fields__ if getattr(self, name) not in (False, None, "")]

    def selects(self, partition: int) -> bool:
        return self.partitions is None or partition in self.partitions


def _checked_partitions(partitions: object) -> frozenset[int]:
    if not isinstance(partitions, Collection) or isinstance(partitions, (str, bytes)) or not partitions:
        raise ConfigError(f"partitions is {partitions!r}; it must be a list of numbers from 0 on")
    return frozenset(map(wire.checked_partition, partitions))


def _checked_start(start: object) -> str:
    if isinstance(start, datetime.datetime) and start.tzinfo is not None:
        return f"timestamp:{int(start.timestamp())}"
    if start == "end":
        return "special:-1"
    kind, _, number = start.partition(":") if isinstance(start, str) else ("", "", "")
    verb = {"offset": "virtual_queue", "count": "msgcount"}.get(kind)
    if verb is None or not (number.isascii() and number.isdigit() and int(number) < 2**63):
        raise ConfigError(_START.format(start))
    return f"{verb}:{int(number)}"


def _checked_filter(header_filter: object) -> tuple[str, str]:
    if isinstance(header_filter, Mapping) and len(header_filter) == 1:
        [(name, value)] = header_filter.items()
        if isinstance(name, str) and name and isinstance(value, str):
            return name, value
    raise ConfigError(
        f"header_filter is {header_filter!r}; it must be a dict of one header and its value, both text"
    )


@dataclass(frozen=True)
class PartitionSubscription(Subscription):
    """One partition. ``extended`` says that the topic has headers. ``delegate`` maps a connection to what
    answers the messages that come over it; ``started`` has the partitions that have begun at ``start``.
    """

    partition: int = 0
    extended: bool = False
    reading: Reading = field(default_factory=Reading)
    delegate: Callable[[Conn, int], MessageDelegate] | None = field(default=None, compare=False, repr=False)
    traced: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)
    started: set[int] = field(default_factory=set, compare=False, repr=False)

    @property
    def key(self) -> int:
        return self.partition

    @property
    def identify(self) -> Mapping[str, Any]:
        fields: dict[str, Any] = {}
        if self.extended:
            fields["extend_support"] = True
        if self.reading.desired_tag is not None:
            fields["desired_tag"] = self.reading.desired_tag
        if self.reading.header_filter is not None:
            name, value = self.reading.header_filter
            fields["ext_filter"] = {
                "type": 1,
                "inverse": False,
                "filter_ext_key": name,
                "filter_data": value,
            }
        return fields

    def command(self) -> bytes:
        arguments = self.topic, self.channel, self.partition
        if self.reading.ordered:
            return wire.sub_ordered(*arguments)
        if not self._detailed:
            return wire.sub(*arguments)
        # Again after a reconnect, the position would have the channel begin there again.
        return wire.sub_advanced(*arguments, "" if self.partition in self.started else self.reading.start)

    @property
    def _detailed(self) -> bool:
        return self.reading.ordered or self.reading.trace or bool(self.reading.start)

    def reader(self, conn: Conn, received_at: float, expires_at: float) -> Callable[..., Message]:
        if self.reading.start:
            self.started.add(self.partition)  # called first when nsqd has accepted the subscription
        delegate = conn if self.delegate is None else self.delegate(conn, self.partition)
        read = partial(self._make, delegate, received_at, expires_at)
        return partial(self._read_traced, conn, read) if self.traced() else read

    @cached_property
    def _make(self) -> Callable[..., Message]:
        if self.extended or self._detailed:
            return partial(read_detailed, self.extended, self._detailed)
        return PartitionedMessage

    def _read_traced(self, conn: Conn, read: Callable[..., Message], *fields: object) -> Message:
        message = read(*fields)
        log_delivery(message, self.channel, local_ip=conn.local_ip)
        return message


def mismatch(table: TopicTable, reading: Reading) -> NsqError | None:
    """Return why the topic's settings forbid to read it like this; None if they allow it, or are unknown."""
    topic, meta = table.topic, table.meta
    if meta is None:
        return None
    if meta.ordered and not reading.ordered:
        return OrderIsMust(f"topic {topic} is ordered: give the consumer ordered=True")
    if reading.ordered and not meta.ordered:
        return ConfigError(f"ordered=True is given, but topic {topic} is not ordered: leave it out")
    unknown = sorted(partition for partition in reading.partitions or () if partition >= meta.partition_num)
    if unknown:
        return ConfigError(
            f"partitions has {unknown[0]}, but topic {topic} has {meta.partition_num} partitions: "
            f"0 to {meta.partition_num - 1}"
        )
    for name in ("desired_tag", "header_filter"):
        if getattr(reading, name) is not None and not meta.extended:
            return ConfigError(f"{name} is given, but topic {topic} was created without headers")
    if reading.start:
        leaders = list(table.leaders.values())
        several = next((leader for leader in leaders if leaders.count(leader) > 1), None)
        if several is not None:
            return ConfigError(
                f"start is given, but {several} has several partitions of topic {topic}, and nsqd would take "
                "the same one for each: no position can be chosen here"
            )
    return None
