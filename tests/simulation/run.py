"""Runs plans: one in this process, many in forked children, and the shortest version of one that fails."""

from __future__ import annotations

import importlib
import math
import os
import pickle
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation import code
from tests.simulation.auditor import Auditor
from tests.simulation.faults import Faults
from tests.simulation.load import Load
from tests.simulation.network import network
from tests.simulation.plan import Hold, Plan, draw
from tests.simulation.scheduler import Hang, scheduler
from tests.simulation.world import Nsqd, ScenarioFailed, World

#: Virtual seconds in which everything must be delivered once nothing fails any more.
_DRAIN = 150.0
#: CPU seconds after which a child is taken for hanging.
_CPU_LIMIT = 120


@dataclass
class Outcome:
    plan: Plan
    violations: list[str] = field(default_factory=list)
    trace: str = ""
    confirmed: int = 0
    handled: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    virtual: float = 0.0
    cpu: float = 0.0

    @property
    def kind(self) -> str:
        """What failed, in a word: while a plan is shrunk, it must go on failing in the same way."""
        return self.violations[0].split()[0] if self.violations else ""


def perform(plan: Plan, story: Callable[[str], None] | None = None) -> Outcome:
    """Run a plan in this process, which must not have run another one."""
    world = World(plan.seed)
    outcome = Outcome(plan)
    if story is not None:
        tell = story
        scheduler.telling = True
        scheduler.story = lambda line: tell(f"{scheduler.now - 1000:11.6f}  {line}")
    scheduler.pace, scheduler.lag_share, scheduler.lag_longest = plan.pace, plan.lag_share, plan.lag_longest
    network.delay, network.window, network.in_pieces = plan.delay, plan.window, plan.in_pieces
    for (module, name), value in plan.knobs.items():
        code.knob(module, name, value)
    fired: list[Hold] = []
    begin_holding = _hold(plan, fired)
    _record_drops(world.dropped)
    began = time.process_time()
    parts: list[tuple[Load, Faults]] = []
    try:
        world.run(lambda: _scenario(world, plan, parts, outcome, begin_holding))
    except (Hang, ScenarioFailed) as error:
        outcome.violations.append(f"{type(error).__name__.upper()}: {error}")
    if parts:
        load, faults = parts[0]
        plan = outcome.plan = replace(plan, rare=0.0, holds=[*plan.holds, *fired])
        outcome.violations += Auditor(world, plan, load, faults).judge()
        outcome.confirmed = sum(message.state == "stored" for message in load.sent.values())
        outcome.handled = len(load.handled)
        outcome.faults = Counter(faults.happened)
    outcome.trace = scheduler.trace
    outcome.virtual = scheduler.now - 1000
    outcome.cpu = time.process_time() - began
    return outcome


def _record_drops(dropped: set[tuple[str, bytes]]) -> None:
    """Note which messages nsqds drop (--max-channel-depth), with the topic or TOPIC/CHANNEL."""
    bound = importlib.import_module("nsq.daemons.nsqd.core.bound").Bound
    drop = bound._dropped

    def noted(self: Any, name: str, messages: list[Any]) -> None:
        dropped.update((name.split()[-1], Load.key(message.body)) for message in messages)
        drop(self, name, messages)

    bound._dropped = noted


def _hold(plan: Plan, fired: list[Hold]) -> Callable[[], None]:
    """Return what has threads stand still from now on where the plan says. ``fired`` gets what was not named
    beforehand.
    """
    named = {(hold.module, hold.site, hold.nth): hold.seconds for hold in plan.holds}
    last: Counter[tuple[str, int]] = Counter()
    seen: Counter[tuple[str, int]] = Counter()
    chance = random.Random(f"holds {plan.seed}")
    for module, site, nth in named:
        last[module, site] = max(last[module, site], nth)

    def held(module: str, site: int) -> float:
        place = (module, site)
        seen[place] += 1
        nth = seen[place]
        if nth >= last[place]:
            code.mark(module, site, on=False)
        seconds = named.get((module, site, nth), 0.0)
        if plan.rare and chance.random() < plan.rare:
            fired.append(Hold(module, site, nth, 1e-4 * 2e4 ** chance.random()))
            seconds += fired[-1].seconds
        return seconds

    def begin() -> None:
        if plan.rare:
            for module in sorted(code.sites):
                if module.removeprefix("nsq.").startswith(plan.parts):
                    last.update({(module, site): plan.first for site in range(len(code.sites[module]))})
        for module, site in last:
            code.mark(module, site)

    scheduler.held = held
    return begin


def _scenario(
    world: World,
    plan: Plan,
    parts: list[tuple[Load, Faults]],
    outcome: Outcome,
    begin_holding: Callable[[], None],
) -> None:
    lookupds = [world.nsqlookupd(f"lookupd{number}") for number in range(plan.lookupds)]
    for lookupd in lookupds:
        assert lookupd.start(), lookupd.failure
    addresses = tuple(lookupd.tcp_address for lookupd in lookupds)
    nsqds = [
        world.nsqd(f"nsqd{number}", lookupd_tcp_addresses=addresses, **plan.nsqd_options)
        for number in range(plan.nsqds)
    ]
    for nsqd in nsqds:
        if not nsqd.start():
            outcome.violations.append(f"DAEMON {nsqd.name} does not start: {nsqd.failure}")
            return
    load = Load(world, plan, nsqds, lookupds)
    faults = Faults(world, nsqds, lookupds, load)
    parts.append((load, faults))
    load.begin()
    _sleep_until(scheduler.now + 0.5)
    begin_holding()
    began = scheduler.now
    for fault in plan.faults:
        _sleep_until(began + fault.at)
        faults.do(fault)
    _sleep_until(began + plan.seconds)
    scheduler.story("the load ends, and everything is mended")
    load.over = True
    faults.mend(60.0)
    load.finish()
    load.begin_late()
    if plan.backlog:
        load.begin_consumers()

    def in_time(condition: Callable[[], object]) -> bool:
        """Wait until a condition holds. What stands still has so much more time."""
        began = scheduler.now

        def overdue() -> bool:
            daemons = [each for each in world.processes if each not in world.clients]
            stood = sum(each.stood(began, scheduler.now) for each in daemons)
            return scheduler.now > began + _DRAIN + plan.longest_defer + stood

        world.until(lambda: condition() or overdue(), 10 * _DRAIN, every=0.1)
        return bool(condition())

    if plan.full_at_the_end:
        faults.fill()
        if not in_time(lambda: not load.undelivered()):
            outcome.violations.append(f"HELD while the disk is full: {load.undelivered()}")
        faults.mend(1.0)

    def left(nsqd: Nsqd) -> object:
        found = nsqd.left()
        return found and {name: counts for name, counts in found.items() if not name.startswith("guest")}

    def drained() -> bool:
        return all(left(nsqd) == {} for nsqd in nsqds)

    if not in_time(drained):
        rest = {nsqd.name: nsqd.failure if (found := left(nsqd)) is None else found for nsqd in nsqds}
        outcome.violations.append(f"STUCK: after {_DRAIN:.0f} s without faults there are still {rest}")
    if not world.until(lambda: not load.unlisted(), 20.0, every=0.1):
        outcome.violations.append(f"LOOKUP {load.unlisted()}")
    load.close()
    for nsqd in nsqds:
        if not nsqd.stop():
            outcome.violations.append(f"DAEMON {nsqd.name} did not stop at the end")
        elif not nsqd.stopped_cleanly:
            outcome.violations.append(f"DAEMON {nsqd.name} did not stop cleanly at the end")
    for lookupd in lookupds:
        if not lookupd.stop():
            outcome.violations.append(f"DAEMON {lookupd.name} did not stop at the end")
    # Threads that stand still go on and end.
    stands = [end for process in world.processes for _, end in process.stands if end < math.inf]
    _sleep_until(max([scheduler.now, *stands]) + 1.0)


def _sleep_until(when: float) -> None:
    from tests.simulation.threads import sleep

    if when > scheduler.now:
        sleep(when - scheduler.now)


# Many runs.


def in_child(plan: Plan, story: bool = False) -> Outcome:
    """Run a plan in a forked child, so that the next run finds the package as this one did."""
    tell = (lambda line: print(line, flush=True)) if story else None
    result = child_of(lambda: perform(plan, tell))
    return result if isinstance(result, Outcome) else Outcome(plan, result)


def child_of(work: Callable[[], Any]) -> Any:
    """Return the result of some work in a forked child, or what ended it as a list of violations."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            signal.signal(signal.SIGPROF, _say_where)
            signal.setitimer(signal.ITIMER_PROF, _CPU_LIMIT)
            result = work()
        except BaseException:
            result = [f"TOOL: {traceback.format_exc()}"]
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(result, pipe)
        if (coverage := getattr(sys.modules.get("coverage"), "Coverage", None)) and coverage.current():
            coverage.current().stop()
            coverage.current().save()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data) if data else ["TOOL: the run ended without a result"]


def _say_where(_number: int, frame: object) -> None:
    raise TimeoutError(f"the run took more than {_CPU_LIMIT} s of CPU time")


def plan_of(seed: int) -> Plan:
    return draw(seed)


def shrink(outcome: Outcome, tell: Callable[[str], None] = lambda _line: None) -> Outcome:
    """Take faults and holds away as long as the run fails in the same way."""
    best = outcome
    for name in ("holds", "faults"):
        size = max(1, len(getattr(best.plan, name)) // 2)
        while getattr(best.plan, name):
            smaller = None
            for fewer in _without(getattr(best.plan, name), size):
                tried = in_child(replace(best.plan, **{name: fewer}))
                if tried.kind == outcome.kind:
                    smaller = tried
                    break
            if smaller is not None:
                best = smaller
                tell(f"still fails with {len(best.plan.faults)} faults and {len(best.plan.holds)} holds")
            elif size == 1:
                break
            else:
                size //= 2
            size = min(size, max(1, len(getattr(best.plan, name))))
    return best


def _without(items: list[object], size: int) -> Iterator[list[object]]:
    for start in range(0, len(items), size):
        yield items[:start] + items[start + size :]


__all__ = ["Outcome", "child_of", "in_child", "perform", "plan_of", "shrink"]
