"""Says what went wrong in a run: each check knows one promise of the package."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from tests.simulation.faults import Faults
from tests.simulation.load import Handled, Load
from tests.simulation.plan import FOCUSES, OF_DISKS, Plan
from tests.simulation.world import Conversation, Delivery, Nsqd

_GRACE = 0.5  # seconds that a call may take beyond its timeout, besides those for which threads stood still
_FOUND_AGAIN = 6.0  # seconds after a fault until clients have found everything again
_LISTED_AGAIN = 20.0  # the same if nsqds must first be listed again
_MOMENT = 0.04  # seconds for which a thread may stand still before its answers leave noticeably later
_EARLY = 0.002  # seconds by which a deferred message may be early: the wire counts milliseconds
_SILENCE = 2.0  # seconds of standing still that may make one side take the other for dead
#: Says that a call took too long, as threads stood still, that nsqds have not registered yet, or that a
#: producer was closed meanwhile.
_OVERDUE = re.compile("in time|did not answer within|lists none|discovered yet|producer (is|was) closed")
#: Faults that end no connection, and leave nsqd's disk alone.
_UNNOTICED = ("guests", "late", "empty", "clock", "lookupd", "unlisted")
#: Faults that keep no message from a consumer that stays connected.
_FLOWING = (*_UNNOTICED, *OF_DISKS)
#: Faults that no client notices which is not its target.
_CALM = (*_UNNOTICED[:4], "storm", "flap", "close_producer", "stop_consumer", "kill_client")
#: Faults that hold up nothing that is under way.
_PROMPT = (*_FLOWING, *_CALM)
_NOT_OF_DISKS = [kind for kind in FOCUSES["all"].split() if kind not in OF_DISKS]


def judge(plan: Plan, load: Load, faults: Faults) -> list[str]:
    """Return what went wrong during the run, and the first violation of each check."""
    auditor = Auditor(plan, load, faults)
    checks = [getattr(auditor, name) for name in vars(Auditor) if not name.startswith("_")]
    return load.world.problems + [violation for check in checks for violation in itertools.islice(check(), 1)]


class Auditor:
    """Every method without an underscore is a check: it yields what breaks its promise."""

    def __init__(self, plan: Plan, load: Load, faults: Faults) -> None:
        self.world, self.plan, self.load, self.faults = load.world, plan, load, faults
        self._timeout: float = plan.nsqd_options["msg_timeout"]
        self.power_was_cut = any(span.fault.kind.startswith("cut") for span in faults.spans)

    # Messages.

    def nothing_is_lost(self) -> Iterator[str]:
        for message, channel in self.load.undelivered():
            if self.plan.durable or not self._lossy(message.began, math.inf):
                what = f"{message.key!r} ({message.call}, confirmed {message.ended:.6f})"
                yield f"LOST: {what} does not come on {channel}"

    def only_what_was_published_arrives(self) -> Iterator[str]:
        for each in self.load.handled:
            message = self.load.sent.get(each.key)
            # Unsynced messages may have holes after a power cut; confirmed ones are looked at elsewhere.
            if message is None and not self.power_was_cut:
                yield f"UNKNOWN message delivered: {each.key[:100]!r}"
            if message is not None and message.state == "refused":
                yield f"REFUSED and delivered: {message.key!r} ({message.call}): {message.error}"

    def nothing_deferred_is_early(self) -> Iterator[str]:
        for each in self.load.handled:
            message = self.load.sent.get(each.key)
            if message is None or not message.defer:
                continue
            early = message.began + message.defer - each.at
            ended = message.ended if message.state == "stored" else math.inf
            unconfirmed = self._lossy(message.began, ended)
            if early > _EARLY and not unconfirmed and not self._due_times_lost(message.began, each.at):
                yield f"EARLY by {early:.3f} s: {message.key!r}, deferred {message.defer:.3f} s"

    def nothing_requeued_is_early(self) -> Iterator[str]:
        """The delay of a REQ holds, also over restarts, and over kills once nsqd has it."""
        durable, synced_in = self.plan.durable, self.plan.nsqd_options["sync_timeout"] * self.power_was_cut
        if self.power_was_cut and not durable:  # it may have left older records
            return
        for before, each in self._repeated("message_id", "channel"):
            early, delivery = before.ended + before.requeued_for - each.at, self._deliveries.get(before)
            again = before.ended < each.at and each.attempts <= before.attempts + 1
            if before.requeued_for <= 0 or early <= _EARLY or not again or delivery is None:
                continue
            trips = self._trips(before.ended, each.at)  # until nsqd has got it
            if self._disturbed(before.ended - 2, before.ended + trips, _NOT_OF_DISKS):
                continue  # what the disk refuses is lost at the next stop
            said = delivery.conversation
            refused = any(b"E_REQ_FAILED" in piece for _, piece in said.answered)  # perhaps another one
            # A later answer is to a further delivery.
            limit = min(before.ended + trips, each.at, said.closed_at - trips)
            in_time = before.ended <= delivery.ended < limit
            # Without --durable a kill loses a delay that is in memory only.
            until = before.ended + trips + synced_in if durable else each.at
            lost = self._lossy(delivery.at, max(until, each.at) if self.faults.disk_failed else until)
            if in_time and not (refused or lost or self._due_times_lost(delivery.at, each.at)):
                yield f"EARLY by {early:.3f} s after REQ: {each.key!r} on {each.channel}"

    def attempts_count_up(self) -> Iterator[str]:
        """A message that is delivered once more counts one more attempt: else it was stored twice."""
        if self.faults.lossy or self.plan.durable:  # what waits in files has its attempts of before
            return
        if any("cannot undo a failed write" in line for each in self.world.daemons for line in each.lines):
            return
        for _, each in self._repeated("message_id", "channel", "nsqd", "attempts"):
            yield f"ATTEMPT {each.attempts} twice: {each.key!r} on {each.channel}"

    def channels_stay(self) -> Iterator[str]:
        """Channels that were made long before a kill are there after it, and deleted ones are not."""
        for (nsqd, topic, channel), (there, at) in self.load.guests.items():
            late = self._trips(at - 5, at + 5)
            lost = self._lossy(at - late, at + late + self.plan.nsqd_options["sync_timeout"])
            agree = there == (channel in self.load.rosters[nsqd].get(topic, ()))
            if not (agree or lost or self.faults.disk_failed):
                yield f"ROSTER of {nsqd.name}: {topic}/{channel} is {'not ' * there}there since {at:.3f}"

    def nothing_comes_twice(self) -> Iterator[str]:
        """With nothing broken, only what was not handled within its timeout comes again."""
        in_batch = self.plan.batch * self.plan.slow_seconds * 1.5 * bool(self.plan.slow)
        for before, each in self._repeated("key", "channel") if self.plan.calm else ():
            answered = before.ended + in_batch + self._trips(before.ended, before.ended + 1)
            if (delivery := self._deliveries.get(before)) and answered < delivery.at + self._timeout:
                yield f"TWICE although nothing was broken: {each.key!r} on {each.channel}"

    def nothing_is_stored_twice(self) -> Iterator[str]:
        """A publish is one message: it is sent again only if it is surely not stored."""
        if self.plan.client_options.get("retry_uncertain"):
            return
        for before, each in self._repeated("key", "channel"):
            ids = [before.message_id, each.message_id]
            if ids[0] != ids[1] and each.key in self.load.sent:
                yield f"STORED twice: {each.key!r} on {each.channel}: {ids}"

    def nothing_finished_comes_again(self) -> Iterator[str]:
        """What was finished comes again only if a fault can have kept the FIN from nsqd, or from its disk."""
        if self.plan.batch or self.faults.disk_failed:  # one message that fails has a whole batch come again
            return
        unclean = [call.process for call in self.load.calls if call.what == "stop" and not call.result]
        for before, each in self._repeated("message_id", "channel", "nsqd"):
            delivery = self._deliveries.get(before)
            if not before.succeeded or delivery is None:
                continue
            late = 1 + self._stood(before.at - 5, before.ended + 5)
            if (
                before.by not in unclean
                and late < 1 + _SILENCE
                and each.attempts > before.attempts
                and before.ended < each.at
                and before.ended - delivery.at + late < self._timeout
                and not self._disturbed(before.at - late, before.ended + late)
                and not self._lossy(before.at, each.at)
            ):
                yield f"FINISHED at {before.ended:.3f} and delivered again: {each.key!r} on {each.channel}"

    def nothing_is_refused_without_a_fault(self) -> Iterator[str]:
        """While one nsqd after the other drains and restarts, the others take all publishes."""
        plan = self.plan
        rolling = {fault.kind for fault in plan.faults} == {"drain"} and plan.nsqds > 1
        rolling &= not (plan.holds or plan.lag_share)
        for message in self.load.sent.values() if plan.calm or rolling else ():
            unsure = message.state in ("refused", "perhaps") and not (message.call == "http" and rolling)
            # A producer that was idle for the whole drain may publish at the moment in which the nsqd stops.
            unsure &= not any(at - 0.05 - 5 * plan.delay < message.began <= at for at in self.faults.stopped)
            if unsure and message.error and not _OVERDUE.search(message.error):
                yield f"FAILED although nothing was broken: {message.call} {message.error}"

    # Connections.

    def nothing_is_answered_twice(self) -> Iterator[str]:
        for conversation in self.world.conversations:
            sent = Counter(each.message_id for each in conversation.deliveries)
            # A power cut may have put any bytes into an id, a newline too.
            said = [(verb, what) for _, verb, what in conversation.commands if len(what) == 16]
            answers = Counter(message_id for verb, message_id in said if verb in (b"FIN", b"REQ"))
            for message_id in answers - sent:
                yield f"ANSWERED {answers[message_id]} times, sent {sent[message_id]} times: {message_id!r}"

    def windows_stay_in_their_budget(self) -> Iterator[str]:
        """The RDYs that a consumer has sent add up to max_in_flight at most, or to one for each nsqd; and
        it gives an nsqd a larger one only if no more than max_in_flight can be in flight then.
        """
        nsqds = [nsqd.name for nsqd in self.load.nsqds]
        for client, budget in self.load.budgets.items():
            windows, in_flight, asked, since = Counter[int](), Counter[int](), list[int](), math.inf
            for at, is_window, number, count in self._windows_and_messages(client):
                if not is_window:
                    in_flight[number] += count
                    continue
                # An RDY cannot leave while its nsqd stands still and reads nothing.
                if at > since + _GRACE + self._stood(since, at, client, *nsqds):
                    yield f"RDY of {client} was {asked} from {since:.6f} on, max_in_flight is {budget}"
                # A window no larger than what is in flight admits nothing new.
                grows, windows[number] = count > max(windows[number], in_flight[number]), count
                asked = [window for window in windows.values() if window]
                # An RDY may leave before the smaller one of another connection does.
                since = min(since, at) if sum(asked) > max(budget, len(asked)) else math.inf
                used = in_flight.total() - in_flight[number] + count
                if grows and used > budget and self._stood(at - 2, at + 1, client) < _MOMENT:
                    yield f"RDY {count} of {client} at {at:.6f}: {used} may be in flight, not {budget}"

    def _windows_and_messages(self, client: str) -> list[tuple[float, int, int, int]]:
        """Return when a consumer sent an RDY, and when it surely had messages in flight, in this order: the
        time; 1 for a window; the connection; the window, or by how much the messages in flight change.
        """
        events = list[tuple[float, int, int, int]]()
        for number, each in enumerate(self._conversations(client)):
            said = [(at, what) for at, verb, what in each.commands if verb in (b"RDY", b"CLS")]
            events += [(at, 1, number, int(count)) for at, count in (*said, (each.closed_at, 0))]
            for delivery in each.deliveries:
                ended = min(delivery.left, delivery.at + self._timeout - 1)
                known = delivery.at + 2 * self.plan.delay + 0.1
                delayed = self._disturbed(delivery.at, known, _PROMPT)
                if ended > known and not (delivery.touched or delayed):
                    events += [(known, 0, number, 1), (ended - 0.05, 0, number, -1)]
        return sorted(events, key=lambda event: event[:2])

    # Time.

    def calls_end_in_time(self) -> Iterator[str]:
        """With nothing broken and quick handlers, a stop or a close ends within some round trips."""
        quick = ("close",) if self.plan.slow or self.plan.hung else ("close", "stop")
        for call in self.load.calls:  # one that was interrupted has no end
            took, stood = call.ended - call.began, call.process.stood(call.began, call.ended)
            # The client takes it that a connection has room for a small command, and waits twice if not.
            if took > call.timeout * (1 + (self.plan.window < 4096)) + _GRACE + 2 * stood:
                yield f"LATE: {call.what} took {took:.2f} s, its timeout is {call.timeout} s"
            if call.what not in quick:
                continue
            limit = self._trips(call.began, call.ended) + 0.5
            limit += max(0.0, self._interrupted_until(call.by) - call.began)
            if took > limit and not self._disturbed(call.began - _FOUND_AGAIN, call.ended, _CALM):
                yield f"SLOW: {call.what} of {call.process.name} at {call.began:.6f} took {took:.3f} s"

    def publishes_end_soon(self) -> Iterator[str]:
        """With nothing broken and nothing that stands still, a publish ends within some round trips."""
        unseen = () if self.plan.found_by_lookup else ("lookupd", "unlisted")
        again = _FOUND_AGAIN if unseen else _LISTED_AGAIN
        for message in self.load.sent.values():
            if message.ended - message.began <= 0.1 or message.call == "http":
                continue
            spans = [span for span in self.faults.spans if span.fault.kind not in (*_CALM, *unseen)]
            found = [span.ended + again for span in spans if span.began <= message.ended]
            since = max(found, default=message.began)
            if message.ended - max(message.began, since) > self._trips(since, message.ended):
                what = f"{message.call} of {message.key!r} from {message.began:.6f} to {message.ended:.6f}"
                yield f"SLOW: {what}: {message.error or 'stored'}"

    def answers_leave_soon(self) -> Iterator[str]:
        """What a handler has done is answered at once, and before nsqd gives it to another consumer."""
        for handled, delivery in self._deliveries.items():
            left = min(delivery.left, delivery.at + self._timeout - 1)
            if self.plan.batch or not handled.succeeded or left <= handled.ended:
                continue
            by = handled.ended + self._trips(handled.ended, handled.ended + 1)
            if left > by and not self._disturbed(delivery.at, by):
                yield f"SLOW: {handled.key!r} was handled at {handled.ended:.6f}, FIN {delivery.ended:.6f}"

    def timeouts_end_deliveries(self) -> Iterator[str]:
        """What is not answered in time comes again, though its consumer stays connected."""
        came = defaultdict[bytes, list[float]](list)
        for said in self.world.conversations:
            for each in said.deliveries:
                came[each.message_id].append(each.at)
        for handled, delivery in self._deliveries.items():
            due = delivery.at + self._timeout
            if delivery.left < due:
                continue
            by = due + 2.0 + 2 * self._stood(delivery.at, due + 2.0)
            if (
                delivery.left > by
                and not delivery.touched
                and not self._disturbed(delivery.at, by, _FLOWING)
                and self.load.emptied.get(handled.channel, 0.0) < delivery.at
                and not any(delivery.at < at <= by for at in came[handled.message_id])
                and not self._backlogged(handled.channel, due, by)
            ):
                yield f"TIMEOUT of {handled.key!r}, delivered at {delivery.at:.6f}: it never came again"

    def stops_leave_nothing(self) -> Iterator[str]:
        """A stop with time left, of a consumer whose nsqds live, leaves no message unanswered."""
        for call in self.load.calls:
            if call.what != "stop" or not call.ended:
                continue
            took, name, since = call.ended - call.began, call.process.name, call.began - _FOUND_AGAIN
            stood = self._stood(since, call.ended)
            late = took > call.timeout - 0.5 - stood or stood > _SILENCE
            if late or self._disturbed(since, call.ended, (*_PROMPT, "slow")):
                continue
            if not call.result:
                yield f"STOP of {name} at {call.began:.6f} took {took:.3f} s: {call.result}"
            for conversation in self._conversations(name):
                if call.began < conversation.closed_at <= call.ended + 1:
                    for each in conversation.deliveries:
                        if each.ended == math.inf and each.at + self._timeout > call.ended:
                            yield f"STOP of {name} at {call.began:.6f} left {each.message_id!r}"

    # Clients.

    def removed_nsqds_are_left(self) -> Iterator[str]:
        """A consumer says goodbye to an nsqd that its user removes, even if it was just connecting."""
        for client, address, at in self.load.removed:
            for each in self._conversations(client):
                said = b"".join(piece for when, piece in each.said if when < at - 0.5)
                open_ = each.closed_at > at and b"SUB " in said and b"CLS\n" not in said
                if open_ and each.address == address and self._stood(at - 1, at) < _MOMENT:
                    yield f"KEPT: {client} is connected to {address}, removed before {at:.6f}"

    def counters_agree(self) -> Iterator[str]:
        """What clients count is what happened, as far as they can know it."""
        messages = [message for message in self.load.sent.values() if message.call != "http"]
        ended = Counter((id(message.by), message.state) for message in messages)
        for process, made, stats, at in self.load.counted:
            handled = sum(each.succeeded for each in self.load.handled if each.by is process)
            stored, perhaps = ended[id(made), "stored"], ended[id(made), "perhaps"]
            if hasattr(stats, "finished"):
                left = stats.in_flight or stats.waiting
                wrong = stats.finished > handled
                wrong |= self.plan.calm and stats.finished + stats.timed_out < handled
            else:
                by = self._interrupted_until(made)  # once the producer's thread does not stand still
                left = stats.pending and at > by + _GRACE + process.stood(max(by, at - _FOUND_AGAIN), at)
                wrong = not stored <= stats.published <= stored + perhaps
            if left or wrong:
                facts = f"{handled} were handled, {stored} stored, {perhaps} perhaps"
                yield f"COUNTERS of {process.name}: {stats}, but {facts}"

    # Processes.

    def nothing_is_left(self) -> Iterator[str]:
        """All threads have ended, and all descriptors are closed."""
        # The garbage collector, which is off, closes the socket of an HTTP request that was interrupted.
        freed = any(span.fault.kind == "storm" for span in self.faults.spans)
        for process in self.world.processes:
            if not process.alive or process is self.world.here:
                continue
            threads = [thread for thread in process.threads if thread.alive]
            if left := [thread for thread in threads if not thread.name.startswith("nsq-resolve")]:
                yield f"LEFT running: {left}"
            opened = process.descriptors.values()
            if kept := [each for each in opened if not (freed and _is_http(each))]:
                yield f"LEFT open in {process.name}: {kept[:5]}"

    # What a fault allows.

    def _lossy(self, since: float, until: float) -> bool:
        """Whether an nsqd ended meanwhile that may have lost what it kept in memory."""
        return any(since <= at <= until for at in self.faults.lossy)

    def _due_times_lost(self, since: float, until: float) -> bool:
        """Whether the wall clock was set meanwhile, by which due times are kept in files; or, without
        --durable, an nsqd has ended whose files may have lost them: power was cut, or the disk failed.
        """
        failed = (self.power_was_cut or self.faults.disk_failed) and not self.plan.durable
        clock_set = any(since <= at <= until for at in self.faults.clock_set)
        return clock_set or (failed and self._lossy(since, until))

    def _disturbed(self, since: float, until: float, harmless: Sequence[str] = _UNNOTICED) -> bool:
        """Whether a fault was at work that clients can notice."""
        return any(
            span.fault.kind not in harmless and span.began <= until and span.ended >= since
            for span in self.faults.spans
        )

    def _stood(self, since: float, until: float, *names: str) -> float:
        """Return for how long threads stood still meanwhile, of processes with these names, or of all."""
        return sum(
            process.stood(since, until)
            for process in self.world.processes
            if process.name in names or (not names and process is not self.world.here)
        )

    def _trips(self, since: float, until: float) -> float:
        """Return the seconds in which what is under way ends, with nsqds and nsqlookupds that all work."""
        burst = 20_000 * self.plan.producers * self.plan.publishers  # bytes, each of which may take its turn
        return 0.1 + 3 * self.plan.delay * (40 + burst / self.plan.window) + 2 * self._stood(since, until)

    def _interrupted_until(self, producer: Any) -> float:
        """Return when the last publish ends whose caller was interrupted: it may wait until its timeout."""
        mine = [each for each in self.load.sent.values() if each.by is producer and each.error == "perhaps"]
        return max((each.began + each.timeout for each in mine), default=0.0)

    def _backlogged(self, channel: str, since: float, until: float) -> bool:
        """Whether messages of a channel waited for long that were handled meanwhile."""
        sent = self.load.sent
        return any(
            each.at - sent[each.key].ended - sent[each.key].defer > 1.0
            for each in self.load.handled
            if each.channel == channel and since <= each.at <= until and each.key in sent
        )

    # What belongs together.

    def _repeated(self, *names: str) -> Iterator[tuple[Handled, Handled]]:
        """Yield what a handler got, and the next one that agrees with it in these fields."""
        before = dict[Any, Handled]()
        for each in self.load.handled:
            same = attrgetter(*names)(each)
            if same in before:
                yield before[same], each
            before[same] = each

    def _conversations(self, client: str) -> list[Conversation]:
        return [each for each in self.world.conversations if each.client == client]

    @functools.cached_property
    def _deliveries(self) -> dict[Handled, Delivery]:
        """What brought each message that a handler got."""
        sent = defaultdict[Any, list[Delivery]](list)
        for said in self.world.conversations:
            for each in said.deliveries:
                sent[said.client, said.address, each.message_id, each.attempts].append(each)
        found = {}
        for handled in self.load.handled:
            what = (handled.by.name, handled.nsqd, handled.message_id, handled.attempts)
            came = [each for each in sent[what] if each.at <= handled.at]
            if came and handled.key in self.load.sent:  # a damaged message may have the id of another one
                found[handled] = came[-1]
        return found


def _is_http(descriptor: Any) -> bool:
    return hasattr(descriptor, "_end") and descriptor._end.peer_name[1] == Nsqd.http_port
