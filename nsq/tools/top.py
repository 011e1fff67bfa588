"""``nsq top``: a screen that shows depth, rates and consumers of every topic and channel of a cluster.

``Model`` makes rows of the nsqds' answers and is pure. A thread polls the nsqds; the main thread draws and
reads keys.
"""

from __future__ import annotations

import curses
import json
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from nsq import NsqError
from nsq.errors import ApiRefused, UsageError
from nsq.http.asking import ask_all
from nsq.http.cluster import REQUEUED, TIMED_OUT, Topic, Track, merge_topics, summarize
from nsq.http.nsqd import NsqdApi, NsqdStats, PeekedMessage
from nsq.tables import printable, table
from nsq.tools.cluster import Cluster, ClusterFlags
from nsq.tools.program import duration, run_command

_BARS = " ▁▂▃▄▅▆▇█"
_HISTORY = 30
#: How many channels are asked for the age of their first message in one poll.
_MOST_AGES = 200
#: Milliseconds without a key after which the screen checks for new data.
_LOOK_EVERY = 100
_SORTS = ("name", "depth", "in_rate", "out_rate", "in_flight", "clients")
_HEADER = (
    "TOPIC/CHANNEL",
    "",
    "DEPTH",
    "",
    "OLDEST",
    "IN/S",
    "OUT/S",
    "INFLT",
    "DEFER",
    "REQ/S",
    "T-O/S",
    "CLIENTS",
)
_BARS_COLUMN = 3
#: On a narrow screen long names are shortened to this, and then these columns are left out, in this order.
_SHORT_NAME = 24
_LEFT_OUT = ("T-O/S", "REQ/S", "DEFER", "OLDEST", "INFLT", "CLIENTS", "OUT/S", "IN/S")
_KEYS = "q quit  s sort  r reverse  / filter  p pause/unpause  space freeze"


@dataclass(frozen=True, kw_only=True)
class TopOptions(ClusterFlags):
    interval: float = duration(2.0, "time between two polls of the nsqds", low=0.1, high=3600.0)


def main(argv: Sequence[str]) -> int:
    synopsis = (
        "\nShows a live screen of topics and channels with their depth, rates and consumers.\n"
        "If stdout is not a terminal, it writes one table, or JSON, and exits."
    )
    return run_command(TopOptions, argv, "nsq top", synopsis, _top)


def _top(options: TopOptions, _: tuple[str, ...]) -> int:
    if sys.stdout.isatty() and not options.json:
        try:
            Screen(options).run()
        except curses.error as error:
            raise UsageError(f"this terminal cannot show it: {error}; `nsq top | cat` can") from None
        return 0
    model, ages = Model(), Ages()
    for pause in (options.interval, 0.0):
        cluster = Cluster(options)
        stats = cluster.stats()
        model.add(stats, time.monotonic(), ages.ask(cluster, stats))
        time.sleep(pause)
    rows = model.rows("name")
    if options.json:
        listed = [{name: value for name, value in vars(row).items() if name != "history"} for row in rows]
        sys.stdout.write(json.dumps(listed, indent=2) + "\n")
    else:
        sys.stdout.write(f"{fitted_table(rows)}\n")
    return 0


# Rows


@dataclass
class Row:
    """A topic, or with ``channel`` one of its channels, summed over the nsqds. Rates are per second."""

    topic: str
    channel: str = ""
    depth: int = 0
    in_rate: float = 0.0
    out_rate: float = 0.0
    in_flight: int = 0
    deferred: int = 0
    requeue_rate: float = 0.0
    timeout_rate: float = 0.0
    clients: int = 0
    paused: bool = False
    age: float | None = None  # age of the first waiting message, in seconds; None if no nsqd reports it
    history: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.channel}" if self.channel else self.topic

    def cells(self, bars: int = _HISTORY) -> list[str]:
        """Return the cells of a row, with that many bars for the latest depths."""
        rates = [self.in_rate, self.out_rate, self.requeue_rate, self.timeout_rate]
        came, left, requeued, timed_out = (f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}" for rate in rates)
        counts = [str(self.in_flight), str(self.deferred), requeued, timed_out, str(self.clients)]
        return [
            self.name,
            "paused" if self.paused else "",
            str(self.depth),
            spark(self.history, bars),
            short_age(self.age),
            came,
            left,
            *counts,
        ]


def spark(values: Sequence[int], bars: int = _HISTORY) -> str:
    """Draw a bar for each of the last values; the highest value has a full bar."""
    latest = values[max(0, len(values) - bars) :]
    top = max(latest, default=0) or 1
    return "".join(_BARS[-(-value * (len(_BARS) - 1) // top)] for value in latest).rjust(bars)


def fitted_table(rows: Sequence[Row], width: int = 1000) -> str:
    """Draw a table. If it is too wide, it gets fewer bars, then shorter names, then fewer columns."""
    names = max(len(row.name) for row in rows) if rows else 0
    columns = list(range(len(_HEADER)))
    bars = _HISTORY

    def drawn() -> tuple[str, int]:
        cells = ([shortened(row.name, names), *row.cells(bars)[1:]] for row in rows)
        text = table(
            [_HEADER[place] for place in columns], ([each[place] for place in columns] for each in cells)
        )
        return text, max(map(len, text.splitlines())) - width

    text, excess = drawn()
    if excess > 0:
        bars = max(0, bars - excess)
        text, excess = drawn()
    if excess > 0:
        columns.remove(_BARS_COLUMN)
        text, excess = drawn()
    if excess > 0:
        names = max(_SHORT_NAME, names - excess)
        text, excess = drawn()
    for column in _LEFT_OUT:
        if excess > 0:
            columns.remove(_HEADER.index(column))
            text, excess = drawn()
    return text


def shortened(name: str, length: int) -> str:
    """Leave out the middle of a name that is too long."""
    if len(name) <= length:
        return name
    return f"{name[: length // 2]}…{name[len(name) - (length - 1) // 2 :]}"


class Model:
    """The rows of the last poll, and what rates and bars need of the polls before."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._tracks: dict[str, Track] = {}
        self._depths: dict[str, deque[int]] = {}

    def add(
        self, stats: Mapping[str, NsqdStats], now: float, ages: Mapping[tuple[str, str], float] | None = None
    ) -> None:
        self._tracks = {address: self._tracks.get(address) or Track() for address in stats}
        for address, of_nsqd in stats.items():
            self._tracks[address].add(summarize(of_nsqd, now))
        self._rows = list(_rows(merge_topics(self._tracks.values())))
        self._depths = {row.name: self._depths.get(row.name, deque(maxlen=_HISTORY)) for row in self._rows}
        for row in self._rows:
            self._depths[row.name].append(row.depth)
            row.history = list(self._depths[row.name])
            row.age = (ages or {}).get((row.topic, row.channel))

    def rows(self, sort: str, reverse: bool = False, pattern: str = "") -> list[Row]:
        """Sort numbers in descending order, names in ascending order."""
        found = [row for row in self._rows if pattern.lower() in row.name.lower()]
        found.sort(key=lambda row: (row.topic, row.channel))
        if sort != "name":
            found.sort(key=lambda row: -getattr(row, sort))
        return found[::-1] if reverse else found


def _rows(topics: Iterable[Topic]) -> Iterator[Row]:
    for topic in topics:
        yield Row(
            topic.name,
            depth=topic.depth,
            in_rate=topic.rate,
            out_rate=max(0.0, topic.rate - topic.growth),
            paused=topic.paused,
        )
        for each in topic.channels:
            yield Row(
                topic.name,
                each.name,
                depth=each.depth,
                in_rate=each.rate,
                out_rate=each.delivered,
                in_flight=each.in_flight,
                deferred=each.deferred,
                requeue_rate=max(0.0, each.changes[REQUEUED]),
                timeout_rate=max(0.0, each.changes[TIMED_OUT]),
                clients=each.clients,
                paused=each.paused,
            )


class Ages:
    """Asks for the age of a channel's first message. An nsqd that does not support it is asked only once."""

    def __init__(self) -> None:
        self._silent: set[str] = set()

    def ask(self, cluster: Cluster, stats: Mapping[str, NsqdStats]) -> dict[tuple[str, str], float]:
        asked = [
            (address, topic["topic_name"], channel["channel_name"])
            for address, of_nsqd in stats.items()
            if address not in self._silent
            for topic in of_nsqd["topics"]
            for channel in topic["channels"]
            if channel["depth"]
        ][:_MOST_AGES]

        def peek(place: tuple[str, str, str]) -> list[PeekedMessage]:
            address, topic, channel = place
            return cluster.nsqds[address].peek(topic, channel, n=1)

        answers = ask_all(asked, peek)
        self._silent |= {
            address
            for (address, _, _), error in answers.errors.items()
            if isinstance(error, ApiRefused) and error.code != "CHANNEL_NOT_FOUND"
        }
        ages: dict[tuple[str, str], float] = {}
        for (_, topic, channel), messages in answers.found.items():
            if messages:
                ages[topic, channel] = max(ages.get((topic, channel), 0.0), messages[0].age)
        return ages


def short_age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


# The screen


class News(NamedTuple):
    stats: dict[str, NsqdStats]
    ages: dict[tuple[str, str], float]


class Screen:
    def __init__(self, options: TopOptions) -> None:
        self._options = options
        self._model = Model()
        self._news: queue.SimpleQueue[News | str] = queue.SimpleQueue()
        self._over = threading.Event()
        self._asked = threading.Event()  # poll at once
        self._sort = 1
        self._reverse = False
        self._pattern = ""
        self._selected = 0
        self._frozen = False
        self._said = "asking the nsqds …"

    def run(self) -> None:
        def end(*_: object) -> NoReturn:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another one must not interrupt the end
            raise SystemExit(0)

        signal.signal(signal.SIGTERM, end)  # so that the terminal is restored
        poller = threading.Thread(target=self._poll, name="nsq-top", daemon=True)
        poller.start()
        try:
            curses.wrapper(self._show)
        except KeyboardInterrupt:
            pass
        finally:
            self._over.set()
            self._asked.set()
            poller.join(_LOOK_EVERY / 1000)  # longer only if an nsqd does not answer

    def _poll(self) -> None:
        ages = Ages()
        while not self._over.is_set():
            try:
                cluster = Cluster(self._options)  # a new one each time, because nsqds come and go
                stats = cluster.stats()
                if self._over.is_set():
                    break
                self._news.put(News(stats, ages.ask(cluster, stats)))
                if cluster.problems:
                    self._news.put(cluster.problems[0])
            except Exception as error:  # otherwise the screen would stay as it is
                self._news.put(str(error) if isinstance(error, NsqError) else repr(error))
            self._asked.wait(self._options.interval)
            self._asked.clear()

    def _show(self, window: curses.window) -> None:
        curses.use_default_colors()
        with suppress(curses.error):  # a terminal that cannot hide its cursor
            curses.curs_set(0)
        window.timeout(_LOOK_EVERY)
        self._draw(window)
        while True:
            key = window.getch()
            changed = self._take_news()
            if key == ord("q"):
                return
            if key != -1:
                self._pressed(window, key)
            if changed or key != -1:
                self._draw(window)

    def _take_news(self) -> bool:
        changed = False
        while not self._news.empty():
            news = self._news.get()
            if isinstance(news, str):
                self._said, changed = news, True
            elif not self._frozen:
                self._model.add(news.stats, time.monotonic(), news.ages)
                self._said, changed = "", True
        return changed

    def _rows(self) -> list[Row]:
        return self._model.rows(_SORTS[self._sort], self._reverse, self._pattern)

    def _pressed(self, window: curses.window, key: int) -> None:
        if key == ord("s"):
            self._sort = (self._sort + 1) % len(_SORTS)
        elif key == ord("r"):
            self._reverse = not self._reverse
        elif key == ord(" "):
            self._frozen = not self._frozen
        elif key == ord("/"):
            self._pattern = self._ask(window, "filter: ")
            self._selected = 0
        elif key in (curses.KEY_DOWN, ord("j")):
            self._selected = min(self._selected + 1, max(0, len(self._rows()) - 1))
        elif key in (curses.KEY_UP, ord("k")):
            self._selected = max(0, self._selected - 1)
        elif key == ord("p"):
            self._pause(window)

    def _pause(self, window: curses.window) -> None:
        rows = self._rows()
        if not rows:
            return
        row = rows[min(self._selected, len(rows) - 1)]
        action = "unpause" if row.paused else "pause"
        if self._ask(window, f"{action} {row.name} on every nsqd? [y/N] ").lower() not in ("y", "yes"):
            return
        try:
            cluster = Cluster(self._options)
            outcomes = cluster.change(None, _pausing(row), cluster.having(row.topic))
            errors = [f"{each.where}: {each.error}" for each in outcomes if each.error]
        except NsqError as error:
            errors = [str(error)]
        self._said = "; ".join(errors)
        self._asked.set()

    def _ask(self, window: curses.window, question: str) -> str:
        """Read a line at the bottom of the screen."""
        height, width = window.getmaxyx()
        window.timeout(-1)
        curses.echo()
        try:
            window.move(height - 1, 0)
            window.clrtoeol()
            window.addnstr(height - 1, 0, printable(question), width - 1)
            return (
                window.getstr(height - 1, min(len(question), width - 1), 80)
                .decode("utf-8", "replace")
                .strip()
            )
        finally:
            curses.noecho()
            window.timeout(_LOOK_EVERY)

    def _draw(self, window: curses.window) -> None:
        height, width = window.getmaxyx()
        rows = self._rows()
        self._selected = min(self._selected, max(0, len(rows) - 1))
        room = max(1, height - 4)
        first = max(0, self._selected - room + 1)
        shown = rows[first : first + room]
        lines = fitted_table(shown, width - 1).splitlines()
        sort = _SORTS[self._sort] + (", reversed" if self._reverse else "")
        state = f"{len(rows)} rows by {sort}" + (f", filter {self._pattern!r}" if self._pattern else "")
        if self._frozen:
            state += ", FROZEN"
        window.erase()
        _put(window, 0, f"nsq top  {time.strftime('%H:%M:%S')}  {state}", width, curses.A_BOLD)
        _put(window, 1, lines[0], width, curses.A_REVERSE)
        for number, line in enumerate(lines[1:]):
            style = curses.A_STANDOUT if first + number == self._selected else curses.A_NORMAL
            _put(window, number + 2, line, width, style)
        _put(window, height - 2, self._said, width, curses.A_BOLD)
        _put(window, height - 1, _KEYS, width, curses.A_DIM)
        window.refresh()


def _pausing(row: Row) -> Callable[[NsqdApi], None]:
    def change(nsqd: NsqdApi) -> None:
        if row.channel:
            act: Any = nsqd.unpause_channel if row.paused else nsqd.pause_channel
            act(row.topic, row.channel)
        else:
            (nsqd.unpause_topic if row.paused else nsqd.pause_topic)(row.topic)

    return change


def _put(window: curses.window, line: int, text: str, width: int, style: int) -> None:
    with suppress(curses.error):  # the terminal was made smaller meanwhile
        window.addnstr(line, 0, printable(text), width - 1, style)
