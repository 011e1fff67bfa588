"""The outbox by example; then under whatever order of steps the threads around it may take."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nsq.connection.outbox import Outbox


class TestWritingThrough:
    def test_who_finds_nothing_waiting_may(self) -> None:
        outbox = Outbox()
        assert outbox.may_write_through()
        assert outbox.writing

    def test_not_while_somebody_writes(self) -> None:
        outbox = Outbox()
        outbox.may_write_through()
        assert not outbox.may_write_through()

    def test_not_past_those_who_wait(self) -> None:
        outbox = Outbox()
        outbox.add(b"first")
        assert not outbox.may_write_through()
        assert outbox.take() == b"first"

    def test_not_when_it_is_dead(self) -> None:
        outbox = Outbox()
        outbox.kill()
        assert not outbox.may_write_through()


class TestTaking:
    def test_all_that_waits_comes_in_one_piece(self) -> None:
        outbox = Outbox()
        for piece in (b"a", b"b", b"c"):
            outbox.add(piece)
        assert len(outbox) == 3
        assert outbox.take() == b"abc"
        assert len(outbox) == 0

    def test_nothing_while_somebody_writes(self) -> None:
        outbox = Outbox()
        outbox.may_write_through()
        outbox.add(b"later")
        assert outbox.take() is None
        outbox.written()
        assert outbox.take() == b"later"

    def test_what_waits_is_still_sent_after_close_and_not_after_kill(self) -> None:
        outbox = Outbox()
        outbox.add(b"last")
        outbox.close()
        assert not outbox.open
        assert outbox.take() == b"last"
        outbox = Outbox()
        outbox.add(b"last")
        outbox.kill()
        assert not outbox.open
        assert outbox.take() is None


class TestWaking:
    def test_a_sleeping_loop_is_woken_once(self) -> None:
        outbox = Outbox()
        outbox.idle = True
        assert outbox.add(b"a")
        assert not outbox.add(b"b")

    def test_a_busy_loop_is_not(self) -> None:
        outbox = Outbox()
        assert not outbox.add(b"a")

    def test_who_writes_through_wakes_it_for_what_came_meanwhile(self) -> None:
        outbox = Outbox()
        outbox.idle = True
        outbox.may_write_through()
        assert not outbox.add(b"a")
        assert outbox.written()

    def test_who_writes_through_and_leaves_nothing_does_not(self) -> None:
        outbox = Outbox()
        outbox.idle = True
        outbox.may_write_through()
        assert not outbox.written()

    def test_the_end_is_something_to_wake_up_for(self) -> None:
        for end in (Outbox.close, Outbox.kill):
            outbox = Outbox()
            outbox.idle = True
            assert end(outbox)
            assert not end(outbox)

    def test_a_close_waits_for_who_writes_and_a_kill_does_not(self) -> None:
        outbox = Outbox()
        outbox.idle = True
        outbox.may_write_through()
        assert not outbox.close()
        assert outbox.kill()

    def test_who_writes_through_a_close_wakes_it_for_the_end(self) -> None:
        outbox = Outbox()
        outbox.idle = True
        outbox.may_write_through()
        outbox.close()
        assert outbox.written()


class TestWithdrawing:
    def test_what_waits_can_be_taken_back(self) -> None:
        outbox = Outbox()
        ticket = outbox.next_ticket
        outbox.add(b"a")
        outbox.add(b"b")
        assert outbox.withdraw(ticket)
        assert outbox.take() == b"b"

    def test_what_is_handed_over_cannot(self) -> None:
        outbox = Outbox()
        through = outbox.next_ticket
        outbox.may_write_through()
        assert not outbox.withdraw(through)
        queued = outbox.next_ticket
        outbox.add(b"a")
        outbox.written()
        outbox.take()
        assert not outbox.withdraw(queued)
        assert outbox.handed_over == queued

    def test_what_dies_waiting_is_never_sent(self) -> None:
        outbox = Outbox()
        ticket = outbox.next_ticket
        outbox.add(b"a")
        outbox.kill()
        assert outbox.withdraw(ticket)


class OutboxMachine(RuleBasedStateMachine):
    """Senders and the write loop, each step taken on its own; whoever is told to wake the loop does so at
    once or a while later.
    """

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox()
        self.accepted: dict[int, bytes] = {}
        self.withdrawn: set[int] = set()
        self.wire = b""
        self.through: bytes | None = None  # what a sender is writing
        self.loop = "awake"  # or writing, asleep, ended
        self.taken = b""
        self.wakes = 0  # decided on, not carried out yet
        self.killed = False

    def _wake(self, needed: bool) -> None:
        if needed:
            assert self.loop == "asleep", "woken though it does not sleep"
            assert self.wakes == 0, "woken twice"
            self.wakes += 1

    @precondition(lambda self: self.outbox.open)
    @rule(through=st.booleans())
    def send(self, through: bool) -> None:
        ticket = self.outbox.next_ticket
        data = b"%d;" % ticket
        assert ticket == len(self.accepted) + 1
        self.accepted[ticket] = data
        if through and self.outbox.may_write_through():
            assert self.through is None
            assert self.loop != "writing", "two write at once"
            self.through = data
        else:
            self._wake(self.outbox.add(data))

    @precondition(lambda self: self.through is not None)
    @rule()
    def sender_has_written(self) -> None:
        assert self.through is not None
        self.wire += self.through
        self.through = None
        self._wake(self.outbox.written())

    @precondition(lambda self: self.loop == "awake")
    @rule()
    def loop_looks(self) -> None:
        data = self.outbox.take()
        if data is not None:
            assert self.through is None, "two write at once"
            self.taken, self.loop = data, "writing"
        elif self.outbox.dead or (self.outbox.closing and not self.outbox.writing):
            self.loop = "ended"
        else:
            self.outbox.idle, self.loop = True, "asleep"

    @precondition(lambda self: self.loop == "writing")
    @rule()
    def loop_has_written(self) -> None:
        self.wire += self.taken
        self.loop = "awake"
        self._wake(self.outbox.written())

    @precondition(lambda self: self.wakes)
    @rule()
    def loop_wakes(self) -> None:
        self.wakes -= 1
        self.loop = "awake"

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.accepted)))
        possible = ticket > self.outbox.handed_over
        assert self.outbox.withdraw(ticket) is possible
        if possible:
            self.withdrawn.add(ticket)

    @precondition(lambda self: len(self.accepted) > 3)
    @rule()
    def close(self) -> None:
        self._wake(self.outbox.close())

    @precondition(lambda self: len(self.accepted) > 6)
    @rule()
    def kill(self) -> None:
        self.killed = True
        self._wake(self.outbox.kill())

    @invariant()
    def nobody_sleeps_through_work(self) -> None:
        if self.loop == "asleep" and not self.wakes:
            assert not self.outbox.dead
            assert self.outbox.writing or not (len(self.outbox) or self.outbox.closing)

    @invariant()
    def the_baton_is_where_somebody_writes(self) -> None:
        assert self.outbox.writing == (self.through is not None or self.loop == "writing")

    def teardown(self) -> None:
        """Everybody goes on to the end."""
        self.close()
        while self.loop != "ended":
            if self.through is not None:
                self.sender_has_written()
            elif self.loop == "writing":
                self.loop_has_written()
            elif self.loop == "awake":
                self.loop_looks()
            else:
                assert self.wakes, "the loop sleeps for ever"
                self.loop_wakes()
        kept = [data for ticket, data in self.accepted.items() if ticket not in self.withdrawn]
        if self.killed:
            sent = self.wire + (self.through or b"")
            assert b"".join(kept).startswith(sent)
            handed = [d for t, d in self.accepted.items() if t <= self.outbox.handed_over]
            assert sent == b"".join(data for data in handed if data in kept)
        else:
            assert self.wire == b"".join(kept)


TestInAnyOrder = OutboxMachine.TestCase
TestInAnyOrder.settings = settings(max_examples=200, stateful_step_count=40, deadline=None, derandomize=True)
