"""Says what went wrong in a run: each check knows one promise of the package."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.simulation.faults import Faults
from tests.simulation.load import Handled, Load, Sent
from tests.simulation.plan import Plan
from tests.simulation.world import Conversation, Delivery, Nsqd, World

#: Seconds that a call may take beyond its timeout, besides those for which threads stood still.
_GRACE = 0.5
#: Seconds after a fault until clients have found everything again.
_FOUND_AGAIN = 6.0
#: The same if nsqds must first be listed again.
_LISTED_AGAIN = 20.0
#: Seconds by which a deferred message may be early: the wire counts milliseconds.
_EARLY = 0.002
#: Says that a call took too long, as threads stood still, that nsqds have not registered yet, or that a
#: producer was closed meanwhile.
_OVERDUE = re.compile("in time|did not answer within|lists none|discovered yet|producer (is|was) closed")
#: Seconds of standing still that may make one side take the other for dead.
_SILENCE = 2.0
#: Faults that no client notices which is not its target.
_CALM = (
    "guests", "late", "pause", "empty", "clock", "adjust", "interrupt", "storm", "flap", "close_producer",
    "stop_consumer", "kill_client",
)  # fmt: skip
#: Faults that break no connection, nor make it silent.
_UNBROKEN = (*_CALM, "lookupd", "unlisted", "slow", "full", "fsync_fails", "writes_fail", "short_writes")
#: Faults that hold up nothing that is under way.
_PROMPT = tuple(kind for kind in _UNBROKEN if kind != "slow")
#: Faults that keep no message from a consumer that stays connected.
_FLOWING = tuple(
    kind for kind in _PROMPT if kind not in ("pause", "adjust", "flap", "stop_consumer", "kill_client")
)
#: Faults that neither end a connection nor keep what comes over it from nsqd's disk.
_UNNOTICED = ("guests", "late", "pause", "empty", "clock", "lookupd", "unlisted")


class Auditor:
    def __init__(self, world: World, plan: Plan, load: Load, faults: Faults) -> None:
        self.world, self.plan, self.load, self.faults = world, plan, load, faults
        self.violations: list[str] = []
        self.by_key: dict[bytes, list[Handled]] = {}

    def judge(self) -> list[str]:
        """Return the violations, the gravest first."""
        for handled in self.load.handled:
            self.by_key.setdefault(handled.key, []).append(handled)
        for check in (
            self.nothing_is_lost,
            self.nothing_refused_arrives,
            self.only_what_was_published_arrives,
            self.nothing_deferred_is_early,
            self.nothing_requeued_is_early,
            self.attempts_count_up,
            self.channels_stay,
            self.nothing_comes_twice,
            self.nothing_is_stored_twice,
            self.nothing_finished_comes_again,
            self.nothing_is_refused_without_a_fault,
            self.nothing_is_answered_twice,
            self.windows_stay_in_their_budget,
            self.windows_grow_into_free_room,
            self.calls_end_in_time,
            self.publishes_end_soon,
            self.answers_leave_soon,
            self.timeouts_end_deliveries,
            self.stops_leave_nothing,
            self.ends_take_no_time,
            self.removed_nsqds_are_left,
            self.counters_agree,
            self.nothing_crashes,
            self.daemons_start_and_stop,
            self.nothing_is_left,
        ):
            check()
        self.violations += self.load.problems
        return self.violations

    def found(self, text: str) -> None:
        self.violations.append(text)

    def _excused(self, message: Sent) -> bool:
        """Whether an nsqd that keeps messages in memory has ended since it confirmed this one."""
        return not self.plan.durable and any(at >= message.began for at in self.faults.lossy)

    def nothing_is_lost(self) -> None:
        lost = [
            f"{message.key.decode()} ({message.call}, confirmed {message.ended:.6f}) on {channel}"
            for message in self.load.sent.values()
            if message.state == "stored" and not self._excused(message)
            for channel in self.load.channels(message)
            if not any(
                each.channel == channel and each.succeeded for each in self.by_key.get(message.key, ())
            )
        ]
        if lost:
            self.found(f"LOST {len(lost)} confirmed messages, the first: {lost[0]}")

    def nothing_refused_arrives(self) -> None:
        for message in self.load.sent.values():
            if message.state == "refused" and message.key in self.by_key:
                self.found(f"REFUSED and delivered: {message.key!r} ({message.call}): {message.error}")
                break

    def only_what_was_published_arrives(self) -> None:
        for key in self.by_key:
            # Unsynced messages may have holes after a power cut; confirmed ones are looked at elsewhere.
            if key not in self.load.sent and not self._power_was_cut:
                self.found(f"UNKNOWN message delivered: {key[:100]!r}")
                break

    @property
    def _power_was_cut(self) -> bool:
        return bool(self.faults.happened.keys() & {"cut", "cut_at"})

    def nothing_deferred_is_early(self) -> None:
        for handled in self.load.handled:
            message = self.load.sent.get(handled.key)
            if message is None or not message.defer:
                continue
            ended = math.inf if message.state == "perhaps" else message.ended
            early = message.began + message.defer - handled.at
            if (
                early > _EARLY
                and not any(message.began <= at <= ended for at in self.faults.lossy)  # it was not confirmed
                and not self._due_times_lost(message.began, handled.at)
            ):
                self.found(f"EARLY by {early:.3f} s: {message.key!r}, deferred {message.defer:.3f} s")
                break

    def _due_times_lost(self, since: float, until: float) -> bool:
        """Whether the wall clock was set meanwhile, by which due times are kept in files; or, without
        --durable, an nsqd has ended whose files may have lost them: power was cut, or the disk failed.
        """
        ended = any(since <= at <= until for at in self.faults.lossy)
        failed = self._power_was_cut or self.faults.disk_failed
        return (ended and failed and not self.plan.durable) or any(
            since <= at <= until for at in self.faults.clock_set
        )

    def nothing_requeued_is_early(self) -> None:
        """The delay of a REQ holds, also over restarts, and over kills once nsqd has it."""
        lost, synced_in = self.faults.lossy, self.plan.nsqd_options["sync_timeout"] * self._power_was_cut
        came: dict[bytes, list[tuple[Conversation, float]]] = {}
        for conversation in self.world.conversations:
            for message_id, at in conversation.requeued():
                came.setdefault(message_id, []).append((conversation, at))
        last: dict[tuple[bytes, str], Handled] = {}
        copied = set[tuple[bytes, str]]()  # of these a power cut without --durable has left older records
        for each in self.load.handled:
            which = each.message_id, each.channel
            before = last.get(which)
            last[which] = each
            if before is None:
                continue
            if self._power_was_cut and not self.plan.durable and each.attempts <= before.attempts:
                copied.add(which)
            if before.requeued_for <= 0 or each.attempts > before.attempts + 1 or which in copied:
                continue
            early = before.ended + before.requeued_for - each.at
            delivery = self._delivery(before)
            if early <= _EARLY or each.at <= before.ended or delivery is None:
                continue
            by = before.ended + self._trips(before.ended, each.at)  # when nsqd has got it
            # Without --durable a kill loses a delay that is in memory only.
            until = by + synced_in if self.plan.durable else each.at
            if (
                any(
                    said is delivery.conversation
                    and before.ended <= at < by
                    and at + by - before.ended < said.closed_at
                    for said, at in came.get(each.message_id, ())
                )
                and not any(delivery.at <= at <= until for at in lost)
                and not (self.faults.disk_failed and any(delivery.at <= at <= each.at for at in lost))
                and not self._due_times_lost(delivery.at, each.at)
            ):
                self.found(f"EARLY by {early:.3f} s after REQ: {each.key!r} on {each.channel}")
                break

    def attempts_count_up(self) -> None:
        """A message that is delivered once more counts one more attempt: else it was stored twice."""
        if self.faults.lossy or self.plan.durable:  # what waits in files has its attempts of before
            return
        if any("cannot undo a failed write" in line for each in self.world.daemons for line in each.lines):
            return
        seen = set[tuple[bytes, str, str, int]]()
        for each in self.load.handled:
            what = (each.message_id, each.channel, each.nsqd.partition(":")[0], each.attempts)
            if what in seen:
                self.found(f"ATTEMPT {each.attempts} twice: {each.key!r} on {each.channel}")
                break
            seen.add(what)

    def nothing_comes_twice(self) -> None:
        """With nothing broken, only what was not handled within its timeout comes again."""
        if not self.plan.calm:
            return
        timeout = self.plan.nsqd_options["msg_timeout"]
        in_batch = self.plan.batch * self.plan.slow_seconds * 1.5 * bool(self.plan.slow)
        last: dict[tuple[bytes, str], Handled] = {}
        for each in self.load.handled:
            before = last.get((each.key, each.channel))
            last[each.key, each.channel] = each
            if before is not None and (delivery := self._delivery(before)):
                answered = before.ended + in_batch + self._trips(before.ended, before.ended + 1)
                if answered < delivery.at + timeout:
                    self.found(f"TWICE although nothing was broken: {each.key!r} on {each.channel}")
                    return

    def nothing_is_stored_twice(self) -> None:
        """A publish is one message: it is sent again only if it is surely not stored."""
        if self.plan.client_options.get("retry_uncertain"):
            return
        ids: dict[tuple[bytes, str], set[tuple[str, bytes]]] = {}
        for each in self.load.handled:
            ids.setdefault((each.key, each.channel), set()).add(
                (each.nsqd.partition(":")[0], each.message_id)
            )
        for (key, channel), stored in ids.items():
            if len({message_id for _, message_id in stored}) > 1 and key in self.load.sent:
                self.found(f"STORED {len(stored)} times: {key!r} on {channel}: {sorted(stored)}")
                break

    def nothing_finished_comes_again(self) -> None:
        """What was finished comes again only if a fault can have kept the FIN from nsqd, or from its disk."""
        if self.plan.batch or self.faults.disk_failed:  # one message that fails has a whole batch come again
            return
        unclean = {id(call.by) for call in self.load.calls if call.what == "stop" and not call.clean}
        finished: dict[tuple[bytes, str, str], Handled] = {}
        delivered: dict[tuple[bytes, str, str], float] = {}
        for each in self.load.handled:
            what = (each.message_id, each.channel, each.nsqd.partition(":")[0])
            before = finished.get(what)
            late = 0.0 if before is None else 1 + self._stood(before.at - 5, before.ended + 5)
            if (
                before is not None
                and late < 1 + _SILENCE
                and id(before.by) not in unclean
                and each.attempts > before.attempts
                and before.ended < each.at
                and before.ended - delivered[what] + late < self.plan.nsqd_options["msg_timeout"]
                and not self._disturbed(before.at - late, before.ended + late)
                and not any(before.at <= at <= each.at for at in self.faults.lossy)
            ):
                self.found(
                    f"FINISHED at {before.ended:.3f} and delivered again: {each.key!r} on {each.channel}"
                )
                return
            if each.succeeded and (delivery := self._delivery(each)):
                finished[what], delivered[what] = each, delivery.at

    def channels_stay(self) -> None:
        """Channels that were made long before a kill are there after it, and deleted ones are not."""
        for (nsqd, topic, channel), (there, at) in self.load.guests.items():
            soon = at + self._late + self.plan.nsqd_options["sync_timeout"]
            if self.faults.disk_failed or any(at - self._late <= each <= soon for each in self.faults.lossy):
                continue
            if there != ((nsqd.name, topic, channel) in self.load.rosters):
                self.found(
                    f"ROSTER of {nsqd.name}: {topic}/{channel} is {'not ' * there}there since {at:.3f}"
                )
                break

    @property
    def _late(self) -> float:
        """Seconds within which nsqd has got what a client sends, unless a fault is at work."""
        stood = self.faults.stood + sum(hold.seconds for hold in self.plan.holds)
        return stood + 20 * self.plan.lag_longest * (self.plan.lag_share > 0) + 20 * self.plan.delay + 0.1

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

    def _quiet_since(self, since: float, until: float) -> float:
        """Return from when on, until the second time, there was no fault that clients could notice."""
        unseen = () if self.plan.found_by_lookup else ("lookupd", "unlisted")
        again = _FOUND_AGAIN if unseen else _LISTED_AGAIN
        return max(
            (
                span.ended + again
                for span in self.faults.spans
                if span.fault.kind not in (*_CALM, *unseen) and span.began <= until
            ),
            default=since,
        )

    def nothing_is_refused_without_a_fault(self) -> None:
        """While one nsqd after the other drains and restarts, the others take all publishes."""
        plan = self.plan
        rolling = {fault.kind for fault in plan.faults} == {"drain"} and plan.nsqds > 1
        rolling &= not (plan.holds or plan.lag_share)
        if not (plan.calm or rolling):
            return
        for message in self.load.sent.values():
            if message.call == "http" and rolling:
                continue
            if (
                message.state in ("refused", "perhaps")
                and message.error
                and not _OVERDUE.search(message.error)
            ):
                self.found(f"FAILED although nothing was broken: {message.call} {message.error}")
                break

    def nothing_is_answered_twice(self) -> None:
        for conversation in self.world.conversations:
            for message_id, answers, deliveries in conversation.answers():
                if answers > deliveries:
                    self.found(f"ANSWERED {answers} times, delivered {deliveries} times: {message_id!r}")
                    return

    def windows_stay_in_their_budget(self) -> None:
        """The sum of the RDYs that a consumer has sent is at most max_in_flight, or one for each nsqd."""
        nsqds = [nsqd.name for nsqd in self.load.nsqds]
        changes: dict[str, list[tuple[float, int, int]]] = {}
        for number, conversation in enumerate(self.world.conversations):
            if conversation.client in self.load.budgets:
                for at, count in conversation.windows():
                    changes.setdefault(conversation.client, []).append((at, number, count))
        for client, each in changes.items():
            budget, windows, asked = self.load.budgets[client], dict[int, int](), list[int]()
            since = math.inf
            for at, number, count in sorted(each, key=lambda change: change[0]):
                # An RDY cannot leave while its nsqd stands still and reads nothing.
                if at > since + _GRACE + self._stood(since, at, client, *nsqds):
                    self.found(f"RDY of {client} was {asked} from {since:.6f} on, max_in_flight is {budget}")
                    return
                windows[number] = count
                asked = [window for window in windows.values() if window]
                # An RDY may leave before the smaller one of another connection does.
                since = min(since, at) if sum(asked) > max(budget, len(asked)) else math.inf

    def windows_grow_into_free_room(self) -> None:
        """A consumer gives an nsqd a larger RDY only if no more than max_in_flight can be in flight then."""
        events: dict[str, list[tuple[float, int, int, Any]]] = {}
        timeout = self.plan.nsqd_options["msg_timeout"]
        for number, each in enumerate(self.world.conversations):
            if each.client in self.load.budgets and each.client not in self.load.adjusted:
                mine = events.setdefault(each.client, [])
                mine += [(at, 2, number, count) for at, count in each.windows()]
                for delivery in each.deliveries:
                    ended = min(delivery.ended, each.closed_at, delivery.at + timeout - 1)
                    known = delivery.at + 2 * self.plan.delay + 0.1
                    delayed = self._disturbed(delivery.at, known, _PROMPT)
                    if ended > known and not (delivery.touched or delayed):
                        mine += [(known, 1, number, 1), (ended - 0.05, 0, number, -1)]
        for client, each in events.items():
            budget = self.load.budgets[client]
            windows, in_flight = Counter[int](), Counter[int]()
            for at, kind, number, count in sorted(each, key=lambda event: event[:2]):
                if kind < 2:
                    in_flight[number] += count
                    continue
                # A window no larger than what is in flight admits nothing new.
                grows, windows[number] = count > max(windows[number], in_flight[number]), count
                used = in_flight.total() - in_flight[number] + count
                if grows and used > budget and not self._stood(at - 2, at + 1, client):
                    self.found(f"RDY {count} of {client} at {at:.6f}: {used} may be in flight, not {budget}")
                    return

    def calls_end_in_time(self) -> None:
        for call in self.load.calls:
            if call.result == "interrupted" or not call.ended:
                continue
            took, stood = call.ended - call.began, call.process.stood(call.began, call.ended)
            if took > call.timeout + _GRACE + 2 * stood:
                self.found(f"LATE: {call.what} took {took:.2f} s, its timeout is {call.timeout} s")
                break

    def publishes_end_soon(self) -> None:
        """With nothing broken and nothing that stands still, a publish ends within some round trips."""
        for message in self.load.sent.values():
            if message.ended and message.call != "http" and message.ended - message.began > 0.1:
                since = self._quiet_since(message.began, message.ended)
                took = message.ended - max(message.began, since)
                if took > self._trips(since, message.ended):
                    self.found(
                        f"SLOW: {message.call} of {message.key!r} from {message.began:.6f} to "
                        f"{message.ended:.6f}: {message.error or 'stored'}"
                    )
                    return

    def answers_leave_soon(self) -> None:
        """What a handler has done is answered at once, and before nsqd gives it to another consumer."""
        if self.plan.batch:
            return
        timeout = self.plan.nsqd_options["msg_timeout"]
        for handled in self.load.handled:
            delivery = self._delivery(handled)
            if delivery is None or not handled.succeeded or handled.key not in self.load.sent:
                continue  # a damaged message may have the id of another one
            left = min(delivery.ended, delivery.conversation.closed_at, delivery.at + timeout - 1)
            if left <= handled.ended:
                continue
            by = handled.ended + self._trips(handled.ended, handled.ended + 1)
            if left > by and not self._disturbed(delivery.at, by):
                self.found(
                    f"SLOW: {handled.key!r} was handled at {handled.ended:.6f}, FIN {delivery.ended:.6f}"
                )
                return

    def timeouts_end_deliveries(self) -> None:
        """What is not answered in time comes again, though its consumer stays connected."""
        timeout = self.plan.nsqd_options["msg_timeout"]
        for handled in self.load.handled:
            delivery = self._delivery(handled)
            if delivery is None or delivery.touched or handled.key not in self.load.sent:
                continue
            due, ended = delivery.at + timeout, min(delivery.ended, delivery.conversation.closed_at)
            if ended < due:
                continue
            by = due + 2.0 + 2 * self._stood(delivery.at, due + 2.0)
            if (
                ended > by
                and not self._disturbed(delivery.at, by, _FLOWING)
                and self.load.emptied.get(handled.channel, 0.0) < delivery.at
                and not any(delivery.at < at <= by for at in self._came[handled.message_id])
                and not self._backlogged(handled.channel, due, by)
            ):
                self.found(f"TIMEOUT of {handled.key!r}, delivered at {delivery.at:.6f}: it never came again")
                return

    @functools.cached_property
    def _came(self) -> dict[bytes, list[float]]:
        """When each message was delivered."""
        came: dict[bytes, list[float]] = {}
        for conversation in self.world.conversations:
            for each in conversation.deliveries:
                came.setdefault(each.message_id, []).append(each.at)
        return came

    def _backlogged(self, channel: str, since: float, until: float) -> bool:
        """Whether messages of a channel waited for long that were handled meanwhile."""
        handled = [
            each for each in self.load.handled if each.channel == channel and since <= each.at <= until
        ]
        sent = [(each.at, self.load.sent[each.key]) for each in handled if each.key in self.load.sent]
        return any(at - message.ended - message.defer > 1.0 for at, message in sent)

    @functools.cached_property
    def _deliveries(self) -> dict[tuple[str, str, bytes, int], list[Delivery]]:
        found: dict[tuple[str, str, bytes, int], list[Delivery]] = {}
        for conversation in self.world.conversations:
            for each in conversation.deliveries:
                what = (conversation.client, conversation.address, each.message_id, each.attempts)
                found.setdefault(what, []).append(each)
        return found

    def _delivery(self, handled: Handled) -> Delivery | None:
        """Return what brought a message that a handler got."""
        what = (handled.client, handled.nsqd.partition(":")[0], handled.message_id, handled.attempts)
        came = [each for each in self._deliveries.get(what, ()) if each.at <= handled.at]
        return came[-1] if came else None

    def stops_leave_nothing(self) -> None:
        """A stop with time left, of a consumer whose nsqds live, leaves no message unanswered."""
        timeout = self.plan.nsqd_options["msg_timeout"]
        for call in self.load.calls:
            if call.what != "stop" or not call.ended or call.result == "interrupted":
                continue
            took, name = call.ended - call.began, call.process.name
            stood = self._stood(call.began - _FOUND_AGAIN, call.ended)
            if (
                took > call.timeout - 0.5 - stood
                or stood > _SILENCE
                or self._disturbed(call.began - _FOUND_AGAIN, call.ended, _UNBROKEN)
            ):
                continue
            if not call.result:
                self.found(f"STOP of {name} at {call.began:.6f} took {took:.3f} s: {call.result}")
                return
            for conversation in self.world.conversations:
                if conversation.client == name and call.began < conversation.closed_at <= call.ended + 1:
                    left = [
                        each
                        for each in conversation.deliveries
                        if each.ended == math.inf and each.at + timeout > call.ended
                    ]
                    if left:
                        self.found(f"STOP of {name} at {call.began:.6f} left {left[0].message_id!r}")
                        return

    def ends_take_no_time(self) -> None:
        """With nothing broken and quick handlers, a stop or a close ends within some round trips."""
        for call in self.load.calls:
            if call.what == "close" or (call.what == "stop" and not (self.plan.slow or self.plan.hung)):
                took, limit = call.ended - call.began, self._trips(call.began, call.ended) + 0.5
                limit += max(0.0, self._interrupted_until(call.by) - call.began)
                if took > limit and not self._disturbed(call.began - _FOUND_AGAIN, call.ended, _CALM):
                    self.found(
                        f"SLOW: {call.what} of {call.process.name} at {call.began:.6f} took {took:.3f} s"
                    )
                    return

    def removed_nsqds_are_left(self) -> None:
        """A consumer says goodbye to an nsqd that its user removes, even if it was just connecting."""
        for client, address, at in self.load.removed:
            for each in self.world.conversations:
                said = b"".join(piece for when, piece in each.said if when < at - 0.5)
                if (each.client, f"{each.address}:4150") != (client, address) or each.closed_at <= at:
                    continue
                if b"SUB " in said and b"CLS\n" not in said and not self._stood(at - 1, at):
                    self.found(f"KEPT: {client} is connected to {address}, removed before {at:.6f}")
                    return

    def counters_agree(self) -> None:
        """What clients count is what happened, as far as they can know it."""
        handled = Counter(id(each.by) for each in self.load.handled if each.succeeded)
        stored, perhaps = Counter[int](), Counter[int]()
        for message in self.load.sent.values():
            if message.call != "http":
                stored[id(message.by)] += message.state == "stored"
                perhaps[id(message.by)] += message.state == "perhaps"
        for process, made, stats, at in self.load.counted:
            if hasattr(stats, "finished"):
                left = stats.in_flight or stats.waiting
                wrong = stats.finished > handled[id(made)]
                wrong |= self.plan.calm and stats.finished + stats.timed_out < handled[id(made)]
            else:
                by = self._interrupted_until(made)  # once the producer's thread does not stand still
                left = stats.pending and at > by + _GRACE + process.stood(max(by, at - _FOUND_AGAIN), at)
                certain = stored[id(made)]
                wrong = not certain <= stats.published <= certain + perhaps[id(made)]
            if left or wrong:
                self.found(
                    f"COUNTERS of {process.name}: {stats}, but {handled[id(made)]} were handled, "
                    f"{stored[id(made)]} stored, {perhaps[id(made)]} perhaps"
                )
                return

    def _interrupted_until(self, producer: Any) -> float:
        """Return when the last publish ends whose caller was interrupted: it may wait until its timeout."""
        return max(
            (
                each.began + each.timeout
                for each in self.load.sent.values()
                if each.by is producer and each.error == "perhaps"
            ),
            default=0.0,
        )

    def nothing_crashes(self) -> None:
        for process in self.world.processes:
            for crash in process.crashed:
                self.found(f"CRASHED: {crash}")
        for daemon in self.world.daemons:
            for bug in daemon.bugs():
                self.found(f"LOGGED by {daemon.name}: {bug}")
        for line in self.world.logged:
            if "bug of ours" in line or ("Traceback" in line and "a handler that fails" not in line):
                self.found(f"LOGGED by a client: {line}")
                break

    def daemons_start_and_stop(self) -> None:
        for text in (*self.faults.not_started, *self.faults.unclean):
            self.found(f"DAEMON {text}")

    def nothing_is_left(self) -> None:
        # The garbage collector, which is off, closes the socket of an HTTP request that was interrupted.
        freed = self.faults.happened.keys() & {"interrupt", "storm"}
        for process in self.world.processes:
            if not process.alive or process is self.world.here:
                continue
            left = [thread for thread in process.threads if thread.alive]
            if left := [thread for thread in left if not thread.name.startswith("nsq-resolve")]:
                self.found(f"LEFT running: {left}")
            opened = list(process.descriptors.values())
            if opened := [each for each in opened if not (freed and _is_http(each))]:
                self.found(f"LEFT open in {process.name}: {opened[:5]}")


def _is_http(descriptor: Any) -> bool:
    return hasattr(descriptor, "_end") and descriptor._end.peer_name[1] == Nsqd.http_port
