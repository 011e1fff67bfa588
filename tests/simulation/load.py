"""The load of one run: programs that publish and consume, through the package, and note all that they see."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.simulation import threads
from tests.simulation.plan import Plan
from tests.simulation.scheduler import Process, Thread, scheduler
from tests.simulation.world import Nsqd, World

TIMEOUTS = (0.0, 0.02, 0.3, 2.0, 5.0, 15.0)  # seconds that closes and stops get
_MOST = 800  # messages of a run: more cost time and find little


class Interrupted(BaseException):
    """What a signal handler raises in the middle of a user's call."""


@dataclass(eq=False)
class Sent:
    """A message that was published."""

    key: bytes
    topic: str
    call: str
    began: float
    defer: float
    by: Any  # the producer
    timeout: float
    state: str = "pending"  # then stored, refused (surely not stored) or perhaps
    ended: float = 0.0
    error: str = ""


@dataclass(eq=False)
class Handled:
    """A message that a handler got."""

    key: bytes
    channel: str
    at: float
    nsqd: str
    message_id: bytes
    attempts: int
    by: Process  # it has one consumer
    succeeded: bool = False
    requeued_for: float = -1.0
    ended: float = 0.0


@dataclass(eq=False)
class Call:
    """A call that must end in time."""

    what: str
    began: float
    timeout: float
    process: Process
    by: Any = None
    ended: float = 0.0  # so it stays if the call is interrupted
    result: Any = None


@dataclass(eq=False)
class Client:
    """A program with a producer or a consumer."""

    process: Process
    made: Any = None
    stopping: bool = False

    @property
    def working(self) -> bool:
        return self.process.alive and self.made is not None and not self.stopping


class Load:
    """Publishes and consumes as the plan says."""

    def __init__(self, world: World, plan: Plan, nsqds: list[Nsqd], lookupds: list[Any]) -> None:
        import nsq
        from nsq.http.nsqd import NsqdApi

        self.nsq, self._api = nsq, NsqdApi
        self.world, self.plan, self.nsqds, self.lookupds = world, plan, nsqds, lookupds
        self.chance = random.Random(f"load {plan.seed}")
        self.numbers = itertools.count()  # of messages, and of topics that come and go
        self.over = False  # whether publishing ends, and no handler fails any more
        self.producers: list[Client] = []
        self.consumers: list[Client] = []
        self.interrupts = 0  # how many of the next calls are interrupted
        self._late = plan.late  # whether the late topic has no channel yet
        self._users: list[Thread] = []  # threads of users that publish, and of those that live briefly
        self._hung: list[Process] = []  # consumers of which a handler hangs
        # For the auditor.
        self.sent: dict[bytes, Sent] = {}
        self.handled: list[Handled] = []
        self.calls: list[Call] = []
        self.counted: list[tuple[Process, Any, Any, float]] = []  # the last statistics of clients, with times
        self.emptied: dict[str, float] = {}  # when each channel was emptied for the last time
        #: Channels that were made or deleted: whether they are there, and since when.
        self.guests: dict[tuple[Nsqd, str, str], tuple[bool, float]] = {}
        self.rosters: dict[Nsqd, dict[str, list[str]]] = {}  # the channels at the end
        self.budgets: dict[str, int] = {}  # max_in_flight by the name of the consumer's process
        #: Consumers that had an nsqd removed, its address, and when they must be without it.
        self.removed: list[tuple[str, str, float]] = []

    # Setting up.

    def begin(self) -> None:
        for nsqd in self.nsqds:
            for topic, channels in self.plan.topics.items():
                self.surely(nsqd, "create_topic", topic)
                for channel in channels:
                    self.surely(nsqd, "create_channel", topic, channel)
                if topic == "held":
                    self.surely(nsqd, "pause_topic", topic)
        threads.sleep(5.0)  # without --durable a kill loses channels that are not in the list of topics yet
        for _ in range(self.plan.producers):
            self.begin_producer()
        if not self.plan.backlog:
            self.begin_consumers()
        for _ in range(self.plan.brief):
            process = self.world.client("brief")
            self._users.append(scheduler.start(partial(self._live_briefly, process), "main", process))

    def begin_consumers(self) -> None:
        for topic, channels in self.plan.topics.items():
            for channel in channels:
                for _ in range(self.plan.consumers):
                    self.begin_consumer(topic, channel)

    def begin_late(self) -> None:
        """Begin to consume the topics that had no channel, or were paused, until now."""
        for nsqd in self.nsqds if self.plan.held else ():
            self.surely(nsqd, "unpause_topic", "held")
        if self._late:
            self._late = False
            self.begin_consumer("late", "late")

    def api(self, nsqd: Nsqd) -> Any:
        return self._api(nsqd.http_address, timeout=3.0)

    def surely(self, nsqd: Nsqd, verb: str, *names: str) -> None:
        """Send a request until it is answered."""
        for _ in range(1000):
            with suppress(self.nsq.NsqError):
                getattr(self.api(nsqd), verb)(*names)
                return
            threads.sleep(0.2)

    def _options(self) -> dict[str, Any]:
        """Return the options of each client: where it finds the nsqds, and those of the plan."""
        if self.plan.found_by_lookup:
            return {"nsqlookupd": [each.http_address for each in self.lookupds], **self.plan.client_options}
        return {"nsqd": [nsqd.tcp_address for nsqd in self.nsqds], **self.plan.client_options}

    # Publishing.

    def begin_producer(self) -> None:
        client = Client(self.world.client("producer"))
        self.producers.append(client)

        def begin() -> None:
            client.made = self.new_producer()
            self._begin_users(client, self.plan.publishers, self.chance, math.inf)

        self._users.append(scheduler.start(begin, "main", client.process))

    def _begin_users(self, client: Client, count: int, chance: random.Random, until: float) -> None:
        for number in range(count):
            user = partial(self._publish, client, chance.random(), until)
            self._users.append(scheduler.start(user, f"user{number}", client.process))

    def new_producer(self) -> Any:
        return self.nsq.Producer(**self._options())

    def _publish(self, client: Client, seed: float, until: float) -> None:
        chance = random.Random(seed)
        calls, weights = list(self.plan.calls), list(self.plan.calls.values())
        futures: list[tuple[Any, list[Sent]]] = []
        while not self.over and len(self.sent) < _MOST and scheduler.now < until:
            with suppress(Interrupted):
                self._publish_once(client.made, chance, chance.choices(calls, weights)[0], futures)
            if chance.random() < 1 / self.plan.burst:
                seconds = chance.expovariate(1 / self.plan.pause) * self.plan.burst
                threads.sleep(min(seconds, max(until - scheduler.now, 0.001)))
        for future, messages in futures:
            with suppress(Interrupted):
                self._judged(messages, partial(future.result, 60.0), 60.0)

    def _publish_once(self, producer: Any, chance: random.Random, call: str, futures: list[Any]) -> None:
        topic = chance.choice([*self.plan.topics, *["late"] * self.plan.late])
        timeout = chance.choice((0.3, 2.0, 10.0))
        count = chance.choice((2, 3, 10, 40)) if call == "multi_publish" else 1
        defer = chance.uniform(0.02, self.plan.longest_defer) if call.startswith("defer") else 0.0
        keys = [f"{topic} {next(self.numbers)}".encode() for _ in range(count)]
        bodies = [key + b"|" + b"x" * chance.randint(0, self.plan.largest - 30) for key in keys]
        messages = [Sent(key, topic, call, scheduler.now, defer, producer, timeout) for key in keys]
        self.sent.update(zip(keys, messages, strict=True))
        options: dict[str, Any] = {"timeout": timeout} | ({"defer": defer} if defer else {})

        def begin() -> None:
            future = producer.publish_async(topic, bodies[0], **options)
            futures.append((future, messages))
            future.add_done_callback(lambda _: self._end(messages, future.exception(0)))

        if call == "http":
            api = self.api(chance.choice(self.nsqds))
            self._judged(messages, partial(api.publish, topic, bodies[0]), 3.0)
        elif call == "multi_publish":
            self._judged(messages, partial(producer.multi_publish, topic, bodies, **options), timeout)
        elif call in ("publish", "defer"):
            self._judged(messages, partial(producer.publish, topic, bodies[0], **options), timeout)
        else:
            self._judged(messages, begin, timeout, ends=False)

    def _judged(
        self, messages: list[Sent], action: Callable[[], object], timeout: float, *, ends: bool = True
    ) -> None:
        """Make a publishing call, and note how it ended."""
        call = Call(messages[0].call, scheduler.now, timeout, scheduler.me().process)
        self.calls.append(call)
        try:
            self._interrupted(action)
        except Interrupted:
            self._end(messages, "perhaps")
            raise
        except BaseException as error:
            self._end(messages, error)
        else:
            if ends:
                self._end(messages, None)
        call.ended = scheduler.now

    def _end(self, messages: list[Sent], error: Any) -> None:
        # An HTTP request may have been carried out, unless the answer is a 503.
        unclear = isinstance(error, self.nsq.ApiError) and getattr(error, "status", 0) != 503
        unclear |= error == "perhaps" or getattr(error, "maybe_stored", False)
        for message in messages:
            if message.state != "pending":
                continue
            scheduler.story(f"{message.call} of {message.key!r} ended: {error!r}")
            message.ended, message.error = scheduler.now, "" if error is None else str(error)
            message.state = "stored" if error is None else "perhaps" if unclear else "refused"
            if message.state == "refused" and not isinstance(error, self.nsq.NsqError):
                message.state = "perhaps"
                self.world.problems.append(f"{message.call} raised {error!r}, no error of the package")

    def _interrupted(self, action: Callable[[], object]) -> object:
        """Call a function, which a signal handler may interrupt at any statement, and once more in the middle
        of what it does then. The handler raises, or it publishes.
        """
        me, chance = scheduler.me(), self.chance
        client = next((each for each in self.producers if each.process is me.process), None)

        def handle() -> None:
            if chance.random() < 0.4:
                me.interrupt = handle
            if client is None or self.over or chance.random() < 0.7:
                raise Interrupted
            self._publish_once(client.made, chance, "publish_async", [])

        if not self.interrupts or chance.random() < 0.5:
            return action()
        self.interrupts -= 1
        later = 10 * self.plan.delay * chance.random() ** 2
        signal = scheduler.at(scheduler.now + later, partial(scheduler.interrupt, me, handle))
        try:
            return action()
        finally:
            signal[2] = me.interrupt = None

    @staticmethod
    def key(body: bytes) -> bytes:
        key, bar, rest = body.partition(b"|")
        return key if bar and not rest.strip(b"x") else b"damaged " + body

    # Consuming.

    def begin_consumer(self, topic: str, channel: str) -> None:
        client = Client(self.world.client("consumer"))
        self.consumers.append(client)

        def begin() -> None:
            client.made = self._new_consumer(client.process, topic, channel).start()

        scheduler.start(begin, "main", client.process)

    def replace(self, client: Client) -> None:
        """Have another program go on in place of one that has ended."""
        if client in self.consumers:
            self.consumers.remove(client)
            self.begin_consumer(client.made.topic, client.made.channel)
        else:
            self.producers.remove(client)
            self.begin_producer()

    def _new_consumer(self, process: Process, topic: str, channel: str) -> Any:
        plan, chance = self.plan, random.Random(f"{process.name} {self.plan.seed}")
        # More than that would not arrive within its timeout.
        fitting = plan.window / (3 * plan.delay) * plan.nsqd_options["msg_timeout"] / 4
        most = min(chance.choice((1, 5, 50)) * plan.threads, 1 + int(fitting / plan.largest))
        self.budgets[process.name] = most
        consumer = self.nsq.Consumer(
            topic,
            channel,
            threads=plan.threads,
            max_attempts=0,
            max_in_flight=most,
            default_requeue_delay=chance.choice((0.0, 0.1, 1.0)),
            backoff_multiplier=0.1,
            max_backoff_duration=1.0,
            rdy_redistribute_interval=0.5,
            low_rdy_idle_timeout=1.0,
            low_rdy_timeout=3.0,
            auto_touch=chance.random() < 0.3 and not plan.hung,
            **self._options(),
        )

        def handle(message: Any) -> None:
            self._handle(message, f"{topic}/{channel}", chance, process)

        if plan.batch:
            consumer.add_batch_handler(
                lambda batch: [handle(message) for message in batch], plan.batch, 0.05, threads=plan.threads
            )
        else:
            consumer.add_handler(handle)
        return consumer

    def _handle(self, message: Any, channel: str, chance: random.Random, by: Process) -> None:
        plan, key, came_from = self.plan, self.key(message.body), message.nsqd_address
        handled = Handled(key, channel, scheduler.now, came_from, message.id, message.attempts, by)
        self.handled.append(handled)
        scheduler.story(f"{channel} handles {key!r}, attempt {handled.attempts}, from {handled.nsqd}")
        if chance.random() < plan.slow and not self.over:
            threads.sleep(plan.slow_seconds * chance.uniform(0.5, 1.5))
        hangs = chance.random() < plan.hung and self._hung.count(by) < plan.threads - 1
        if hangs and not self.over:
            self._hung.append(by)
            # No longer: a delivery to this consumer waits for the end of the run of an earlier one.
            self.world.until(lambda: self.over, 1e6, every=0.5)
        handled.ended = scheduler.now
        if chance.random() < plan.failing and not self.over:
            if chance.random() < 0.5:
                handled.requeued_for = chance.choice((0.0, 0.2, 2.0))
                raise self.nsq.Requeue(handled.requeued_for)
            raise ValueError("a handler that fails")
        handled.succeeded = True
        if chance.random() < plan.raced and not plan.batch:
            self._answer_twice(message, chance)

    def _answer_twice(self, message: Any, chance: random.Random) -> None:
        """Have two threads answer a message: both are the user's, or one is the end of the handler."""
        answered: list[None] = []

        def finish() -> None:
            with suppress(self.nsq.AlreadyResponded):
                message.finish()
                answered.append(None)
            if len(answered) > 1:
                self.world.problems.append(f"ANSWERED twice, and no call has failed: {message!r}")

        thread, by_user = threads.Thread(target=finish, name="answerer"), chance.random() < 0.5
        if by_user:
            message.disable_auto_response()
        thread.start()
        if by_user:
            finish()

    # Ending.

    def ended(self, what: str, made: Any, timeout: float) -> Any:
        """Close or stop a client, and note how long that took and what it reported."""
        while True:
            call = Call(what, scheduler.now, timeout, scheduler.me().process, made)
            self.calls.append(call)
            with suppress(Interrupted):
                call.result = self._interrupted(partial(getattr(made, what), timeout=timeout))
                call.ended = scheduler.now
                return call.result

    def _live_briefly(self, process: Process) -> None:
        chance = random.Random(f"{process.name} lives {self.plan.seed}")
        threads.sleep(0.5 + chance.uniform(0.0, self.plan.seconds * 0.8))
        life = 0.0005 * 2000 ** chance.random()
        if self.over:
            return
        if chance.random() < 0.5:
            topic = chance.choice(list(self.plan.topics))
            consumer = self._new_consumer(process, topic, chance.choice(self.plan.topics[topic]))
            consumer.start()
            threads.sleep(life)
            self.ended("stop", consumer, chance.choice(TIMEOUTS))
            return
        client = Client(process, self.new_producer())
        self._begin_users(client, chance.choice((1, 2, 4)), chance, scheduler.now + life)
        threads.sleep(life * chance.choice((0.5, 1.0, 1.0)))
        self.ended("close", client.made, chance.choice(TIMEOUTS))

    def finish(self) -> None:
        """Stop publishing; wait for the publishing threads, and for what signal handlers have published."""
        self.over = True
        self.world.until(lambda: not any(client.stopping for client in self.consumers), 60.0)
        if not self.world.until(lambda: not any(user.alive for user in self._users), 120.0):
            self.world.problems.append(f"users hang: {[user for user in self._users if user.alive]}")
        self.world.until(lambda: all(message.state != "pending" for message in self.sent.values()), 60.0)

    def close(self) -> None:
        """Close all producers and stop all consumers."""
        self.rosters = {nsqd: nsqd.channels() for nsqd in self.nsqds}
        self.world.until(lambda: all(client.made is not None for client in self.consumers), 60.0)

        def end(client: Client, what: str, timeout: float) -> None:
            at, before = scheduler.now, client.made.stats()
            report = self.ended(what, client.made, timeout)
            stats = before if what == "close" else client.made.stats()  # after a close it counts anew
            self.counted.append((client.process, client.made, stats, at))
            if not report:
                self.world.problems.append(f"{client.process.name} at the end: {report}")

        enders = [
            scheduler.start(partial(end, client, what, timeout), "ender", client.process)
            for clients, what, timeout in ((self.producers, "close", 20.0), (self.consumers, "stop", 30.0))
            for client in clients
            if client.working
        ]
        if not self.world.until(lambda: not any(ender.alive for ender in enders), 90.0):
            self.world.problems.append("closing the clients hangs")

    # What must hold before the end.

    def channels(self, message: Sent) -> list[str]:
        """Return the channels where a message must arrive: none that was emptied."""
        names = [f"{message.topic}/{name}" for name in self.plan.topics.get(message.topic, ["late"])]
        return [name for name in names if message.began > self.emptied.get(name, 0.0)]

    def undelivered(self) -> list[tuple[Sent, str]]:
        """Return the confirmed messages that have not been handled, each with the channel."""
        handled = {(each.key, each.channel) for each in self.handled if each.succeeded}
        stored = [message for message in self.sent.values() if message.state == "stored"]
        owed = [(message, name) for message in stored for name in self.channels(message)]
        return [(message, name) for message, name in owed if (message.key, name) not in handled]

    def listed(self, nsqd: Nsqd) -> bool:
        """Whether all nsqlookupds know an nsqd."""
        return all(self._peers(lookupd, nsqd) for lookupd in self.lookupds if lookupd.running)

    def _peers(self, lookupd: Any, nsqd: Nsqd) -> list[Any]:
        """Return what an nsqlookupd knows of an nsqd, the latest last."""
        peers = list(lookupd._server._registry._peers)  # they may change while we look
        return [peer for peer in peers if peer.node.startswith(nsqd.host.address + ":")]

    def unlisted(self) -> str:
        """Say what an nsqlookupd lists of an nsqd that has something else."""
        for lookupd, nsqd in itertools.product(self.lookupds, self.nsqds):
            peers = self._peers(lookupd, nsqd)  # but for the last one: they lost their power
            listed = peers[-1].channels_by_topic if peers else {}
            lists, has = {topic: sorted(names) for topic, names in listed.items()}, nsqd.channels()
            if lists != has or not nsqd.running:
                return f"{lookupd.name} lists {lists} of {nsqd.name}, which has {has}"
        return ""
