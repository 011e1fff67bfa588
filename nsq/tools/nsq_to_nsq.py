"""``nsq_to_nsq``: publishes the messages of topics to other nsqds, and finishes each when it is stored there.

The JSON options restrict it to messages with a certain field, or to certain fields of each message.
"""

from __future__ import annotations

from nsq.threads.stop_signals import hold_signals

if __name__ == "__main__":
    hold_signals()  # before the other imports

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

from nsq import AlreadyResponded, Message, NsqError, Producer, Requeue
from nsq.errors import BadBody, BadMessage, ConfigError
from nsq.message import finish_all
from nsq.options import parse_number
from nsq.tools.destinations import (
    EPSILON_GREEDY,
    HOSTPOOL,
    ROUND_ROBIN,
    HostPool,
    RoundRobin,
    StatusLines,
    check_mode,
    choice,
)
from nsq.tools.program import (
    ConsumerFlags,
    ProducerFlags,
    SignalWatch,
    flag,
    log,
    repeated,
    run,
    run_consumers,
)
from nsq.wire.commands import batches
from nsq.wire.names import check_topic

PROG = "nsq_to_nsq"
#: A destination that cannot be connected within this time is skipped, if there is another one.
_DIAL_SECONDS = 1.0
_MODES = (HOSTPOOL, ROUND_ROBIN, EPSILON_GREEDY)


@dataclass(frozen=True, kw_only=True)
class NsqToNsqOptions(ConsumerFlags, ProducerFlags):
    topic: tuple[str, ...] = repeated(str, "NSQ topic (may be given multiple times)")
    channel: str = flag("nsq_to_nsq", "NSQ channel")
    destination_topic: str = flag("", "topic to publish to (default: the topic of the message)")
    destination_nsqd_tcp_address: tuple[str, ...] = repeated(
        str, "destination nsqd TCP address (may be given multiple times)"
    )
    mode: str = flag(HOSTPOOL, f"how to choose the destination of a message: {', '.join(_MODES)}")
    status_every: int = flag(250, "messages between two status lines (0 for none)")
    require_json_field: str = flag("", "forward only messages that are JSON objects with this field")
    require_json_value: str = flag(
        "", "forward only those whose field of --require-json-field has this value"
    )
    whitelist_json_field: tuple[str, ...] = repeated(
        str, "forward only this field of JSON objects (may be given multiple times)"
    )

    ordered: bool = flag(False, "not possible here: an ordered topic delivers no batches")

    def __post_init__(self) -> None:
        if not self.topic:
            raise ConfigError("--topic required")
        if not self.destination_nsqd_tcp_address:
            raise ConfigError("--destination-nsqd-tcp-address required")
        if self.destination_topic:
            check_topic(self.destination_topic)
        check_mode(self.mode, _MODES, in_go=ROUND_ROBIN)
        if self.ordered:
            raise ConfigError("--ordered: nsq_to_nsq forwards batches, and an ordered topic delivers none")
        if self.require_json_value and not self.require_json_field:
            raise ConfigError("--require-json-value needs --require-json-field, the field that must have it")
        super().__post_init__()

    @property
    def reads_json(self) -> bool:
        return bool(self.require_json_field or self.whitelist_json_field)


def main(argv: Sequence[str] | None = None) -> int:
    return run(NsqToNsqOptions, argv, PROG, forward)


def forward(options: NsqToNsqOptions) -> int:
    addresses = list(dict.fromkeys(options.destination_nsqd_tcp_address))
    status = StatusLines(addresses, options.status_every, lambda line: log.info("%s", line))
    with SignalWatch() as watch, ExitStack() as stack:
        producers = {each: stack.enter_context(options.producer(PROG, each)) for each in addresses}
        destinations = choice(options.mode, addresses)
        consumers = []
        for topic in options.topic:
            consumer = options.consumer(PROG, topic, options.channel)
            target = options.destination_topic or topic
            forwarder = Forwarder(target, producers, destinations, filter_of(options), status)
            # A destination that hangs must not hold all messages in flight.
            size = max(1, options.max_in_flight // len(addresses))
            consumer.add_batch_handler(forwarder, size, wait=0.0)
            consumers.append(consumer)
        run_consumers(consumers, watch, lambda: False, producers.values())
    return 0


class Forwarder:
    """A batch handler: sends messages that wait together as one MPUB. The producer's callback thread answers
    them.
    """

    def __init__(
        self,
        topic: str,
        producers: dict[str, Producer],
        destinations: RoundRobin | HostPool,
        filtered: Callable[[bytes], bytes | None] | None,
        status: StatusLines,
    ) -> None:
        self._topic = topic
        self._producers = producers
        self._destinations = destinations
        self._filtered = filtered
        self._status = status

    def __call__(self, messages: list[Message]) -> None:
        if self._filtered is None:
            pairs = [(message, message.body) for message in messages]
        else:
            pairs = list(self._forwarded(messages, self._filtered))
        for batch in batches(pairs, _size):
            self._publish(batch)

    def _forwarded(
        self, messages: list[Message], filtered: Callable[[bytes], bytes | None]
    ) -> Iterator[tuple[Message, bytes]]:
        """Forward the batch. Messages that are left out are finished when the handler returns."""
        for message in messages:
            try:
                body = filtered(message.body)
            except Requeue:
                _requeue(message)
            else:
                if body is not None:
                    yield message, body

    def _publish(self, batch: list[tuple[Message, bytes]], block: bool = True) -> None:
        for message, _ in batch:
            message.auto_response = False
        address = self._choose() if block else self._destinations.choose()
        began, producer = time.monotonic(), self._producers[address]
        try:
            if len(batch) == 1:
                future = producer.publish_async(self._topic, batch[0][1], block=block)
            else:
                bodies = [body for _, body in batch]
                future = producer.multi_publish_async(self._topic, bodies, block=block)
        except NsqError as error:
            self._answer(batch, address, began, error)
        else:
            future.add_done_callback(lambda done: self._answer(batch, address, began, done.exception()))

    def _choose(self) -> str:
        """Choose a destination that can be reached; if there is none, the last one that was tried."""
        for _ in range(len(self._producers) - 1):
            address = self._destinations.choose()
            if _is_reachable(self._producers[address]):
                return address
            self._destinations.mark(address, None)
        return self._destinations.choose()

    def _answer(
        self, batch: list[tuple[Message, bytes]], address: str, began: float, error: BaseException | None
    ) -> None:
        if error is None:
            took = time.monotonic() - began
            finish_all(message for message, _ in batch)
            self._destinations.mark(address, took)
            self._status.add(address, took, len(batch))
        elif len(batch) > 1 and isinstance(error, (BadMessage, BadBody)):
            for pair in batch:  # nsqd has stored none of them, because one is bad
                self._publish([pair], block=False)
        else:
            log.error("%d messages are requeued: %s: %s", len(batch), address, error)
            self._destinations.mark(address, None)
            for message, _ in batch:
                _requeue(message)


def _is_reachable(producer: Producer) -> bool:
    if any(each.state == "open" for each in producer.stats().connections):
        return True
    try:
        producer.ping(timeout=_DIAL_SECONDS)
    except NsqError as error:
        log.error("%s", error)
        return False
    return True


def _size(pair: tuple[Message, bytes]) -> int:
    return len(pair[1])


def _requeue(message: Message) -> None:
    with suppress(AlreadyResponded):
        message.requeue()


# JSON


def filter_of(options: NsqToNsqOptions) -> Callable[[bytes], bytes | None] | None:
    """Return a function from a body to the body to forward; None finishes a message, Requeue requeues it."""
    if not options.reads_json:
        return None
    field, value, kept = options.require_json_field, options.require_json_value, options.whitelist_json_field
    number = _number(value)

    def filtered(body: bytes) -> bytes | None:
        try:
            parsed = parse_object(body)
            if field and not _has(parsed, field, value, number):
                return None
            if not kept:
                return body
            return go_json({key: _whole(parsed[key]) for key in kept if key in parsed}).encode()
        except (ValueError, RecursionError) as error:
            log.error("a message is left out: %s: %.100r", error, body)
            return None

    return filtered


def _whole(value: Any) -> Any:
    """Return a whole number as an integer, as Go does with the fields of the object itself, not with those
    inside of them: ``-0.0`` is written ``0``, and ``2**62`` with all its digits.
    """
    if isinstance(value, float) and value.is_integer() and -(2.0**63) <= value < 2.0**63:
        return int(value)
    return value


def _has(parsed: dict[str, Any], field: str, value: str, number: float) -> bool:
    if field not in parsed:
        if value:
            log.error("a message has no field %s, whose value is required: it is requeued", field)
            raise Requeue()
        return False
    found = parsed[field]
    if not value:
        return True
    if isinstance(found, str):
        return found == value
    return isinstance(found, float) and found == number


def _number(text: str) -> float:
    """Parse a number; return NaN, which equals nothing, if the text is not one."""
    try:
        return parse_number(text)
    except ConfigError:
        return math.nan


def parse_object(body: bytes) -> dict[str, Any]:
    """Read JSON as Go does: every number is a float, and invalid UTF-8 is replaced."""

    def refuse(text: str) -> NoReturn:
        raise ValueError(f"{text} is not a JSON number")

    def number(text: str) -> float:
        value = float(text)
        if math.isinf(value):
            refuse(text)
        return value

    parsed = json.loads(
        body.decode("utf-8", "replace"), parse_int=number, parse_float=number, parse_constant=refuse
    )
    if not isinstance(parsed, dict):
        raise ValueError("not a JSON object")
    return parsed


_ESCAPED = {each: f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}
_TO_ESCAPE = re.compile("[<>&\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def go_json(value: Any) -> str:
    """Write JSON as Go does: sorted keys, no spaces, ``<``, ``>``, ``&`` escaped, no dot in whole numbers."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{go_json(key)}:{go_json(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(go_json, value)) + "]"
    if isinstance(value, float):
        return _go_number(value)
    if isinstance(value, str):
        text = json.dumps(_SURROGATE.sub("\ufffd", value), ensure_ascii=False)
        return _TO_ESCAPE.sub(lambda found: _ESCAPED[found[0]], text)
    return json.dumps(value)


def _go_number(value: float) -> str:
    size = abs(value)
    if value and not 1e-6 <= size < 1e21:
        return re.sub(r"e-0(\d)$", r"e-\1", repr(value))
    return format(Decimal(repr(value)), "f").removesuffix(".0")


if __name__ == "__main__":
    sys.exit(main())
