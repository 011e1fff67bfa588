"""``nsq_stat``: a channel's incoming and outgoing rates and its depth, one line per interval.

On a terminal it shows a live table with a line for each nsqd; into a pipe or a file it writes lines in the
format of Go's nsq_stat.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from nsq.errors import ApiError, ConfigError
from nsq.http.nsqd import ChannelStats
from nsq.tools.program import (
    HttpFlags,
    SignalWatch,
    check_ranges,
    duration,
    exactly_one_kind,
    flag,
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
            raise ConfigError(f"--{'channel' if self.topic else 'topic'} required")
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


@dataclass(frozen=True)
class Counts:
    """The counts of a channel, on one nsqd or summed over several."""

    messages: int = 0
    depth: int = 0
    disk: int = 0
    in_flight: int = 0
    deferred: int = 0
    requeued: int = 0
    timed_out: int = 0
    clients: int = 0

    @classmethod
    def of(cls, told: ChannelStats) -> Self:
        return cls(
            told["message_count"],
            told["depth"],
            told["backend_depth"],
            told["in_flight_count"],
            told["deferred_count"],
            told["requeue_count"],
            told["timeout_count"],
            told.get("client_count", len(told["clients"])),
        )

    def __add__(self, other: Counts) -> Counts:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Counts(*(one + another for one, another in pairs))

    def row(self, before: Counts, interval: float) -> str:
        came = self.messages - before.messages
        left = came - (self.depth - before.depth)
        return _ROW.format(
            int(came / interval),
            int(left / interval),
            self.depth,
            self.depth - self.disk,
            self.disk,
            self.in_flight,
            self.deferred,
            self.requeued,
            self.timed_out,
            self.messages,
            self.clients,
        )


@dataclass(frozen=True)
class Poll:
    """The answers of the nsqds at one moment, by address."""

    nsqds: dict[str, Counts] = field(default_factory=dict)

    @property
    def total(self) -> Counts:
        return sum(self.nsqds.values(), Counts())


def main(argv: Sequence[str] | None = None) -> int:
    return run(StatOptions, argv, PROG, stat)


def stat(options: StatOptions) -> int:
    live = sys.stdout.isatty()
    before: Poll | None = None
    polls = 0
    with SignalWatch(signal.SIGHUP) as watch:
        while options.count is None or polls <= options.count:
            poll = ask(options)
            text = screen(options, poll, before) if live else lines(options, poll, before, polls)
            sys.stdout.write(text)
            sys.stdout.flush()
            before = poll
            polls += 1
            if watch.wait(options.pause) is not None:
                break
    return 0


def ask(options: StatOptions) -> Poll:
    """Poll all nsqds. Raise ApiError if one does not answer (a partial sum misleads), or none has it."""
    addresses = options.nsqd_http_address
    if options.lookupd_http_address:
        addresses = tuple(
            dict.fromkeys(
                node.http_address
                for lookupd in options.lookupd_http_address
                for node in options.lookupd_api(lookupd).lookup(options.topic).producers
                if node.http_port  # else it has a bad registration, which the log has named
            )
        )
    found = {}
    for address in addresses:
        stats = options.nsqd_api(address).stats(options.topic, options.channel, include_clients=False)
        for topic in stats["topics"]:
            for channel in topic["channels"]:
                if (topic["topic_name"], channel["channel_name"]) == (options.topic, options.channel):
                    found[address] = Counts.of(channel)
    if not found:
        raise ApiError(f"no nsqd has channel {options.channel} of topic {options.topic}")
    return Poll(found)


def lines(options: StatOptions, poll: Poll, before: Poll | None, number: int) -> str:
    """Return lines in Go's format. The first poll gives no row, because a rate needs two polls."""
    header = f"{_HEADER}\n" if number % _PAGE == 0 else ""
    row = "" if before is None else f"{poll.total.row(before.total, options.pause)}\n"
    return header + row


def screen(options: StatOptions, poll: Poll, before: Poll | None) -> str:
    """Return the screen of a terminal: the same columns, the sum first, then each nsqd."""
    earlier = poll if before is None else before
    rows = [("", poll.total.row(earlier.total, options.pause))]
    if len(poll.nsqds) > 1:
        rows += [
            (address, counts.row(earlier.nsqds.get(address, counts), options.pause))
            for address, counts in sorted(poll.nsqds.items())
        ]
    text = "\n".join(f"{row}  {address}".rstrip() for address, row in rows)
    head = f"{options.topic}/{options.channel}  {time.strftime('%H:%M:%S')}  every {options.pause:g} s"
    return f"{_CLEAR}{head}\n{_HEADER}\n{text}\n"


if __name__ == "__main__":
    sys.exit(main())
