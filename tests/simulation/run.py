"""Runs plans: one in this process, many in forked children, and the shortest version of one that fails."""

from __future__ import annotations

import math
import os
import pickle
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation import code
from tests.simulation.auditor import judge
from tests.simulation.faults import Faults
from tests.simulation.load import Load
from tests.simulation.network import network
from tests.simulation.plan import Hold, Plan
from tests.simulation.scheduler import BEGIN, scheduler
from tests.simulation.threads import sleep
from tests.simulation.world import Nsqd, Nsqlookupd, World

_DRAIN = 150.0  # virtual seconds in which everything must be delivered once nothing fails any more
_CPU_LIMIT = 120  # CPU seconds after which a child is taken for hanging


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
    began, world, outcome = time.process_time(), World(plan.seed), Outcome(plan)
    scheduler.tell = story
    scheduler.pace, scheduler.lag_share, scheduler.lag_longest = plan.pace, plan.lag_share, plan.lag_longest
    network.delay, network.window = plan.delay, plan.window
    for (module, name), value in plan.knobs.items():
        code.knob(module, name, value)
    fired: list[Hold] = []
    lookupds = [Nsqlookupd(world, f"lookupd{number}") for number in range(plan.lookupds)]
    listed_at = tuple(lookupd.tcp_address for lookupd in lookupds)
    options = {**plan.nsqd_options, "lookupd_tcp_addresses": listed_at}
    nsqds = [Nsqd(world, f"nsqd{number}", **options) for number in range(plan.nsqds)]
    load = Load(world, plan, nsqds, lookupds)
    faults = Faults(load)
    world.run(lambda: _scenario(load, faults, fired))
    outcome.plan = replace(plan, rare=0.0, holds=[*plan.holds, *fired])
    outcome.violations = judge(outcome.plan, load, faults)
    outcome.confirmed = sum(message.state == "stored" for message in load.sent.values())
    outcome.handled = len(load.handled)
    outcome.faults = Counter(span.fault.kind for span in faults.spans)
    outcome.trace = scheduler.trace.hexdigest()
    outcome.virtual = scheduler.now - BEGIN
    outcome.cpu = time.process_time() - began
    return outcome


def _hold(plan: Plan, fired: list[Hold]) -> None:
    """From now on have threads stand still where the plan says. ``fired`` gets what it has not named."""
    named = {(hold.module, hold.site, hold.nth): hold.seconds for hold in plan.holds}
    last, seen = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    chance = random.Random(f"holds {plan.seed}")
    rare = min(0.2, 10 * plan.rare) if plan.narrow else plan.rare

    def held(module: str, site: int) -> float:
        place = (module, site)
        seen[place] += 1
        nth = seen[place]
        if nth >= last[place]:
            code.mark(module, site, on=False)
        seconds = named.get((module, site, nth), 0.0)
        if chance.random() < rare:
            fired.append(Hold(module, site, nth, 1e-4 * 2e4 ** chance.random()))
            seconds += fired[-1].seconds
        return seconds

    scheduler.held = held
    for module, site, nth in named:
        last[module, site] = max(last[module, site], nth)
    sites = code.sites()
    modules = (
        [each for each in sites if each.removeprefix("nsq.").startswith(plan.parts)] if plan.rare else []
    )
    for module in [chance.choice(modules)] if plan.narrow and modules else modules:
        last.update({(module, site): plan.first for site in range(len(sites[module]))})
    for module, site in last:
        code.mark(module, site)


def _scenario(load: Load, faults: Faults, fired: list[Hold]) -> None:
    world, plan, problems = load.world, load.plan, load.world.problems
    for daemon in world.daemons:
        if not daemon.start():
            problems.append(f"DAEMON {daemon.name} does not start: {daemon.failure}")
            return
    load.begin()
    sleep(0.5)
    _hold(plan, fired)
    began = scheduler.now
    for fault in plan.faults:
        _sleep_until(began + fault.at)
        faults.do(fault)
    _sleep_until(began + plan.seconds)
    scheduler.story("the load ends, and everything is mended")
    load.over = True
    faults.mend(600.0)  # an nsqd that stands still again and again takes minutes to stop
    load.finish()
    load.begin_late()
    if plan.backlog:
        load.begin_consumers()
    if plan.full_at_the_end:
        faults.fill()
        if not _in_time(load, lambda: not load.undelivered()):
            held = [message.key for message, _ in load.undelivered()]
            problems.append(f"HELD while the disk is full: {held}")
        faults.mend(1.0)
    if not _in_time(load, lambda: all(nsqd.left() == {} for nsqd in load.nsqds)):
        left = {nsqd: nsqd.left() for nsqd in load.nsqds}
        rest = {nsqd.name: nsqd.failure if found is None else found for nsqd, found in left.items()}
        problems.append(f"STUCK: after {_DRAIN:.0f} s without faults there are still {rest}")
    if not _in_time(load, lambda: not load.unlisted()):
        problems.append(f"LOOKUP {load.unlisted()}")
    load.close()
    for daemon in (*load.nsqds, *load.lookupds):
        if not daemon.stop():
            problems.append(f"DAEMON {daemon.name} did not stop at the end")
        elif isinstance(daemon, Nsqd) and not daemon.stopped_cleanly:
            problems.append(f"DAEMON {daemon.name} did not stop cleanly at the end")
    # Threads that stand still go on and end.
    stands = [end for process in world.processes for _, end in process.stands if end < math.inf]
    _sleep_until(max([scheduler.now, *stands]) + 1.0)


def _in_time(load: Load, condition: Callable[[], object]) -> bool:
    """Wait until a condition holds; return whether it does. While threads stand still, nothing is late."""
    began = scheduler.now
    while not condition():
        stood = sum(process.stood(began, scheduler.now) for process in load.world.processes)
        if scheduler.now > began + min(_DRAIN + load.plan.longest_defer + stood, 10 * _DRAIN):
            return False
        sleep(0.1)
    return True


def _sleep_until(when: float) -> None:
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
        if "coverage" in sys.modules and (running := sys.modules["coverage"].Coverage.current()):
            running.stop()
            running.save()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data) if data else ["TOOL: the run ended without a result"]


def _say_where(_number: int, frame: object) -> None:
    raise TimeoutError(f"the run took more than {_CPU_LIMIT} s of CPU time")


def shrink(outcome: Outcome, tell: Callable[[str], None]) -> Outcome:
    """Take faults and holds away, ever fewer at a time, as long as the run fails in the same way."""
    for name in ("holds", "faults"):
        size = len(getattr(outcome.plan, name))
        while size:
            start = 0
            while start < len(items := getattr(outcome.plan, name)):
                tried = in_child(replace(outcome.plan, **{name: items[:start] + items[start + size :]}))
                if tried.kind == outcome.kind:
                    outcome, plan = tried, tried.plan
                    tell(f"still fails with {len(plan.faults)} faults and {len(plan.holds)} holds")
                else:
                    start += size
            size //= 2
    return outcome
