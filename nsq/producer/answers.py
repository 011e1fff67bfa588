"""What nsqd's answers mean for publishes: which end, and which are sent again. Pure."""

from __future__ import annotations

import copy
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from nsq.errors import BadBody, BadMessage, NsqError, PublishFailed, PublishUncertain, ServerError

if TYPE_CHECKING:
    from nsq.producer.publishes import Publish


class Verdict(NamedTuple):
    """The decision about one publish: end it with the error, or send it again."""

    publish: Publish
    error: NsqError
    again: bool


def unanswered(
    publish: Publish, address: str, reason: str, cause: NsqError | None = None
) -> PublishUncertain:
    error = PublishUncertain(
        f"publishing to {publish.topic!r}: it was sent to {address} and not answered ({reason}); "
        "it may be stored"
    )
    error.__cause__ = cause
    return error


def unsent(publish: Publish, reason: str) -> NsqError:
    """Return the error for a publish that was not sent, or not sent again."""
    if publish.uncertain_at:
        times = Counter(publish.uncertain_at)
        sent_to = [f"{each} ({count} times)" if count > 1 else each for each, count in times.items()]
        return unanswered(publish, " and ".join(sent_to), f"then: {reason}")
    return PublishFailed(f"publishing to {publish.topic!r}: {reason}")


class Rules:
    """What nsqd's answers to a publish mean: here those of the original NSQ. Another one has its own."""

    def place_plainly(self, publish: Publish) -> None:
        """Make it one for the original NSQ, or raise UsageError."""

    def accepts(self, publish: Publish, data: bytes) -> bool:
        """Whether an answer other than OK says that nsqd has stored the publish."""
        return False

    def refused(
        self, batch: list[Publish], error: ServerError, address: str, *, retry_uncertain: bool, took: float
    ) -> list[Verdict]:
        """Decide about a refused batch, answered after ``took`` seconds. May correct ``error.fatal``."""
        if len(batch) > 1 and isinstance(error, (BadMessage, BadBody)):
            # No message of the batch is stored. One publish is at fault: send each alone now.
            for publish in batch:
                publish.no_batching = True
            return [Verdict(publish, error, again=True) for publish in batch]
        if error.maybe_stored and len(batch) > 1:
            return _uncertain(batch, error, address, retry_uncertain)
        if error.maybe_stored and batch:
            batch[0].uncertain_at += (address,)
        again = error.retry and (retry_uncertain or not error.maybe_stored)
        # A copy of the error for each: callers must not share a traceback.
        return [Verdict(publish, copy.copy(error) if len(batch) > 1 else error, again) for publish in batch]

    def lost(
        self, batch: list[Publish], cause: NsqError, address: str, *, executed: bool, retry_uncertain: bool
    ) -> list[Verdict]:
        """Decide about a batch without an answer. ``executed``: it may be stored."""
        if not executed:
            return [Verdict(publish, cause, again=True) for publish in batch]
        return _uncertain(batch, cause, address, retry_uncertain)

    def note_silence(self, publish: Publish, address: str) -> None:
        """Note that nsqd has not answered a publish that had a connection of its own."""

    def dial_at_once(self, error: ServerError) -> bool:
        """Whether nsqd is well although it closed the connection with this error: the caller's mistake."""
        return not error.retry


def _uncertain(batch: list[Publish], cause: NsqError, address: str, again: bool) -> list[Verdict]:
    for publish in batch:
        publish.uncertain_at += (address,)
    return [Verdict(each, unanswered(each, address, str(cause), cause), again) for each in batch]


PLAIN = Rules()
