"""Receives until it is asked to stop, whatever happens meanwhile: ``nsq-spark receive`` and the tasks of
``nsq.spark.receivers`` use this. Must not import pyspark.

Several such processes divide the nsqds among them: each takes its *share*, so that a hundred receivers do not
mean ten thousand connections. A receiver whose log has ended, or whose share has changed, starts again under
a new name.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from nsq.errors import ConfigError, NsqError, UsageError, WalError, WalForeign
from nsq.log import Logger
from nsq.spark import lookups
from nsq.spark.receiver.protocol import Stopped
from nsq.spark.receiver.receiving import Receiving
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal.names import Subject
from nsq.spark.wal.status import Status
from nsq.spark.wal.store import open_wal

if TYPE_CHECKING:
    from nsq.spark.wal.log import Wal

log = Logger("nsq.spark.receiver")

#: Seconds for a graceful stop.
GRACE = 30.0
#: Seconds between two looks for nsqds that came or went. A share changes only if two looks agree.
LOOK_EVERY = 30.0
#: The pause before another attempt doubles from the first to the longest.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0


@dataclasses.dataclass(frozen=True)
class Share:
    """Part ``index``, from 0, of ``count``."""

    index: int = 0
    count: int = 1

    @classmethod
    def of(cls, text: str) -> Share:
        """Parse ``3/40``: the third of 40."""
        index, slash, count = text.partition("/")
        if slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count):
            return cls(int(index) - 1, int(count))
        raise ConfigError(f"{text!r} is not a share (want 3/40: the third of 40 receivers)")

    def __str__(self) -> str:
        return f"{self.index + 1}/{self.count}"

    def nsqds(self, addresses: Iterable[str]) -> tuple[str, ...]:
        """Its nsqds. With fewer nsqds than receivers, several receivers share one; else every nsqd has one
        receiver."""
        listed = sorted(set(addresses))
        if not listed:
            return ()
        if len(listed) < self.count:
            return (listed[self.index % len(listed)],)
        return tuple(listed[self.index :: self.count])


WHOLE = Share()


def own_options(options: SourceOptions, share: Share, before: Sequence[str] = ()) -> SourceOptions:
    """The options with the nsqds of this share alone. While an nsqlookupd does not answer, the share keeps
    those that it had ``before`` and that the others do not know."""
    if share.count == 1:
        return options
    found, kept = list(options.nsqd), []
    if options.lookupd:
        places, errors = lookups.places(options.lookupd, options.config, options.named_topics)
        found += [place.tcp for place in places]
        if errors:
            log.warning("not all nsqds are known: %s", "; ".join(map(str, errors)))
            kept = [address for address in before if address not in found]
    nsqds = (*share.nsqds(found), *kept)
    if not nsqds:
        raise NsqError(f"no nsqd has {options.subscription} yet")
    # topicsPattern finds topics only by asking nsqlookupd.
    lookupd = options.lookupd if options.topics_pattern else ()
    return dataclasses.replace(options, nsqd=nsqds, lookupd=lookupd, nsqd_http=())


def stand(
    options: SourceOptions,
    *,
    ended: Callable[[float], bool],
    report: Callable[[Status], None],
    share: Share = WHOLE,
    interval: float = 1.0,
    patient: bool = False,
) -> Stopped:
    """Receive until ``ended`` returns True; it waits for so many seconds. Every ``interval`` seconds
    ``report`` is called, with totals since the start.

    Raises ConfigError and WalForeign for settings that cannot work, and unless ``patient`` the error of the
    first attempt; after other errors it tries again.
    """
    if share.count > 1 and options.topics_pattern:
        raise ConfigError("topicsPattern cannot be shared among receivers: name the topics")
    wal = open_wal(options.wal, fsync=options.fsync)
    before: tuple[str, ...] = ()
    pause, past, stopped = FIRST_PAUSE, Status(), Stopped()

    def report_all(status: Status) -> None:
        received, sealed = past.received + status.received, past.sealed + status.sealed
        report(dataclasses.replace(status, received=received, sealed=sealed))

    while True:
        began = time.monotonic()
        try:
            wal.prepare(Subject(options.subscription, options.channel))
            own = own_options(options, share, before)
            before, patient = own.nsqd, True
            watch = ShareWatch(options, share, own.nsqd)
            over, status, stopped = _receive(own, wal, ended, watch, report_all, interval)
            past = Status(received=past.received + status.received, sealed=past.sealed + stopped.sealed)
            if over:
                return Stopped(past.sealed, stopped.in_flight)
        except (UsageError, WalForeign):
            raise
        except (NsqError, OSError) as error:
            if not patient:
                raise
            log.warning("receiving fails: %s; another attempt in %.1f s", error, pause)
            report_all(Status(error=str(error)))
        if time.monotonic() - began > LONGEST_PAUSE:
            pause = FIRST_PAUSE
        if ended(pause):
            return Stopped(past.sealed, stopped.in_flight)
        pause = min(2 * pause, LONGEST_PAUSE)


def _receive(
    options: SourceOptions,
    wal: Wal,
    ended: Callable[[float], bool],
    watch: ShareWatch,
    report: Callable[[Status], None],
    interval: float,
) -> tuple[bool, Status, Stopped]:
    """Receive under one name. Returns whether it was asked to end, the last status, and the end."""
    receiving = Receiving(options, wal, changed=lambda: None)
    over = False
    try:
        receiving.start()
        while not over and not receiving.broken and not watch.changed:
            over = ended(interval)
            report(receiving.status())
            refusal = receiving.refusal()
            if refusal:
                raise ConfigError(f"nsqd refuses: {refusal}")
    finally:
        watch.stop()
        stopped = receiving.stop(GRACE)
    report(receiving.status())
    if receiving.broken:
        log.warning("starting again under a new name: %s", receiving.broken)
    elif watch.changed:
        log.info("this receiver's nsqds have changed: starting again")
    return over, receiving.status(), stopped


class ShareWatch:
    """Looks, in its own thread, whether a share has other nsqds now; only with nsqlookupds."""

    def __init__(self, options: SourceOptions, share: Share, nsqds: Sequence[str]) -> None:
        self.changed = False
        self._options = options
        self._share = share
        self._nsqds = tuple(nsqds)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nsq-spark-share", daemon=True)
        if share.count > 1 and options.lookupd:
            self._thread.start()

    def _run(self) -> None:
        before = self._nsqds
        while not self.changed and not self._ending.wait(LOOK_EVERY):
            try:
                now = own_options(self._options, self._share, self._nsqds).nsqd
            except NsqError:
                continue
            self.changed = now == before != self._nsqds
            before = now

    def stop(self) -> None:
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(GRACE)


def ended_by(wal: Wal, job: str, every: float = 2.0) -> Callable[[float], bool]:
    """Return a function for ``stand``, which waits, and returns whether the log asks this job to stop: False
    while the log does not answer.
    """
    last_look = 0.0
    stop = False

    def ended(seconds: float) -> bool:
        nonlocal last_look, stop
        time.sleep(0 if stop else seconds)
        if not stop and time.monotonic() - last_look >= every:
            last_look = time.monotonic()
            try:
                stop = wal.stop_requested(job)
            except WalError as error:
                log.warning("cannot see whether to stop: %s", error)
        return stop

    return ended
