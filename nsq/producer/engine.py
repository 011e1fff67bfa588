"""All that a producer has in one process: connections, threads, and what is under way. A forked child makes
its own.

publish         the calling thread chooses, sends and waits
publish_async   the calling thread sends if a connection is open; all else is done by two threads, ``Courier``
                for what needs a connection, ``Answers`` for what is known
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from nsq.config import Config
from nsq.errors import NsqError, UsageError
from nsq.producer import exits
from nsq.producer.admission import Admission
from nsq.producer.answers import Answers
from nsq.producer.confirmation import Confirmation
from nsq.producer.courier import Courier
from nsq.producer.discovery import Discovery
from nsq.producer.line import Line
from nsq.producer.pending import Settled
from nsq.producer.pool import Pool
from nsq.producer.reports import Acknowledged, ProducerStats
from nsq.producer.request import Request
from nsq.producer.transaction import State, Transaction, failure, unanswered
from nsq.transport.base import Transport
from nsq.wire.layers import TlsContext

log = logging.getLogger("nsq.producer")

#: For a thread of ours, to end once it is told to.
_STOPPING_GRACE = 1.0


class Engine:
    """``lookupds`` are asked for nsqds beside ``addresses``."""

    def __init__(
        self,
        addresses: Iterable[str],
        lookupds: Iterable[str],
        config: Config,
        transport: Transport,
        context: TlsContext | None,
        on_acknowledged: Callable[[Acknowledged], None] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pid = os.getpid()
        self._clock = clock
        self._on_acknowledged = on_acknowledged
        self._closed_at_exit = False
        self._answers = Answers(self._complete_all, self._expire, clock)
        # Who completes publishes must not wait for one to be completed.
        self._admission = Admission(
            config.max_pending, clock, patient=lambda: not self._answers.is_current_thread
        )
        self._courier = Courier(self._carry)
        self.pool = Pool(addresses, config, transport, context, self._deliver, clock=clock)
        self._discovery = Discovery(lookupds, config, self.pool, fixed=addresses)

    # Publishing.

    def publish(self, request: Request, seconds: float) -> None:
        started = self._clock()
        transaction = Transaction(request, started, started + seconds)
        self._discovery.start()
        transaction.era = self._admission.enter(transaction.deadline)
        try:
            self._publish(transaction)
        except BaseException:
            transaction.give_up()  # it may be under way still: a signal can end the wait with an exception
            raise
        finally:
            self._admission.settle(transaction.era, leaving=not transaction.left_behind)

    def _publish(self, transaction: Transaction) -> None:
        while True:
            # Alone: by oneself is quickest. In company, what goes out together is answered together, and who
            # rushes ahead breaks that up.
            alone = self._admission.inside == 1
            line = self._send(transaction, through=alone)
            if not ((alone and line.read_along(transaction)) or self._await_answer(transaction)):
                raise self._too_late(transaction)
            error = transaction.error
            if error is None:
                if self._on_acknowledged is not None:
                    self._acknowledge(transaction)
                return
            if not transaction.again:
                raise error
            if transaction.over:
                raise failure(transaction, str(error)) from error

    def _await_answer(self, transaction: Transaction) -> bool:
        """Whether it came in time."""
        answered = transaction.wait(transaction.deadline - self._clock())
        return answered or transaction.give_up() is not State.PLACED

    def publish_async(self, request: Request, seconds: float) -> Future[None]:
        started = self._clock()
        future = Confirmation()
        transaction = Transaction(request, started, started + seconds, future)
        self._discovery.start()
        transaction.era = self._admission.enter(transaction.deadline)
        if not self._closed_at_exit:
            self._closed_at_exit = True
            exits.close_at_exit(self)
        try:
            self._answers.watch(transaction)
        except RuntimeError:  # there is no thread to be had: it has not been placed anywhere
            self._admission.settle(transaction.era, leaving=True)
            raise
        # Nobody overtakes those who wait for a connection.
        line = None if self._courier.busy else self.pool.ready()
        if line is None or not line.send(transaction, through=False):
            self._courier.put(transaction)
        return future

    def _send(self, transaction: Transaction, *, through: bool) -> Line:
        """Over whichever connection is open, or will be."""
        while True:
            line = self.pool.ready() or self.pool.line_for(transaction)
            if line.send(transaction, through=through):
                return line
            self.pool.discard(line)

    def _too_late(self, transaction: Transaction) -> NsqError:
        """It was given up while it was on a connection."""
        line = transaction.holder
        assert isinstance(line, Line)
        if line.withdraw(transaction):
            return failure(transaction, f"{line.address} did not take it in time")
        self.pool.suspect(line)
        return unanswered(line.address, transaction.request.topic, "no answer in time")

    def _acknowledge(self, transaction: Transaction) -> None:
        if self._on_acknowledged is None or transaction.holder is None:
            return
        request = transaction.request
        try:
            self._on_acknowledged(
                Acknowledged(
                    request.topic,
                    request.messages,
                    request.size,
                    transaction.holder.address,
                    self._clock() - transaction.started,
                )
            )
        except Exception:
            log.exception("on_acknowledged failed", extra={"topic": request.topic})

    # For those that nobody waits for.

    def _deliver(self, settled: Settled) -> None:
        """On a read loop. Callers that wait have been woken already."""
        if settled.forsaken:
            self._admission.leave(len(settled.forsaken))
        for transaction in settled.awaited:
            if transaction.future is not None:
                (self._courier if transaction.again else self._answers).put(transaction)

    def _carry(self, transaction: Transaction) -> None:
        """On the courier's thread."""
        try:
            self._send(transaction, through=False)
        except NsqError as error:
            if transaction.give_up() is State.WAITING:
                transaction.error = error
                self._answers.put(transaction)

    def _expire(self, transaction: Transaction) -> None:
        """On the answers' thread: its deadline has come."""
        state = transaction.give_up()
        if state is State.WAITING:
            transaction.error = failure(transaction, self.pool.explain())
        elif state is State.PLACED:
            transaction.error = self._too_late(transaction)
        else:
            return
        self._complete_all([transaction])

    def _complete_all(self, transactions: list[Transaction]) -> None:
        """On the answers' thread. All leave together: whoever waits for room is woken once, not for each."""
        leaving = [transaction.left_behind for transaction in transactions].count(False)
        if leaving:
            self._admission.leave(leaving)
        for transaction in transactions:
            self._complete(transaction)

    def _complete(self, transaction: Transaction) -> None:
        future, error = transaction.future, transaction.error
        assert future is not None
        if error is None and self._on_acknowledged is not None:
            self._acknowledge(transaction)
        try:
            future.complete(error)
        except BaseException:  # a callback's SystemExit must not end the thread that all others rely on
            log.exception("a callback of a publish ended with an exception of its own")
        self._admission.settle(transaction.era)

    # The end, and what there is to know.

    def flush(self, seconds: float) -> int:
        """How many publishes are left."""
        self._refuse_on_own_thread("flush")
        return self._admission.flush(self._clock() + seconds)

    def close(self, seconds: float) -> int:
        self._refuse_on_own_thread("close")
        if not self._admission.close():
            return 0
        exits.forget(self)
        deadline = self._clock() + seconds
        self._discovery.stop()
        left = 1
        try:
            left = self._admission.flush(deadline)
        finally:  # also when somebody has pressed Ctrl-C once more
            self.pool.close(self._clock() if left else deadline, gracefully=not left)
            self._courier.stop(_STOPPING_GRACE)
            self._answers.stop(_STOPPING_GRACE)
            self._discovery.join(self._clock() + _STOPPING_GRACE)
        return left

    def _refuse_on_own_thread(self, verb: str) -> None:
        if self._answers.is_current_thread:
            raise UsageError(
                f"{verb} was called by a future's callback, whose return it would wait for: "
                "call it from another thread"
            )

    @property
    def closed(self) -> bool:
        return self._admission.closed

    def stats(self) -> ProducerStats:
        return ProducerStats(pending=self._admission.unsettled, connections=self.pool.stats())

    def abandon(self) -> None:
        """In a forked child: it is the parent's."""
        exits.forget(self)
        self._discovery.abandon()
        self.pool.abandon()
