"""Who is alive, where there are no locks: an object that its holder writes again every ten seconds.

No message tells that a lease has ended; it is over when it is gone, or half a minute old. Ages compare the
holder's clock with the reader's, so clocks may differ by fifteen seconds; and a process that wants a lease
waits at most until it has itself seen a lease unchanged for half a minute. Until then the holder may be
dead, as it is when a query starts again after a crash: only a sign of life of the holder is a reason
to give up.

pyarrow cannot put an object on condition that it is not there. So two who want the same lease in the same
second can both write it, and each believes it was free. Both then wait, and read it again: the last who wrote
has it, and the other sees so. Only one that is stopped between reading and writing for longer than that wait
can still take a lease from its holder, and a holder that is silent for half a minute loses it. It finds out
at its next refresh; who holds one asks with ``check`` before doing what only a holder may.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from nsq.errors import WalError, WalOwned
from nsq.spark.wal import ownership
from nsq.spark.wal.ownership import LEAVING_PATIENCE, Owner

if TYPE_CHECKING:
    from nsq.spark.wal.objects import Bucket

REFRESH = 10.0
LIFETIME = 30.0
SKEW = 15.0
SETTLE = 2.0
_NAP = 0.5
_JOIN = 30.0

_logger = logging.getLogger("nsq.spark.wal")


class Lease(NamedTuple):
    """What stands in the object. ``token`` tells holders apart, ``beat`` counts refreshments."""

    token: str
    beat: int
    refreshed: float  # seconds since the epoch, on the holder's clock
    owner: Owner

    def live(self, now: float) -> bool:
        return now - self.refreshed < LIFETIME + SKEW


class Timing(NamedTuple):
    """The clocks that leases go by; tests bring their own."""

    now: Callable[[], float]  # since the epoch
    clock: Callable[[], float]  # monotonic
    nap: Callable[[float], None]


def encode(lease: Lease) -> bytes:
    return json.dumps({**lease._asdict(), "owner": lease.owner._asdict()}).encode() + b"\n"


def decode(text: bytes) -> Lease:
    """A lease that cannot be read may be half written: it has a holder, and no age."""
    try:
        found = json.loads(text)
        owner = ownership.decode(found["owner"])
        return Lease(str(found["token"]), int(found["beat"]), float(found["refreshed"]), owner)
    except (ValueError, KeyError, TypeError):
        return Lease("", 0, math.inf, ownership.UNKNOWN_OWNER)


def read(bucket: Bucket, name: str) -> Lease | None:
    text = bucket.get(name)
    return decode(bytes(text)) if text is not None else None


class HeldLease:
    """Refreshed by a thread of its own until it is released."""

    def __init__(self, bucket: Bucket, name: str, lease: Lease, now: Callable[[], float]) -> None:
        self.lost = False
        self._bucket = bucket
        self._name = name
        self._lease = lease
        self._now = now
        self._guard = threading.RLock()  # of _lease; reentrant, for a signal's handler
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"nsq-wal-lease-{name}", daemon=True)
        self._thread.start()

    def leaving(self) -> None:
        with self._guard:
            self._lease = self._lease._replace(owner=self._lease.owner._replace(leaving=True))
        self.refresh()

    def check(self) -> None:
        """Raises WalOwned when it has been taken from us."""
        if self._now() - self._lease.refreshed > LIFETIME:
            self.refresh()  # this process may just have woken up, before the thread that refreshes
        if self.lost:
            raise WalOwned(
                f"{self._bucket.path('')} has been taken by another process, which had heard nothing of this "
                f"process ({self._lease.owner}) for {LIFETIME:g} s: only one may go on"
            )

    def release(self) -> None:
        """Twice does no harm. A lease that cannot be deleted ends by itself."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join(_JOIN)
        try:
            if not self.lost and self._is_ours():
                self._bucket.delete(self._name)
        except WalError as error:
            _logger.warning("%s; it ends by itself in %d seconds", error, LIFETIME + SKEW)

    def refresh(self) -> None:
        """Write the lease again, unless another process has taken it."""
        try:
            if not self._is_ours():
                self.lost = True
                _logger.error("%s has been taken by another process", self._bucket.path(self._name))
                return
            with self._guard:
                self._lease = lease = self._lease._replace(beat=self._lease.beat + 1, refreshed=self._now())
            self._bucket.rewrite(self._name, encode(lease))
            if self._lease.owner != lease.owner:  # a signal's handler has told that we leave, and we undid it
                self._bucket.rewrite(self._name, encode(self._lease))
        except WalError as error:
            _logger.warning("a lease cannot be refreshed: %s", error)

    def _is_ours(self) -> bool:
        """One that is gone is ours to write again."""
        found = read(self._bucket, self._name)
        return found is None or found.token == self._lease.token

    def _run(self) -> None:
        while not self.lost and not self._over.wait(REFRESH):
            self.refresh()


def hold(bucket: Bucket, name: str, description: str, timing: Timing) -> HeldLease:
    """A lease that no other process wants: a receiver's."""
    lease = _new(description, timing)
    bucket.rewrite(name, encode(lease))
    return HeldLease(bucket, name, lease, timing.now)


def contend(bucket: Bucket, name: str, description: str, patience: float, timing: Timing) -> HeldLease:
    """Raises WalOwned when its holder does not leave in time, at a sign of life; without any ``patience`` its
    lease alone will do.
    """
    started = timing.clock()
    seen, since = read(bucket, name), started
    alive = not patience
    if seen is not None and seen.live(timing.now()):  # it may take half a minute
        _logger.warning(
            "%s is owned by %s; if that is dead, this begins when nothing was heard of it for %d s",
            *(bucket.path(""), seen.owner, LIFETIME),
        )
    while True:
        now = timing.clock()
        if seen is None or not seen.live(timing.now()) or now - since >= LIFETIME:
            lease = _new(description, timing)
            bucket.rewrite(name, encode(lease))
            timing.nap(SETTLE)
            found = read(bucket, name)
            if found is not None and found.token == lease.token:
                return HeldLease(bucket, name, lease, timing.now)
        elif alive and now - started >= (max(patience, LEAVING_PATIENCE) if seen.owner.leaving else patience):
            reader = name.rpartition("/")[2].partition(".lock")[0]
            raise WalOwned(ownership.told(reader, bucket.path(""), seen.owner, now - started))
        else:
            timing.nap(_NAP)
        latest = read(bucket, name)
        alive = not patience or latest != seen
        if latest != seen:
            seen, since = latest, timing.clock()


def _new(description: str, timing: Timing) -> Lease:
    return Lease(uuid.uuid4().hex, 0, timing.now(), ownership.introduce(description))
