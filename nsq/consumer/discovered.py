"""What discovery tells of itself: a snapshot, and the same in words."""

from __future__ import annotations

from dataclasses import dataclass

from nsq.consumer.directory import Known, State


@dataclass(frozen=True)
class LookupdState:
    """What is known of one nsqlookupd. ``address`` is without its query, which may hold a secret; ``error``
    says why it could not be asked the last time, at ``failed_at``.
    """

    address: str
    answered_at: float | None = None
    listed: int = 0
    failed_at: float | None = None
    error: str = ""

    def words(self, now: float) -> str:
        told = []
        if self.failed_at is not None:
            told.append(f"failed {now - self.failed_at:.1f} s ago: {self.error}")
        if self.answered_at is not None:
            told.append(f"answered {now - self.answered_at:.1f} s ago, listing {self.listed}")
        return f"nsqlookupd {self.address}: " + ("; before that, ".join(told) or "has not answered yet")


@dataclass(frozen=True)
class DiscoveryState:
    """Times are those of the monotonic clock."""

    nsqlookupds: tuple[LookupdState, ...] = ()
    nsqds: tuple[Known, ...] = ()

    def words(self, now: float) -> list[str]:
        """A line for each nsqlookupd and for each nsqd."""
        return [lookupd.words(now) for lookupd in self.nsqlookupds] + [
            _nsqd_words(nsqd, now) for nsqd in self.nsqds
        ]


def _nsqd_words(nsqd: Known, now: float) -> str:
    origin = " and ".join(filter(None, ["given" * nsqd.direct, "listed" * nsqd.listed])) or "no longer listed"
    status = nsqd.state.value
    if nsqd.state is State.WAITING and nsqd.dial_at is not None:
        status = f"next dial in {max(0.0, nsqd.dial_at - now):.1f} s"
    return f"nsqd {nsqd.address} ({origin}): {status}" + (f"; last error: {nsqd.error}" if nsqd.error else "")
