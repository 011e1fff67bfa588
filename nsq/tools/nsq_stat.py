"""``nsq_stat``: a channel's incoming and outgoing rates and its depth, one line per interval.

On a terminal it shows a live table with a line for each nsqd; into a pipe or a file it writes lines in the
format of Go's nsq_stat.
"""

from __future__ import annotations

from nsq.threads.stop_signals import hold_signals

if __name__ == "__main__":
    hold_signals()  # before the other imports

import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from nsq.errors import ApiError, ConfigError
from nsq.http.cluster import Channel, count_topics, merge_lookups
from nsq.http.nsqlookupd import Lookup
from nsq.tools.program import (
    HttpFlags,
    SignalWatch,
    check_ranges,
    duration,
    exactly_one_kind,
    flag,
    log,
    repeated,
    run,
)

PROG = "nsq_stat"
_TITLE = "------rate------+----------------depth----------------+--------------metadata---------------"
_ROW = "{:>7} {:>7} | {:>7} {:>7} {:>7} {:>5} {:>5} | {:>7} {:>7} {:>12} {:>7}"
_HEADER = f"{_TITLE}\n" + _ROW.format(
    "ingress", "egress", "total", "mem", "disk", "inflt", "def", "req", "t-o", "msgs", "clients"
)
#: Rows between two headers.
_PAGE = 25
_CLEAR = "\x1b[H\x1b[J"


@dataclass(frozen=True, kw_only=True)
class StatOptions(HttpFlags):
    topic: str = flag("", "NSQ topic")
    channel: str = flag("", "NSQ channel")
    nsqd_http_address: tuple[str, ...] = repeated(str, "nsqd HTTP address (may be given multiple times)")
    lookupd_http_address: tuple[str, ...] = repeated(
        str, "lookupd HTTP address (may be given multiple times)"
    )
    interval: float = duration(2.0, "time between two polls, and two lines of output")
    count: int | None = flag(None, "number of reports (default: no end)")
    status_every: float | None = duration(None, "", deprecated="use --interval")

    def __post_init__(self) -> None:
        if not self.topic or not self.channel:
            missing = "channel" if self.topic else "topic"
            raise ConfigError(f"--{missing} required (or write: nsq stat TOPIC/CHANNEL)")
        exactly_one_kind(self, "nsqd_http_address", "lookupd_http_address")
        for address in (*self.nsqd_http_address, *self.lookupd_http_address):
            if address.startswith("http"):
                raise ConfigError(f"{address} is a URL: give host:port, without a scheme")
        if self.count is not None and self.count < 1:
            raise ConfigError(f"--count is {self.count}, must be at least 1")
        if self.pause <= 0:
            raise ConfigError(f"--interval is {self.pause:g} s, must be more than 0")
        check_ranges(self)

    @property
    def pause(self) -> float:
        return self.interval if self.status_every is None else self.status_every


def row(now: Channel, before: Channel, interval: float) -> str:
    came = now.messages - before.messages
    left = came - (now.depth - before.depth)
    return _ROW.format(
        int(came / interval),
        int(left / interval),
        now.depth,
        now.depth - now.backend_depth,
        now.backend_depth,
        now.in_flight,
        now.deferred,
        now.requeued,
        now.timed_out,
        now.messages,
        now.clients,
    )


@dataclass(frozen=True)
class Poll:
    """The answers of the nsqds at one moment, by address."""

    nsqds: dict[str, Channel]

    @property
    def total(self) -> Channel:
        return self.total_of(self)

    def total_of(self, other: Poll) -> Channel:
        """Return the sum over the nsqds of another poll. One that is not in this poll counts as unchanged:
        an nsqd that appears has not received all its messages just now.
        """
        known = (self.nsqds.get(address, channel) for address, channel in other.nsqds.items())
        return reduce(Channel.merged_with, known)


def main(argv: Sequence[str] | None = None) -> int:
    return run(StatOptions, argv, PROG, stat)


def stat(options: StatOptions) -> int:
    live = sys.stdout.isatty()
    before: Poll | None = None
    polls = 0
    warned: set[str] = set()
    with SignalWatch(signal.SIGHUP) as watch:
        while options.count is None or polls <= options.count:
            poll = ask(options, warned)
            width = shutil.get_terminal_size().columns
            text = screen(options, poll, before, width) if live else lines(options, poll, before, polls)
            sys.stdout.write(text)
            sys.stdout.flush()
            before = poll
            polls += 1
            if watch.wait(options.pause) is not None:
                break
    return 0


def ask(options: StatOptions, warned: set[str]) -> Poll:
    """Poll all nsqds. Raise ApiError if one does not answer (a partial sum misleads), or none has it. Skip an
    nsqd whose registered addresses cannot be used, with one warning.
    """
    addresses = options.nsqd_http_address
    if options.lookupd_http_address:
        asked = [options.lookupd_api(each).nodes_of(options.topic) for each in options.lookupd_http_address]
        nodes = merge_lookups(Lookup((), found) for found in asked)
        addresses = tuple(dict.fromkeys(node.name for node in nodes if not node.problem))
        for problem in {node.problem for node in nodes} - {""} - warned:
            log.warning("%s", problem)
            warned.add(problem)
    found = {}
    for address in addresses:
        api = options.nsqd_api(address, told=bool(options.lookupd_http_address))
        stats = api.stats(options.topic, options.channel, include_clients=False)
        for topic in count_topics([stats]):
            for channel in topic.channels:
                if (topic.name, channel.name) == (options.topic, options.channel):
                    found[address] = channel
    if not found:
        raise ApiError(_what_is_missing(options, addresses))
    return Poll(found)


def _what_is_missing(options: StatOptions, addresses: Sequence[str]) -> str:
    told = bool(options.lookupd_http_address)
    stats = [
        options.nsqd_api(each, told=told).stats(options.topic, include_clients=False) for each in addresses
    ]
    topics = count_topics(stats)
    if not topics:
        return f"no nsqd has topic {options.topic}"
    names = ", ".join(sorted(channel.name for topic in topics for channel in topic.channels))
    return f"topic {options.topic} has no channel {options.channel}; it has {names or 'none'}"


def lines(options: StatOptions, poll: Poll, before: Poll | None, number: int) -> str:
    """Return lines in Go's format. The first poll gives no row, because a rate needs two polls."""
    header = f"{_HEADER}\n" if number % _PAGE == 0 else ""
    return header + ("" if before is None else f"{row(poll.total, before.total_of(poll), options.pause)}\n")


def screen(options: StatOptions, poll: Poll, before: Poll | None, width: int) -> str:
    """Return the screen of a terminal: the same columns, the sum first, then each nsqd. A narrow one is
    without the metadata.
    """
    earlier = poll if before is None else before
    rows = [(row(poll.total, earlier.total_of(poll), options.pause), "")]
    if len(poll.nsqds) > 1:
        rows += [
            (row(channel, earlier.nsqds.get(address, channel), options.pause), f"  {address}")
            for address, channel in sorted(poll.nsqds.items())
        ]
    shown = [(line, "") for line in _HEADER.splitlines()] + rows
    if max(len(line + address) for line, address in shown) > width:
        end = _TITLE.rindex("+")
        shown = [(line[:end].rstrip(), address) for line, address in shown]
    head = f"{options.topic}/{options.channel}  {time.strftime('%H:%M:%S')}  every {options.pause:g} s"
    text = "\n".join((line + address)[:width] for line, address in [(head, ""), *shown])
    return f"{_CLEAR}{text}\n"


if __name__ == "__main__":
    sys.exit(main())
