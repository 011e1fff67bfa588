"""``Consumer``, the public class: add a handler, then run it."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypedDict, TypeVar, Unpack, cast, overload

from nsq.config import Config, Options, SignatureWithOptions, check_rate, checked_function, checked_functions
from nsq.connection.subscription import Subscription
from nsq.consumer.dead_letters import give_up_policy
from nsq.consumer.dialect import Dialect
from nsq.consumer.engine import Engine, Watch
from nsq.consumer.handlers import BatchHandler, Handler, HandlerPool, check_handler, surrounded
from nsq.consumer.reports import ConsumerHealth, ConsumerHooks, ConsumerStats, StopReport, health_of, stats_of
from nsq.errors import Closed, ConfigError, Forked, NsqError, UsageError
from nsq.log import Logger
from nsq.message import Message
from nsq.threads.signals import SignalWatch
from nsq.threads.waiters import refuse_eventlet
from nsq.transport.addresses import Addresses, checked, checked_nsqds
from nsq.transport.base import Transport
from nsq.wire.names import check_channel, check_topic

log = Logger("nsq.consumer")

if TYPE_CHECKING:
    from nsq.partitioned.lanes import OnStuck

H = TypeVar("H", bound=Callable[..., Any])

#: Seconds; beyond this a message times out before its batch is full.
_LONGEST_WAIT = 3600.0
#: Seconds of the longest timeout: threads cannot wait very much longer.
_FOR_EVER = 10.0**9
_NO_NSQD = "an ordered consumer finds its nsqds through nsqlookupd alone"


#: Gets a handler, and returns the function to call instead.
AroundHandler = Callable[[Callable[..., Any]], Callable[..., Any]]


class PartitionOptions(TypedDict, total=False):
    """The options of a consumer that need a partitioned NSQ. None and False mean not given."""

    ordered: bool
    on_stuck: OnStuck | None
    stuck_after: int | None
    out_of_order: str | None
    partitions: Collection[int] | None
    start: str | datetime | None
    trace: bool
    desired_tag: str | None
    header_filter: Mapping[str, str] | None


class ConsumerOptions(Options, PartitionOptions, total=False):
    """All options of a consumer, for type checkers and editors."""


class Consumer:
    """Receives a channel's messages and hands them to handlers, each message to one of them.

        consumer = nsq.Consumer("orders", "billing", nsqlookupd=["10.0.0.1:4161"], threads=8)
        consumer.add_handler(bill)
        consumer.run()

    Give ``nsqd`` or ``nsqlookupd`` addresses, or both. Options are those of ``Config``, by keyword or in a
    ``config``. ``threads`` is the number of threads for each handler that is added without a number. The
    default of ``max_in_flight`` is twice the number of handler threads, or enough to fill every batch handler
    twice.

    After more than ``max_attempts`` attempts the consumer gives a message up: it is logged and finished, and
    so lost. With ``dead_letters="orders.dead"`` it is published to that topic before, on one of the nsqds
    that the consumer knows; ``give_up`` is a function that gets it instead. ``dead_letter_reasons=True`` puts
    dead letters into an envelope that says why, and gives a message up right when its last attempt fails.

    With nsqlookupds of a partitioned NSQ the consumer has a connection for each partition of the topic, or of
    ``partitions``. With ``ordered=True`` it handles the messages of each partition one after the other. A
    message whose handler fails then comes again after a growing pause, for ever, and its partition waits:
    ``on_stuck`` is a function that decides otherwise, and after every ``stuck_after`` attempts the log and
    the hook ``stuck`` report it. ``out_of_order="stop"`` leaves a partition when a message of it comes out of
    order. ``start`` begins at a position (``"end"``, ``"offset:BYTES"``, ``"count:MESSAGES"``, an aware
    datetime), ``trace=True`` traces the topic from the beginning, ``desired_tag`` and ``header_filter``
    select messages.

    ``around_handler`` gets each handler when it is added, and returns the function to call instead, on the
    handler's threads; of a list the first one is the outermost. ``at_thread_end`` is called by every handler
    thread before it ends.
    """

    __signature__ = SignatureWithOptions(more=PartitionOptions)

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd: Addresses = (),
        nsqlookupd: Addresses = (),
        threads: int = 1,
        dead_letters: str | None = None,
        dead_letter_reasons: bool = False,
        give_up: Callable[[Message], None] | None = None,
        hooks: ConsumerHooks | None = None,
        around_handler: AroundHandler | Sequence[AroundHandler] | None = None,
        at_thread_end: Callable[[], object] | None = None,
        rewrite_address: Callable[[str], str] | None = None,
        accept_addresses: Callable[[list[str]], Iterable[str]] | None = None,
        transport: Transport | None = None,
        config: Config | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        refuse_eventlet()
        #: The topic of the messages.
        self.topic = check_topic(topic)
        #: The channel of the topic.
        self.channel = check_channel(channel)
        given: dict[str, Any] = {**options}
        # None and False mean not given.
        special = {name: given.pop(name, None) for name in PartitionOptions.__annotations__}
        special = {name: value for name, value in special.items() if value is not None and value is not False}
        if "ordered" in special and "max_attempts" in given:
            raise ConfigError("max_attempts is given with ordered=True, which skips no message: use on_stuck")
        #: The options, with those that were given as keywords.
        self.config = Config.of(config, given)
        if hooks is not None and not isinstance(hooks, ConsumerHooks):
            raise ConfigError(f"hooks is {hooks!r}; it must be an instance of a subclass of ConsumerHooks")
        subscription = Subscription(self.topic, self.channel)
        discovery: dict[str, Any] = {
            "nsqds": checked_nsqds(nsqd),
            "nsqlookupds": checked("nsqlookupd", nsqlookupd),
            "rewrite": checked_function("rewrite_address", rewrite_address),
            "accept": checked_function("accept_addresses", accept_addresses),
        }
        checked_function("give_up", give_up)
        self._check_addresses(special, **discovery)
        self._engine = Engine(
            subscription,
            self.config,
            discovery,
            special,
            give_up_policy(subscription, self.config, transport, dead_letters, dead_letter_reasons, give_up),
            other_dialect=_partitioned_dialect,
            transport=transport,
            hooks=hooks,
            threads=checked_whole("threads", threads),
            at_thread_end=checked_function("at_thread_end", at_thread_end),
        )
        self._around_handler = checked_functions("around_handler", around_handler)
        self._warned_of_zero = False
        self._pid = os.getpid()

    def _check_addresses(
        self, special: dict[str, Any], nsqds: Collection[str], nsqlookupds: Collection[str], **_: object
    ) -> None:
        """Check that the addresses suit the options for a partitioned NSQ. Which NSQ this is shows later."""
        if not nsqlookupds and not nsqds:
            raise ConfigError("a consumer needs nsqd or nsqlookupd addresses, or both")
        if special and (not nsqlookupds or self.config.cluster == "original"):
            reason = "cluster is 'original'" if nsqlookupds else "give nsqlookupd"
            raise ConfigError(f"{next(iter(special))} needs a partitioned NSQ and its nsqlookupds: {reason}")
        if "ordered" in special and nsqds:
            raise ConfigError(f"nsqd is given with ordered=True: {_NO_NSQD}")

    def __repr__(self) -> str:
        return f"<Consumer {self.topic}/{self.channel} {self._engine.state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Consumer cannot be pickled, as its connections cannot: make one in each process")

    # Handlers.

    def add_handler(
        self,
        handler: Handler,
        *,
        threads: int | None = None,
        no_backoff: tuple[type[BaseException], ...] = (),
    ) -> Self:
        """Add a function that is called as ``handler(message)``, in ``threads`` threads of its own.

        Returning finishes the message; raising, or returning False, requeues it. That is a failure, and many
        of them make the consumer back off, unless the exception is one of ``no_backoff``. Several handlers
        share the messages. Returns the consumer, for ``Consumer(…).add_handler(bill).run()``; the decorator
        is ``handler``.
        """
        if threads is not None:
            checked_whole("threads", threads)
        self._refuse_started("add_handler")
        self._engine.pool.add(self._surrounded(handler), threads, no_backoff)
        return self

    @overload
    def handler(self, function: H, /) -> H: ...

    @overload
    def handler(
        self, /, *, threads: int | None = None, no_backoff: tuple[type[BaseException], ...] = ()
    ) -> Callable[[H], H]: ...

    def handler(self, function: Any = None, /, **options: Any) -> Any:
        """Add a function as ``add_handler`` does, and return it: a decorator, with or without options.

            @consumer.handler(threads=4)
            def bill(message): ...

        ``@consumer.handler`` alone takes the defaults.
        """
        if function is None:
            return partial(self.handler, **options)
        self.add_handler(function, **options)
        return function

    if not TYPE_CHECKING:  # type checkers refuse the call

        def __call__(self, *_: object) -> NoReturn:
            """Explain what has happened to a function below ``@consumer.add_handler``."""
            raise TypeError(_not_a_function(self))

    def add_batch_handler(
        self,
        handler: BatchHandler,
        size: int,
        wait: float = 1.0,
        *,
        threads: int = 1,
        no_backoff: tuple[type[BaseException], ...] = (),
    ) -> Self:
        """Add a function that is called as ``handler(messages)`` with up to ``size`` messages, collected for
        up to ``wait`` seconds.

        The handler gets a smaller batch early if no more messages can come until it answers some. Its return
        or exception answers every message that it has not answered itself.
        """
        size, threads = checked_whole("size", size), checked_whole("threads", threads)
        if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 <= wait <= _LONGEST_WAIT:
            raise ConfigError(f"wait is {wait!r}; it must be seconds, from 0 to {_LONGEST_WAIT:g}")
        self._refuse_started("add_batch_handler")
        self._engine.pool.add_batch(self._surrounded(handler), size, wait, threads, no_backoff)
        return self

    def _surrounded(self, handler: H) -> H:
        """Return the function to call for a handler."""
        if isinstance(handler, Consumer):
            raise ConfigError(_not_a_function(handler))
        check_handler(handler)  # before another function stands in for it
        return cast(H, surrounded(handler, self._around_handler, check_handler))

    def hand_over(self, take: Handler, at_once: int) -> HandlerPool:
        """Have ``take`` called with each message, on one thread: other code handles up to ``at_once`` of them
        at a time, as nsq.aio does. auto_touch touches those that have begun, until they are answered. Return
        the pool, which has the answers for messages that fail or come too late.
        """
        self._refuse_started("hand_over")
        self._engine.pool.handed_over = True
        self._engine.pool.add(take, threads=1, at_once=checked_whole("at_once", at_once))
        return self._engine.pool

    def set_threads(self, threads: int) -> None:
        """Set the threads of each handler that was added without a number. Call it before the start."""
        engine = self._own_engine
        self._refuse_started("set_threads")
        engine.pool.threads_each = checked_whole("threads", threads)

    def _refuse_started(self, what: str) -> None:
        if self._engine.state != "new":
            raise Closed(f"{what} comes before start: this consumer is {self._engine.state}")

    # Lifecycle.

    def start(self) -> Self:
        """Connect and handle messages in the background."""
        engine = self._own_engine
        if self._engine.state != "new":
            raise Closed(f"{self!r} cannot be started again: make a new one")
        engine.connections.follow_handlers()
        # Warn of settings that are probably a mistake and would only show as slowness.
        allowed, wanted = engine.connections.windows.max_in_flight, engine.pool.at_once
        if not wanted:
            log.warning("%r has no handler: add one before it starts", self)
        elif 0 < allowed < wanted:
            text = (
                "%r: max_in_flight is %d, but its handlers could work on %d messages at once: some stay idle"
            )
            log.warning(text, self, allowed, wanted)
        else:
            self._warn_of_zero()
        engine.start()
        return self

    def _warn_of_zero(self) -> None:
        windows = self._engine.connections.windows
        if windows.max_in_flight == 0 and not windows.paused and not self._warned_of_zero:
            self._warned_of_zero = True
            text = "%r: max_in_flight is 0, so that no message comes: use pause() if that is meant"
            log.warning(text, self)

    def stop(self, timeout: float = 30.0) -> StopReport:
        """Take no more messages, let handlers finish theirs, then disconnect.

        Blocks for up to ``timeout`` seconds and reports unfinished work. In a handler or a hook it only asks
        for the stop and returns at once. An interrupted stop goes on in the background; another call waits
        for it, and shortens it if that call's timeout ends sooner.
        """
        return self._own_engine.stop(time.monotonic() + checked_seconds(timeout))

    def request_stop(self, timeout: float = 30.0) -> None:
        """Ask for a stop within ``timeout`` seconds, and return at once."""
        self._own_engine.ask_to_stop(time.monotonic() + checked_seconds(timeout))

    def wake_at_end(self, watch: Watch | None) -> None:
        """Call ``watch.wake()`` when the consumer is asked to stop, when it has stopped, and when it gets a
        ``refusal``. A forked child calls ``watch.abandon()``.
        """
        self._engine.watch = watch

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the consumer has stopped; return whether it has within ``timeout``."""
        deadline = math.inf if timeout is None else time.monotonic() + checked_seconds(timeout)
        engine = self._own_engine
        return engine.owner.changed.wait_for(lambda: engine.state == "stopped", deadline)

    def run(self, timeout: float = 30.0) -> StopReport:
        """Start, and stop at SIGTERM or SIGINT, within ``timeout``. Another signal, more than a second
        later, ends the stop at once.

        If every nsqd refuses the subscription, raises the nsqd's error, such as Unauthorized. In threads
        other than the main one it handles no signals: there it ends when ``stop`` is called.
        """
        engine = self._own_engine
        timeout = checked_seconds(timeout)
        if engine.state == "stopped":
            raise Closed(f"{self!r} cannot run again: make a new one")
        if not engine.pool.at_once:
            raise UsageError(f"{self!r} has no handler: call add_handler before run")
        with SignalWatch() as watch, watch:
            signalled = self._run_until_stopped(watch, timeout)
        if engine.refusal is not None and not signalled:
            engine.stop(time.monotonic() + timeout)
            raise engine.refusal
        return engine.stop(time.monotonic())

    def _run_until_stopped(self, watch: SignalWatch, timeout: float) -> bool:
        """Return whether a signal came. A second signal ends the wait for the stop."""
        engine = self._engine
        signalled = False
        engine.watch = watch
        try:
            if engine.state == "new":
                self.start()
            while engine.state != "stopped" and engine.refusal is None:
                number = watch.wait()
                if number is not None and signalled:
                    break
                if number is not None:
                    signalled = True
                    engine.ask_to_stop(time.monotonic() + timeout)
                    busy = engine.pool.busy
                    text = f"waiting for {busy} handler{'s'[: busy != 1]}" if busy else "stopping"
                    if number is signal.SIGINT:  # a warning is visible without any logging set up
                        log.warning("%s; press Ctrl-C again to end", text)
                    else:
                        log.info("%s: %r: %s", number.name, self, text)
        finally:
            engine.watch = None
        return signalled

    def __enter__(self) -> Self:
        return self.start() if self._engine.state == "new" else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pid == os.getpid():
            self.stop()

    # While the consumer runs.

    def wait_until_connected(self, timeout: float = 10.0, connections: int = 1) -> bool:
        """Return whether that many nsqds are connected within ``timeout``."""
        return self._own_engine.wait_until_connected(connections, time.monotonic() + checked_seconds(timeout))

    def set_max_in_flight(self, max_in_flight: int) -> None:
        """Change how many messages may be here at once. Messages that are here already stay."""
        checked_whole("max_in_flight", max_in_flight, least=0)
        self._own_engine.connections.set_max_in_flight(max_in_flight)
        self._warn_of_zero()

    def set_rate(self, rate: float | None) -> None:
        """Change how many messages handlers may begin a second; None is no limit. Any thread, and signal
        handlers too. It takes effect within a quarter of a second.
        """
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, (int, float))):
            raise ConfigError(f"rate is {rate!r}; it must be a number of messages a second, or None")
        check_rate(rate or 0.0)
        self._own_engine.connections.set_rate(float(rate or 0.0))

    def trace(self, on: bool = True) -> None:
        """Log a line on ``nsq.trace`` for each message from now on, or stop that. Needs a partitioned NSQ."""
        if not isinstance(on, bool):
            raise UsageError(f"tracing is switched to {on!r}; it must be True or False")
        engine = self._own_engine
        if not engine.discovery.asks or engine.discovery.kind == "original":
            raise UsageError("tracing needs a partitioned NSQ and its nsqlookupds: give nsqlookupd")
        engine.traced = on

    def pause(self) -> None:
        """Take no new messages until ``resume``."""
        self._own_engine.connections.pause(True)

    def resume(self) -> None:
        """Take new messages again."""
        self._own_engine.connections.pause(False)

    @property
    def refusal(self) -> NsqError | None:
        """The error of an nsqd, if every known nsqd refuses this consumer for good; or the reason why its
        options do not suit the topic. ``run`` raises it.
        """
        return self._engine.refusal

    @property
    def is_starved(self) -> bool:
        """Whether some nsqd can hardly send more before messages that are here are answered."""
        return self._engine.connections.starved

    def add_nsqd(self, address: str) -> None:
        """Connect to another nsqd. The consumer must have been started, here and in the next three."""
        if self._engine.options.get("ordered"):
            raise UsageError(f"add_nsqd is called with ordered=True: {_NO_NSQD}")
        self._started_engine.discovery.add_nsqd(address)

    def remove_nsqd(self, address: str) -> None:
        """Disconnect from an nsqd that was given or added, unless an nsqlookupd lists it."""
        self._started_engine.discovery.remove_nsqd(address)

    def add_nsqlookupd(self, address: str) -> None:
        """Ask another nsqlookupd too."""
        self._started_engine.discovery.add_nsqlookupd(address)

    def remove_nsqlookupd(self, address: str) -> None:
        """Ask this nsqlookupd no more. Connections to the nsqds that it listed stay until they end."""
        self._started_engine.discovery.remove_nsqlookupd(address)

    @property
    def _started_engine(self) -> Engine:
        if self._own_engine.state == "new":
            raise Closed("the consumer has not been started")
        return self._engine

    def stats(self) -> ConsumerStats:
        """Return the totals so far."""
        return stats_of(self._engine)

    def health(self) -> ConsumerHealth:
        """Return the consumer's health, and for every connection the reason for its RDY."""
        return health_of(self._engine)

    # Forks.

    @property
    def _own_engine(self) -> Engine:
        """Return the engine. Raises Forked in a child of the process that started the consumer."""
        if os.getpid() != self._pid and self._engine.state == "new":
            self._pid = os.getpid()  # made before a fork, started after it
        if os.getpid() != self._pid:
            raise Forked(
                f"{self!r} belongs to process {self._pid}; process {os.getpid()} needs a consumer of its own"
            )
        return self._engine


# Checks of arguments other than options.


def _partitioned_dialect(engine: Engine, options: Mapping[str, Any]) -> Dialect:
    from nsq.partitioned.ordered import dialect_for

    dialect: Dialect = dialect_for(engine, options)  # ``Any`` to mypy where nsq.partitioned is not there
    return dialect


def _not_a_function(consumer: Consumer) -> str:
    return (
        f"{consumer!r} is not a function: if @consumer.add_handler stands above one, write "
        "@consumer.handler, because add_handler returns the consumer"
    )


def checked_whole(name: str, value: int, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number from {least} up")
    return value


def checked_seconds(timeout: float) -> float:
    """Check the timeout of a wait; infinity is allowed."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or math.isnan(timeout):
        raise UsageError(f"timeout is {timeout!r}; it must be a number of seconds")
    return min(float(timeout), _FOR_EVER)
