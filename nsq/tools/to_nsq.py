"""``to_nsq``: publishes each record of stdin to every named nsqd.

It sends records in order as it reads them, many in one MPUB; it stops reading while too much is unanswered.
"""

from __future__ import annotations

from nsq.threads.stop_signals import hold_signals

if __name__ == "__main__":
    hold_signals()  # before the other imports

import os
import select
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from nsq import NsqError, Producer
from nsq.errors import BadBody, BadMessage, ConfigError
from nsq.rate import Rate
from nsq.tools.program import ProducerFlags, SignalWatch, check_ranges, flag, log, repeated, run
from nsq.wire.commands import batches
from nsq.wire.names import check_topic

PROG = "to_nsq"
_CHUNK = 256 * 1024
#: How many MPUBs may be unanswered at a time, for each nsqd.
_UNANSWERED = 4
_PROGRESS_EVERY = 0.5
#: Seconds whose records may go at once after a pause.
_BURST = 1.0


@dataclass(frozen=True, kw_only=True)
class ToNsqOptions(ProducerFlags):
    topic: str = flag("", "NSQ topic to publish to")
    nsqd_tcp_address: tuple[str, ...] = repeated(
        str, "destination nsqd TCP address (may be given multiple times)"
    )
    delimiter: str = flag("\n", "character to split input from stdin")
    rate: int = flag(0, "messages per second to publish (0 for no limit)")

    def __post_init__(self) -> None:
        if not self.topic:
            raise ConfigError("--topic required")
        check_topic(self.topic)
        if len(self.separator) != 1:
            raise ConfigError("--delimiter must be a single byte")
        if not self.nsqd_tcp_address:
            raise ConfigError("--nsqd-tcp-address required")
        check_ranges(self)

    @property
    def separator(self) -> bytes:
        return os.fsencode(self.delimiter)


class Splitter:
    """Splits its input into records; skips empty ones."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._begun: list[bytes] = []  # the incomplete record

    def feed(self, data: bytes) -> list[bytes]:
        first, *records = data.split(self._delimiter)
        self._begun.append(first)
        if not records:
            return []
        last = records.pop()
        whole = [b"".join(self._begun), *records]
        self._begun = [last]
        return list(filter(None, whole))

    def end(self) -> list[bytes]:
        """Return the last record if no delimiter follows it."""
        last, self._begun = b"".join(self._begun), []
        return [last] if last else []


class Publisher:
    """Sends batches to every nsqd, and tracks unanswered ones. A first signal during a wait for an answer
    sets ``signalled``, a second one exits the program.

    ``stored`` has the messages that each nsqd has stored, ``uncertain`` those that it may have stored.
    """

    def __init__(self, topic: str, producers: Sequence[Producer], watch: SignalWatch, **options: Any) -> None:
        self.stored = [0] * len(producers)
        self.uncertain = [0] * len(producers)
        self.signalled = False
        self._watch = watch
        self._topic = topic
        self._producers = producers
        self._options = options  # of every publish
        self._reached = len(producers) == 1
        self._unanswered: deque[tuple[list[bytes], deque[tuple[int, Future[Any]]]]] = deque()

    @property
    def published(self) -> int:
        return min(self.stored)

    def publish(self, records: list[bytes]) -> None:
        for batch in batches(records, len):
            if not self._reached:
                self._reach_all()
            futures: deque[tuple[int, Future[Any]]] = deque()
            self._unanswered.append((batch, futures))  # now, because a later producer may raise
            for place, producer in enumerate(self._producers):
                futures.append((place, producer.multi_publish_async(self._topic, batch, **self._options)))
            if len(self._unanswered) > _UNANSWERED:
                self._await_oldest()

    def finish(self) -> None:
        while self._unanswered:
            self._await_oldest()

    def count_the_rest(self) -> None:
        """After an error: count the batches that were on their way, if they are stored."""
        for batch, futures in self._unanswered:
            for place, future in futures:
                with suppress(KeyboardInterrupt):  # the producers are closed: the future has ended
                    self._wait_for([future])
                self._count(batch, place, future)
        self._unanswered.clear()

    def _reach_all(self) -> None:
        """Raise if an nsqd cannot be reached. Otherwise the others would store records before that is known,
        and store them twice when the user publishes them again.
        """
        pings = [_pinged(producer) for producer in self._producers]
        self._wait_for(pings)
        for ping in pings:
            if ping.done():
                ping.result()
        self._reached = True

    def _await_oldest(self) -> None:
        batch, futures = self._unanswered[0]
        errors = []
        while futures:
            place, future = futures[0]
            self._wait_for([future])
            futures.popleft()
            try:
                self._settle(batch, place, future)
            except NsqError as error:
                errors.append(error)
        self._unanswered.popleft()
        if errors:
            raise errors[0]

    def _settle(self, batch: list[bytes], place: int, future: Future[Any]) -> None:
        error = self._count(batch, place, future)
        if isinstance(error, (BadMessage, BadBody)):
            # nsqd has stored none of the batch: publish each record alone, up to the one that it refuses.
            for record in batch:
                self._producers[place].publish(self._topic, record, **self._options)
                self.stored[place] += 1
        elif error is not None:
            raise error

    def _count(self, batch: list[bytes], place: int, future: Future[Any]) -> BaseException | None:
        error = future.exception()
        if error is None:
            self.stored[place] += len(batch)
        elif isinstance(error, NsqError) and error.maybe_stored:
            self.uncertain[place] += len(batch)
        return error

    def _wait_for(self, futures: Sequence[Future[Any]]) -> None:
        """Wait until all have ended, or one has failed."""
        for future in futures:
            future.add_done_callback(lambda _: self._watch.wake())
        while True:
            ended = [future for future in futures if future.done()]
            if len(ended) == len(futures) or any(future.exception() for future in ended):
                return
            if self._watch.wait() is not None:
                if self.signalled:
                    log.warning("a second signal: exiting at once")
                    for producer in self._producers:
                        producer.close(0.0)
                    raise KeyboardInterrupt
                self.signalled = True


def _pinged(producer: Producer) -> Future[Any]:
    """Ping on a thread of its own, so that a signal can end the wait."""
    future: Future[Any] = Future()

    def ping() -> None:
        try:
            producer.ping()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=ping, name="nsq-to_nsq-ping", daemon=True).start()
    return future


class Progress:
    """A progress line on a terminal's stderr while a file is read."""

    def __init__(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self._shown = stat.S_ISREG(status.st_mode) and sys.stderr.isatty()
        self._size = status.st_size
        self._next = time.monotonic()

    def show(self, done: int, published: int) -> None:
        now = time.monotonic()
        if self._shown and self._size and now >= self._next:
            self._next = now + _PROGRESS_EVERY
            sys.stderr.write(f"\r{min(100, done * 100 // self._size):3d}% {published} messages\x1b[K")
            sys.stderr.flush()

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")


def main(argv: Sequence[str] | None = None) -> int:
    return run(ToNsqOptions, argv, PROG, publish_stdin, has_version=False)


def publish_stdin(options: ToNsqOptions) -> int:
    began = time.monotonic()
    with SignalWatch() as watch, ExitStack() as stack:
        producers = [
            stack.enter_context(options.producer(PROG, address))
            for address in dict.fromkeys(options.nsqd_tcp_address)
        ]
        publisher = Publisher(options.topic, producers, watch)
        try:
            publish_records(sys.stdin.fileno(), publisher, watch, options.separator, options.rate)
        finally:
            publisher.count_the_rest()
            _report(options, publisher, time.monotonic() - began)
    return 0


def _report(options: ToNsqOptions, publisher: Publisher, took: float) -> None:
    addresses = dict.fromkeys(options.nsqd_tcp_address)
    for address, stored, uncertain in zip(addresses, publisher.stored, publisher.uncertain, strict=True):
        log.info(
            "published %d messages to %s of %s in %.1f s (%.0f/s)%s",
            stored,
            options.topic,
            address,
            took,
            stored / took if took else 0.0,
            f"; {uncertain} more may be stored" if uncertain else "",
        )


def publish_records(
    descriptor: int, publisher: Publisher, watch: SignalWatch, delimiter: bytes = b"\n", rate: int = 0
) -> None:
    """Publish until the end of the input, or a signal. An incomplete record at a signal is not published."""
    progress = Progress(descriptor)
    try:
        _copy(
            descriptor, publisher, watch, Splitter(delimiter), Rate(rate, _BURST, time.monotonic()), progress
        )
        publisher.finish()
    finally:
        progress.end()


def _copy(
    descriptor: int,
    publisher: Publisher,
    watch: SignalWatch,
    splitter: Splitter,
    rate: Rate,
    progress: Progress,
) -> None:
    done = 0
    while not publisher.signalled:
        if watch.wait(descriptor=descriptor) is not None:
            publisher.signalled = True
            return
        if not select.select([descriptor], [], [], 0.0)[0]:
            continue  # an answer woke the watch
        data = os.read(descriptor, _CHUNK)
        done += len(data)
        records = splitter.feed(data) if data else splitter.end()
        while records:
            allowed = rate.take(len(records), time.monotonic())
            publisher.publish(records[:allowed])
            del records[:allowed]
            progress.show(done, publisher.published)
            if records and watch.wait(rate.pause()) is not None:
                publisher.signalled = True
                return
        if not data:
            return


if __name__ == "__main__":
    sys.exit(main())
