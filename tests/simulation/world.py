"""The daemons and clients of one run, on hosts of their own, and what can happen to them.

``install`` must come before any import of the package; ``World`` begins a run. A run happens once for each
operating system process: modules keep state.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import asyncio.selector_events
import functools
import gc
import importlib
import itertools
import logging
import math
import random
import re
import selectors
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tests.simulation import code, disk, network, threads
from tests.simulation.disk import Disk, disks
from tests.simulation.network import End, Host
from tests.simulation.scheduler import Process, Thread, begin, scheduler

#: The modules that take part, also those that the package imports late. Runs are forked after the import.
_MODULES = (
    "consumer.consumer", "daemons.nsqd.daemon", "daemons.nsqlookupd.daemon", "http.nsqd",
    "partitioned.consuming", "partitioned.routing", "producer.producer",
)  # fmt: skip


def install() -> None:
    """Import the package for the simulation."""
    stand_ins = {**threads.modules(), **network.modules(), **disk.modules()}
    code.install(stand_ins)
    for module in (asyncio.base_events, asyncio.selector_events):  # event loops are asyncio's own
        vars(module).update(socket=stand_ins["socket"], time=stand_ins["time"])
    for name in _MODULES:
        importlib.import_module(f"nsq.{name}")


class World:
    """One run. ``chance`` is for the scenario; the package and the scheduler have their own."""

    def __init__(self, seed: int | str) -> None:
        gc.disable()  # when it runs depends on what ran before
        begin(seed)
        network.begin()
        disk.begin()
        threads.chance.seed(f"package {seed}")
        self.chance = random.Random(f"world {seed}")
        self.daemons: list[Daemon] = []
        self.clients: list[Process] = []
        self.problems: list[str] = []  # what went wrong during the run
        self.processes: list[Process] = []
        self.here = self.process("scenario")
        logger = logging.getLogger("nsq")
        logger.handlers = [_Log(self)]
        logger.propagate = False
        logger.setLevel(logging.WARNING)

    def process(self, name: str, host: Host | None = None) -> Process:
        process = Process(name, 100 + len(self.processes), host or network.network.host(name))
        self.processes.append(process)
        return process

    def client(self, name: str) -> Process:
        self.clients.append(self.process(f"{name}{len(self.clients)}"))
        return self.clients[-1]

    def kill_process(self, process: Process) -> None:
        """End a process at once, as kill -9 does."""
        scheduler.story(f"{process.name} is killed")

        def close() -> None:
            for item in list(process.descriptors.values()):
                item.close()

        scheduler.at(scheduler.now, close)  # soon: it may be this process, then ``kill`` does not return
        scheduler.kill(process)

    @functools.cached_property
    def conversations(self) -> list[Conversation]:
        """Return what clients and nsqds have said to each other."""
        ends = network.network.connections
        return [Conversation(end) for end in ends if end.peer_name[1] == Nsqd.tcp_port]

    def run(self, scenario: Callable[[], object]) -> None:
        """Run the scenario on a thread, and all that it starts, until it returns."""
        if scheduler.pace < math.inf:
            code.begin_preempting()
        scheduler.scenario = scheduler.start(scenario, "scenario", self.here)
        scheduler.run()
        if scheduler.hangs:
            self.problems.append("HANG: threads run without waiting")
        for process in self.processes:
            self.problems += [f"CRASHED: {crash}" for crash in process.crashed]

    def until(self, condition: Callable[[], object], seconds: float, every: float = 0.02) -> bool:
        """Wait until a condition holds; return whether it did in time. For the scenario's threads."""
        deadline = scheduler.now + seconds
        while not condition():
            if scheduler.now >= deadline:
                return False
            threads.sleep(every)
        return True


class Conversation:
    """What a client and an nsqd sent over one connection, each piece with its time."""

    def __init__(self, end: End) -> None:
        self.client, (host, port) = end.host.name, end.peer_name
        self.address, self.closed_at = f"{host}:{port}", end.closed_at
        self.said, self.answered = end.said, end.peer.said if end.peer else []

    @functools.cached_property
    def commands(self) -> list[tuple[float, bytes, bytes]]:
        """What the client said of messages: when, the verb, and a message's id or the count of a RDY."""
        said, times = _joined(self.said)
        return [(times[match.end()], match[1], match[2] or b"0") for match in _COMMAND.finditer(said)]

    @functools.cached_property
    def deliveries(self) -> list[Delivery]:
        """The messages that nsqd has sent, with the client's answers."""
        (sent, times), place = _joined(self.answered), 0
        by_id: dict[bytes, list[Delivery]] = {}
        while place + _FRAME.size <= len(sent):
            size, kind, _, attempts, message_id = _FRAME.unpack_from(sent, place)
            place += 4 + size
            if kind == 2 and place <= len(sent):
                delivery = Delivery(self, times[place - 1], message_id, attempts)
                by_id.setdefault(message_id, []).append(delivery)
        for at, verb, what in self.commands:
            for each in by_id.get(what, ()):  # nsqd has one in flight with an id, whatever it sent before
                if each.at <= at < each.ended:
                    each.touched |= verb == b"TOUCH"
                    each.ended = each.ended if verb == b"TOUCH" else at
        return [each for deliveries in by_id.values() for each in deliveries]


@dataclass
class Delivery:
    """A message that nsqd has sent; ``ended`` is when the client answered it."""

    conversation: Conversation
    at: float
    message_id: bytes
    attempts: int
    touched: bool = False
    ended: float = math.inf

    @property
    def left(self) -> float:
        """When nsqd no longer waited for an answer, its own timeout apart."""
        return min(self.ended, self.conversation.closed_at)


def _joined(pieces: list[tuple[float, bytes]]) -> tuple[bytes, list[float]]:
    """Return what one side has sent, and when each of its bytes."""
    times = [itertools.repeat(at, len(piece)) for at, piece in pieces]
    return b"".join(piece for _, piece in pieces), list(itertools.chain.from_iterable(times))


#: The beginning of a frame: size, kind; of a message: timestamp, attempts, id.
_FRAME = struct.Struct(">iiqH16s")
_COMMAND = re.compile(rb"(?:^|\n)(FIN|REQ|TOUCH|RDY|CLS)(?: ([^\n]{16}|[0-9]+))?(?=[ \n])")


class _Log(logging.Handler):
    """Gets what clients log."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)  # with the traceback, if there is one
        scheduler.story(f"log {record.name}: {text}")
        if "bug of ours" in text or ("Traceback" in text and "a handler that fails" not in text):
            self._world.problems.append(f"LOGGED by a client: {text}")


_BUGS = ("a bug", "panic in", "Traceback", "cannot start")  # what a daemon must never log


class Daemon:
    """A daemon on a host of its own, which can be stopped, killed, and cut off from its power."""

    kind, tcp_port, http_port = "", 0, 0
    _loop: asyncio.AbstractEventLoop
    _stop: asyncio.Event
    _server: Any

    def __init__(self, world: World, name: str, **options: Any) -> None:
        self.world, self.name, self.options = world, name, options
        world.daemons.append(self)
        self.host = network.network.host(name)
        self.process = Process(name, 0, self.host)  # the last one: each start begins another
        self.lines: list[str] = []  # what it has logged
        self.failure: str | None = None  # why it did not start, or ended
        self.running = self.stopping = self._drain = False
        self.stopped_cleanly: bool | None = None
        self._thread: Thread | None = None

    tcp_address = property(lambda self: f"{self.host.address}:{self.tcp_port}")
    http_address = property(lambda self: f"{self.host.address}:{self.http_port}")

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.alive

    def start(self) -> bool:
        """Start it and wait until it listens; return whether it does."""
        self.stopping, self.failure, self.stopped_cleanly = False, None, None
        self.process = self.world.process(self.name, self.host)
        network.network.power_on(self.host)
        scheduler.story(f"{self.name} starts")
        self._thread = scheduler.start(self._run, "main", self.process)
        self.world.until(lambda: self.running or self.failure or not self.alive, 60.0)
        return self.running

    def _run(self) -> None:
        loop = self._loop = asyncio.selector_events.BaseSelectorEventLoop(_Selector())
        loop.set_exception_handler(
            lambda _, context: self._log(f"a bug: {context.get('message')}: {context.get('exception')!r}")
        )
        scheduler.me().loop = loop
        try:
            loop.run_until_complete(self._serve())
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            scheduler.story(f"{self.name} does not run: {self.failure}")
        finally:
            self.running = False
            loop.close()

    async def _serve(self) -> None:
        self._stop, self._drain = asyncio.Event(), False
        self._server = self._make()
        await self._server.start()
        self.running = True
        await self._stop.wait()
        if self._drain:
            await self._server.drain()
        self.stopped_cleanly = await self._server.stop()

    def _make(self) -> Any:
        package = f"nsq.daemons.{self.kind.lower()}"
        daemon = getattr(sys.modules[f"{package}.daemon"], self.kind)
        addresses = {"tcp_address": self.tcp_address, "http_address": self.http_address}
        options = getattr(sys.modules[f"{package}.options"], f"{self.kind}Options")(
            **addresses, broadcast_address=self.host.address, **self.options
        )
        stream = SimpleNamespace(write=self._log, flush=lambda: None)
        return daemon(options, log=sys.modules["nsq.daemons.serve.logs"].DaemonLog("", "info", stream))

    def stop(self, *, drain: bool = False) -> bool:
        """Stop it, after a drain if that is asked for; return whether it has ended in time."""
        thread = self._thread
        if not self.running or thread is None:
            return not self.alive
        scheduler.story(f"{self.name} {'drains and ' if drain else ''}stops")
        self.stopping, self._drain = True, drain
        self._loop.call_soon_threadsafe(self._stop.set)
        return self.world.until(lambda: not thread.alive, 600.0)  # it may stand still all the time

    def kill(self) -> None:
        """End the process at once; what it wrote is in the kernel's hands."""
        self.running = False
        if self.process.alive:
            self.world.kill_process(self.process)

    def _log(self, text: str) -> None:
        self.lines.append(text)
        scheduler.story(f"{self.name} logs: {text.rstrip()}")
        # aiohttp sets the result of a future that its shutdown has cancelled.
        if any(bug in text for bug in _BUGS) and "_waiter" not in text:
            self.world.problems.append(f"LOGGED by {self.name}: {text}")


class _Selector(selectors.PollSelector):
    _selector_cls = network.Poll


class Nsqd(Daemon):
    kind, tcp_port, http_port = "Nsqd", 4150, 4151

    def __init__(self, world: World, name: str, **options: Any) -> None:
        self.disk = disks[name] = Disk(name)
        super().__init__(world, name, data_path=f"{disk.ROOT}/{name}", node_id=len(disks), **options)

    def cut_power(self, *, holes: bool = False) -> None:
        """The disk keeps what was fsynced, and some of the rest; with ``holes``, every other sector of it."""
        self.running = False
        scheduler.story(f"{self.name} loses its power")
        network.network.power_off(self.host)
        self.disk.cut_power(None if holes else self.world.chance)
        if self.process.alive:
            self.process.descriptors.clear()
            scheduler.kill(self.process)

    def channels(self) -> dict[str, list[str]]:
        """Return the names of its channels, by topic."""
        topics = self._server._broker.topics if self.running else {}
        return {name: sorted(topic.channels) for name, topic in topics.items()}

    def left(self) -> dict[str, tuple[int, int, int]] | None:
        """Return its waiting, in-flight and deferred messages by queue; None without an answer."""
        answer: list[dict[str, tuple[int, int, int]]] = []

        def count() -> None:
            found = {}
            for topic in self._server._broker.topics.values():
                found[topic.name] = (topic.depth, 0, 0)
                for each in topic.channels.values():
                    counts = (each.depth, each.in_flight_count, each.deferred_count)
                    found[f"{topic.name}/{each.name}"] = counts
            busy = {name: counts for name, counts in found.items() if any(counts)}
            answer.append({name: busy[name] for name in busy if not name.startswith("guest")})

        if self.running:
            self._loop.call_soon_threadsafe(count)
            self.world.until(lambda: answer, 5.0)
        return answer[0] if answer else None


class Nsqlookupd(Daemon):
    kind, tcp_port, http_port = "Nsqlookupd", 4160, 4161
