from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pyarrow import fs

from nsq.errors import WalOwned
from nsq.spark.wal import objects as leases
from nsq.spark.wal import ownership
from nsq.spark.wal.objects import Bucket, HeldLease, Lease, Timing

PATH = "owner.json"


class Hours:
    """Clocks that naps move, and what happens at a time."""

    def __init__(self, offset: float = 0.0) -> None:
        self.passed = 0.0
        self.offset = offset  # of this host's clock
        self.events: dict[float, Callable[[], object]] = {}

    def timing(self) -> Timing:
        return Timing(lambda: 1000.0 + self.passed + self.offset, lambda: self.passed, self.nap)

    def nap(self, seconds: float) -> None:
        self.passed += seconds
        for moment in [one for one in self.events if one <= self.passed]:
            self.events.pop(moment)()


@pytest.fixture
def bucket() -> Bucket:
    made = Bucket(fs._MockFileSystem(), "bucket/wal")
    made.make_folder("")
    return made


def abandoned(bucket: Bucket, hours: Hours, leaving: bool = False) -> Lease:
    """A holder that has died just now."""
    owner = ownership.Owner("the dead", leaving, "host", 1)
    lease = Lease("dead", 3, hours.timing().now(), owner)
    leases.write_lease(bucket, PATH, lease)
    return lease


def test_held_and_given_up(bucket: Bucket) -> None:
    hours = Hours()
    held = leases.contend(bucket, PATH, "me", 0, hours.timing())
    assert hours.passed == leases.SETTLE
    found = leases.read_lease(bucket, PATH)
    assert found is not None
    assert found.owner.description == "me"
    with pytest.raises(WalOwned, match=r"bucket/wal is owned by me \(process"):
        leases.contend(bucket, PATH, "other", 0, hours.timing())
    held.release()
    held.release()
    assert bucket.get(PATH) is None


def test_refreshed_by_its_thread(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "REFRESH", 0.001)
    held = leases.hold(bucket, PATH, "me", Hours().timing())
    deadline = time.monotonic() + 200
    while (found := leases.read_lease(bucket, PATH)) is None or found.beat < 3:
        assert time.monotonic() < deadline
    held.release()


def test_refreshed_it_lives_on(bucket: Bucket) -> None:
    hours = Hours()
    held = leases.hold(bucket, PATH, "me", hours.timing())
    for _ in range(5):
        hours.passed += leases.REFRESH
        held.refresh()
    found = leases.read_lease(bucket, PATH)
    assert found is not None
    assert (found.beat, found.live(hours.timing().now())) == (5, True)
    held.release()


def test_a_dead_holder_is_replaced_when_its_lease_is_old(bucket: Bucket) -> None:
    hours = Hours()
    abandoned(bucket, hours)
    hours.passed = leases.LIFETIME + leases.SKEW
    leases.contend(bucket, PATH, "me", 0, hours.timing()).release()
    assert hours.passed == leases.LIFETIME + leases.SKEW + leases.SETTLE


@pytest.mark.parametrize("ahead", [0.0, 1e9])
def test_a_lease_that_does_not_change_is_old_whatever_the_clocks_say(bucket: Bucket, ahead: float) -> None:
    abandoned(bucket, Hours(offset=ahead))
    hours = Hours()
    leases.contend(bucket, PATH, "me", 60, hours.timing()).release()
    assert leases.LIFETIME <= hours.passed < leases.LIFETIME + leases.SETTLE + 1


def test_half_a_lease_is_somebodys_until_it_is_clear_that_nobody_writes_it(bucket: Bucket) -> None:
    bucket.rewrite(PATH, b'{"token"')
    hours = Hours()
    with pytest.raises(WalOwned, match="an unknown process"):
        leases.contend(bucket, PATH, "me", 0, hours.timing())
    leases.contend(bucket, PATH, "me", 5, hours.timing()).release()
    assert leases.LIFETIME <= hours.passed < leases.LIFETIME + leases.SETTLE + 1


@pytest.mark.parametrize("leaving", [False, True])
def test_a_query_that_starts_again_after_a_crash_waits_for_what_is_left_of_its_lease(
    bucket: Bucket, caplog: pytest.LogCaptureFixture, leaving: bool
) -> None:
    hours = Hours()
    abandoned(bucket, hours, leaving)
    leases.contend(bucket, PATH, "me", 5, hours.timing()).release()
    assert leases.LIFETIME <= hours.passed < leases.LIFETIME + leases.SETTLE + 1
    (line,) = caplog.messages
    assert line.startswith("bucket/wal is owned by the dead (process 1 on host)")
    assert line.endswith("; if that is dead, this begins when nothing was heard of it for 30 s")


def refreshing(bucket: Bucket, hours: Hours, until: float) -> None:
    """A holder that shows a sign of life when the others do."""
    lease = abandoned(bucket, hours)

    def refresh() -> None:
        nonlocal lease
        lease = lease._replace(beat=lease.beat + 1, refreshed=hours.timing().now())
        leases.write_lease(bucket, PATH, lease)
        if hours.passed < until:
            hours.events[hours.passed + leases.REFRESH] = refresh

    hours.events[3.0] = refresh


def test_a_holder_that_lives_is_refused_at_its_next_sign_of_life(bucket: Bucket) -> None:
    hours = Hours()
    refreshing(bucket, hours, until=1000.0)
    with pytest.raises(WalOwned, match=r"bucket/wal is owned by the dead \(process 1 on host\); waited 13"):
        leases.contend(bucket, PATH, "me", 5, hours.timing())


def test_a_holder_that_dies_while_it_is_waited_for_is_followed(bucket: Bucket) -> None:
    hours = Hours()
    refreshing(bucket, hours, until=0.0)  # once more, and then no more
    leases.contend(bucket, PATH, "me", 5, hours.timing()).release()
    assert 3 + leases.LIFETIME <= hours.passed < 3 + leases.LIFETIME + leases.SETTLE + 1


def test_who_was_silent_for_too_long_learns_that_before_it_goes_on(bucket: Bucket) -> None:
    hours = Hours()
    held = leases.hold(bucket, PATH, "me", hours.timing())
    held.check()
    abandoned(bucket, hours)
    held.check()  # nothing is asked while the lease is fresh
    hours.passed = leases.LIFETIME + 1
    with pytest.raises(WalOwned, match=r"taken by another process.* for 30 s: only one may go on"):
        held.check()
    held.release()


def test_who_is_leaving_is_waited_for(bucket: Bucket) -> None:
    hours = Hours()
    held = leases.contend(bucket, PATH, "first", 0, hours.timing())
    held.leaving()
    hours.events[20.0] = held.release
    second = leases.contend(bucket, PATH, "second", 1, hours.timing())
    assert 20 <= hours.passed < 24
    second.release()


def test_who_leaves_in_the_middle_of_a_refresh_is_leaving(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal's handler runs in the thread that refreshes, and is done before its file is written."""
    hours = Hours()
    held = leases.hold(bucket, PATH, "me", hours.timing())
    rewrite, calls = bucket.rewrite, [held.leaving]

    def interrupted(name: str, text: bytes) -> None:
        if calls:
            calls.pop()()
        rewrite(name, text)

    monkeypatch.setattr(bucket, "rewrite", interrupted)
    held.refresh()
    found = leases.read_lease(bucket, PATH)
    assert found is not None
    assert found.owner.leaving
    held.release()


def test_of_two_who_write_at_once_the_last_one_has_it(bucket: Bucket) -> None:
    hours = Hours()
    winners: list[HeldLease] = []
    other = Hours()
    hours.events[leases.SETTLE] = lambda: winners.append(
        HeldLease(bucket, PATH, abandoned(bucket, other), other.timing().now)
    )
    with pytest.raises(WalOwned, match="owned by the dead"):
        leases.contend(bucket, PATH, "me", 1, hours.timing())
    (winner,) = winners
    winner.release()
    assert bucket.get(PATH) is None


def test_who_has_lost_it_notices_and_leaves_it_alone(bucket: Bucket) -> None:
    hours = Hours()
    held = leases.hold(bucket, PATH, "me", hours.timing())
    thief = abandoned(bucket, hours)
    held.refresh()
    assert held.lost
    held.release()
    assert leases.read_lease(bucket, PATH) == thief


def test_one_that_is_gone_is_written_again(bucket: Bucket) -> None:
    held = leases.hold(bucket, PATH, "me", Hours().timing())
    bucket.delete(PATH)
    held.refresh()
    assert leases.read_lease(bucket, PATH) is not None
    held.release()


def test_an_outage_ends_no_lease(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.make_folder("r")
    held = leases.hold(bucket, "r/lease.json", "me", Hours().timing())
    bucket.delete_folder("r")
    bucket.put("r", b"in the way")
    held.refresh()
    assert not held.lost
    held.release()
    assert "cannot be refreshed" in caplog.text
