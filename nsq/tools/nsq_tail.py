"""``nsq_tail``: writes the messages of topics to stdout, one per line.

A message is finished when its line is written. On a terminal it formats JSON in lines and escapes control
characters; into a pipe or a file it writes the bytes unchanged.
"""

from __future__ import annotations

from nsq.threads.stop_signals import hold_signals

if __name__ == "__main__":
    hold_signals()  # before the other imports

import json
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsq import Message, Requeue
from nsq.errors import ConfigError
from nsq.tools.program import ConsumerFlags, SignalWatch, flag, repeated, run, run_consumers

if TYPE_CHECKING:
    from nsq import Consumer

PROG = "nsq_tail"
#: Also those from U+0080 to U+009F, two bytes in UTF-8, which control a terminal too.
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
_CONTROL_IN_JSON = re.compile("[\x7f-\x9f]")


@dataclass(frozen=True, kw_only=True)
class TailOptions(ConsumerFlags):
    topic: tuple[str, ...] = repeated(str, "NSQ topic (may be given multiple times)")
    channel: str = flag("", "NSQ channel (default tailNNNNNN#ephemeral)")
    n: int = flag(0, "total messages to show per topic (0 for no limit)")
    print_topic: bool = flag(False, "print the topic's name before each message")
    pretty: bool = flag(
        lambda: sys.stdout.isatty(),
        "format JSON in lines, and escape control characters (default: on a terminal)",
    )
    meta: bool = flag(False, "print id, attempts and age before each message")

    def __post_init__(self) -> None:
        if not self.topic:
            raise ConfigError("--topic required (or write: nsq tail TOPIC)")
        super().__post_init__()

    @property
    def most(self) -> int | None:
        return self.n if self.n > 0 else None


def main(argv: Sequence[str] | None = None) -> int:
    return run(TailOptions, argv, PROG, tail)


def tail(options: TailOptions) -> int:
    channel = options.channel or f"tail{random.randrange(999_999):06d}#ephemeral"
    max_in_flight = min(options.max_in_flight, options.most or options.max_in_flight)
    with SignalWatch() as watch:
        consumers = []
        printers = []
        for topic in options.topic:
            consumer = options.consumer(PROG, topic, channel, max_in_flight=max_in_flight)
            printer = Printer(consumer, options, watch.wake)
            printers.append(printer)
            consumers.append(consumer.add_handler(printer))
        for consumer in consumers:
            sys.stderr.write(f"Adding consumer for topic: {consumer.topic}\n")
        run_consumers(consumers, watch, lambda: any(printer.over for printer in printers))
    for printer in printers:
        if printer.failure is not None:
            raise printer.failure
    return 0


class Printer:
    """A handler, called by one thread. ``over`` is set when it has written enough, or cannot write."""

    def __init__(self, consumer: Consumer, options: TailOptions, ended: Callable[[], None]) -> None:
        self.over = False
        self._consumer = consumer
        self.failure: OSError | None = None
        self._options = options
        self._left = options.most or -1
        self._ended = ended
        self._front = f"{consumer.topic} | ".encode() if options.print_topic else b""

    def __call__(self, message: Message) -> None:
        if self.over:
            raise Requeue(0.0, backoff=False)  # more than was asked for
        meta = line_about(message, time.time()) if self._options.meta else b""
        body = pretty(message.body) if self._options.pretty else message.body
        try:
            # In one write: several topics share stdout.
            sys.stdout.buffer.write(b"".join((self._front, meta, body, b"\n")))
            sys.stdout.buffer.flush()
        except OSError as error:
            self.failure = error
            self._end()
            raise Requeue(0.0, backoff=False) from None
        self._left -= 1
        if not self._left:
            self._end()

    def _end(self) -> None:
        self.over = True
        self._consumer.pause()  # otherwise nsqd delivers the requeued messages again at once
        self._ended()


def line_about(message: Message, now: float) -> bytes:
    age = max(0.0, now - message.timestamp / 1e9)
    return b"%b attempts=%d age=%.3fs " % (message.id, message.attempts, age)


def pretty(body: bytes) -> bytes:
    """Format JSON objects and lists over several lines, and escape control characters."""
    if body[:1] in (b"{", b"["):
        try:
            text = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
            return _CONTROL_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()
        except (ValueError, RecursionError):
            pass
    return _CONTROL.sub(lambda found: b"".join(b"\\x%02x" % byte for byte in found[0]), body)


if __name__ == "__main__":
    sys.exit(main())
