"""``nsq_to_file``: archives topics into files. A message is finished when it is fsynced.

    handler thread   takes a message from the consumer into the topic's queue
    writer thread    writes, syncs, then finishes; rotates, closes and hands over files (one for each topic)
    main thread      waits for signals, and looks for new topics

The files themselves are in ``archive.py``.
"""

from __future__ import annotations

from nsq.threads.stop_signals import hold_signals

if __name__ == "__main__":
    hold_signals()  # before the other imports

import math
import os
import queue
import re
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from nsq import AlreadyResponded, Config, Message, NsqError
from nsq.errors import ConfigError
from nsq.message import finish_all
from nsq.tools.archive import Archive, ArchiveFlags, make_directory
from nsq.tools.program import (
    ConsumerFlags,
    HttpFlags,
    LogFlags,
    SignalWatch,
    duration,
    flag,
    log,
    repeated,
    run,
    stop_all,
)
from nsq.wire.names import check_channel
from nsq.work.stopping import STOP_TIMEOUT

PROG = "nsq_to_file"
#: Seconds allowed for closing a healthy file.
_AT_ONCE = 1.0


@dataclass(frozen=True, kw_only=True)
class ToFileOptions(ConsumerFlags, HttpFlags, ArchiveFlags, LogFlags):
    topic: tuple[str, ...] = repeated(str, "NSQ topic (may be given multiple times)")
    topic_pattern: str = flag("", "archive only topics that match this regular expression")
    topic_refresh: float = duration(60.0, "how often to ask nsqlookupd for new topics")
    channel: str = flag("nsq_to_file", "NSQ channel")
    log_prefix: str = flag("[nsq_to_file] ", "start of every log line")
    sync_interval: float = duration(30.0, "sync file to disk every duration", low=0.001)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_channel(self.channel)
        if not self.topic and not self.lookupd_http_address:
            raise ConfigError("--topic or --lookupd-http-address required")
        if not self.topic and not self.topic_pattern:
            raise ConfigError("--topic or --topic-pattern required (--topic-pattern=. for every topic)")
        if not self.topic and self.topic_refresh <= 0:
            raise ConfigError(
                f"--topic-refresh is {self.topic_refresh:g} s, must be more than 0 without --topic"
            )
        try:
            with warnings.catch_warnings(action="error"):  # Go's [[:alpha:]] is something else here
                re.compile(self.topic_pattern)
        except (re.error, FutureWarning) as error:
            raise ConfigError(
                f"--topic-pattern {self.topic_pattern!r} is not a regular expression here: {error}"
            ) from None
        self.check_files()

    @property
    def given_max_attempts(self) -> int:
        return super().consumer_config().max_attempts

    def consumer_config(self) -> Config:
        """Never give a message up: that finishes it, and only messages on disk may be finished."""
        return replace(super().consumer_config(), max_attempts=0)


# One topic


class Writer:
    """Archives its consumer's messages on a thread of its own. ``failure`` is the error that stopped it."""

    _HANG_UP, _STOP, _END = "hang up", "stop", "end"

    def __init__(self, options: ToFileOptions, topic: str, changed: Callable[[], None]) -> None:
        """``changed`` is called when the writer has failed, and when it has ended."""
        self.failure: Exception | None = None
        self.ended = False
        self.consumer = options.consumer(PROG, topic, options.channel)
        self.consumer.add_handler(self._take)
        self._archive = Archive(options, topic)
        self._options = options
        self._changed = changed
        self._queue: queue.SimpleQueue[Message | str] = queue.SimpleQueue()
        self._taken: deque[Message | str] = deque()  # taken from the queue, and not processed yet
        self._unfinished: list[Message] = []  # appended, and not synced yet
        self._sync_by = math.inf
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"nsq-archive-{topic}", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.consumer.start()

    def hang_up(self) -> None:
        """Close the file; the next message opens one."""
        self._queue.put(self._HANG_UP)

    def stop(self) -> None:
        """Sync at once from now on, because no more messages will come."""
        self._queue.put(self._STOP)

    def end(self) -> None:
        """Close the file. The consumer must have stopped."""
        self._queue.put(self._END)

    def _take(self, message: Message) -> None:
        message.auto_response = False
        self._queue.put(message)

    def _run(self) -> None:
        try:
            self._archive.adopt()
            self._archive_all()
        except Exception as error:
            self._refuse_all(error)
        self.ended = True
        self._changed()

    def _archive_all(self) -> None:
        next_tick = time.monotonic() + self._options.sync_interval
        while True:
            self._take_until(min(next_tick, self._sync_by))
            now, due = time.monotonic(), self._archive.due
            while self._taken:
                item = self._taken[0]
                if isinstance(item, Message):
                    if item.expires_at > now:  # otherwise nsqd delivers it again
                        if due or self._archive.full:
                            self._sync()
                            self._archive.rotate()
                            due = False
                        self._append(item, now)
                elif item == self._STOP:
                    self._stopping = True
                else:
                    self._sync()
                    self._archive.close()
                    due = True
                    if item == self._END:
                        return
                self._taken.popleft()
            self._archive.write()
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + self._options.sync_interval
                self._tick()
            elif self._unfinished and self._worth_a_sync():
                self._sync()

    def _take_until(self, moment: float) -> None:
        """Wait for an item in the queue, at most until the moment; take all items."""
        with suppress(queue.Empty):
            self._taken.append(self._queue.get(timeout=max(0.0, moment - time.monotonic())))
            take, keep = self._queue.get_nowait, self._taken.append
            for _ in range(self._options.max_in_flight):
                keep(take())

    def _append(self, message: Message, now: float) -> None:
        if not self._unfinished:
            self._sync_by = now + (message.expires_at - now) / 2
        self._archive.append(message.body)
        self._unfinished.append(message)

    def _worth_a_sync(self) -> bool:
        """Whether nsqd sends no more until some messages are finished, or a message cannot wait longer."""
        return (
            self._stopping
            or len(self._unfinished) >= self._options.max_in_flight
            or self.consumer.is_starved
            or time.monotonic() >= self._sync_by
        )

    def _tick(self) -> None:
        self._sync()
        if self._archive.due:
            if self._options.skip_empty_files:
                self._archive.close()
            else:
                self._archive.rotate()

    def _sync(self) -> None:
        self._archive.sync()
        finish_all(reversed(self._unfinished))
        self._unfinished.clear()
        self._sync_by = math.inf

    def _refuse_all(self, error: Exception) -> None:
        """After an error such as a full disk: requeue every unsynced message, and those that still arrive."""
        topic = self.consumer.topic
        where = self._archive.path or self._options.output_dir
        reason = error if isinstance(error, OSError) else repr(error)
        log.critical("cannot archive topic %s to %s: %s; its messages are requeued", topic, where, reason)
        self.failure = error
        self._changed()
        self._archive.give_up()
        self.consumer.pause()
        items: list[Message | str] = [*self._unfinished, *self._taken]
        while True:
            for item in items:
                if isinstance(item, Message):
                    with suppress(AlreadyResponded):
                        item.requeue(0.0, backoff=False)
            if self._END in items:
                return
            items = [self._queue.get()]


# All topics


def main(argv: Sequence[str] | None = None) -> int:
    return run(ToFileOptions, argv, PROG, archive)


def archive(options: ToFileOptions) -> int:
    for directory in (options.output_dir, options.work_dir):
        make_directory(os.path.abspath(directory or options.output_dir))
    if options.hands_over and os.stat(options.work_dir).st_dev != os.stat(options.output_dir).st_dev:
        raise ConfigError(
            "--work-dir and --output-dir must be on one file system, because files are moved by links"
        )
    if "<GZIPREV>" in options.filename_format:
        log.warning("<GZIPREV> is deprecated: write <REV> in --filename-format")
    if options.unknown_directives:
        log.warning(
            "--datetime-format %s has an unknown directive, which stays in the file names",
            options.datetime_format,
        )
    if options.given_max_attempts:
        log.warning("max_attempts has no effect: nsq_to_file gives no message up")
    writers: list[Writer] = []
    with SignalWatch(signal.SIGHUP) as watch:
        _archive_until_signal(options, writers, watch)
        _end(writers, watch)
    for writer in writers:
        if writer.consumer.refusal is not None:
            raise writer.consumer.refusal
    return 0 if all(writer.ended and not writer.failure for writer in writers) else 1


def _end(writers: list[Writer], watch: SignalWatch) -> None:
    """Stop all writers within one deadline. A second signal, or unwritten messages, cut it short."""
    deadline = time.monotonic() + STOP_TIMEOUT
    for writer in writers:
        writer.stop()
    clean = stop_all([writer.consumer for writer in writers], watch)
    for writer in writers:
        writer.end()
    at_once = time.monotonic() + _AT_ONCE
    deadline = max(deadline, at_once) if clean else at_once
    while not all(writer.ended for writer in writers) and (left := deadline - time.monotonic()) > 0:
        if watch.wait(left) is not None:
            break


def _archive_until_signal(options: ToFileOptions, writers: list[Writer], watch: SignalWatch) -> None:
    """Run until a signal, a failure, or a refusal by every nsqd. Adds the started writers to ``writers``."""
    wanted = re.compile(options.topic_pattern)
    seen: set[str] = set()
    refresh_at = time.monotonic()
    while not any(writer.failure or writer.consumer.refusal for writer in writers):
        now = time.monotonic()
        if now >= refresh_at:
            refresh_at = math.inf if options.topic else now + options.topic_refresh
            topics = options.topic or _listed_topics(options)
            fresh = [topic for topic in dict.fromkeys(topics) if topic not in seen and wanted.search(topic)]
            seen.update(fresh)
            made = _make_writers(fresh, options, watch)
            writers += made
            for writer in made:
                writer.consumer.wake_at_end(watch)
                writer.start()
        number = watch.wait(None if math.isinf(refresh_at) else max(0.0, refresh_at - now))
        if number is signal.SIGHUP:
            for writer in writers:
                writer.hang_up()
        elif number is not None:
            break


def _listed_topics(options: ToFileOptions) -> list[str]:
    """Ask all nsqlookupds for their topics."""
    topics: set[str] = set()
    for address in options.lookupd_http_address:
        try:
            topics.update(options.lookupd_api(address).topics())
        except NsqError as error:
            log.warning("could not ask for topics: %s", error)
    return sorted(topics)


def _make_writers(topics: Sequence[str], options: ToFileOptions, watch: SignalWatch) -> list[Writer]:
    """Make writers. A discovered topic that cannot be archived does not stop the others."""
    made = []
    for topic in topics:
        try:
            made.append(Writer(options, topic, watch.wake))
        except NsqError as error:
            if options.topic:
                raise
            log.error("topic %s is skipped: %s", topic, error)
    return made


if __name__ == "__main__":
    sys.exit(main())
