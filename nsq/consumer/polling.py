"""Asking the nsqlookupds: rounds of questions, what became of them, and what is known of each.

Belongs to the discovery thread; the questions themselves block on threads of their own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from nsq.api.http import Url
from nsq.config import Config
from nsq.consumer.admission import Admission
from nsq.consumer.complaints import Complaints
from nsq.consumer.directory import Directory
from nsq.consumer.discovered import LookupdState
from nsq.consumer.errands import Errands
from nsq.consumer.lookups import Asker
from nsq.consumer.rounds import Pace, Rounds
from nsq.errors import NsqError

log = logging.getLogger("nsq.consumer")

#: Who asks gives up by itself when the round's time is over, and says why. Should it not, it is waited for no
#: longer than this.
_MARGIN = 0.25


class Polling:
    """Has ``asker`` ask, and tells ``directory`` what is answered, as soon as it is."""

    def __init__(
        self,
        config: Config,
        asker: Asker,
        errands: Errands,
        directory: Directory,
        admission: Admission,
        complaints: Complaints,
        *,
        clock: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self._timeout = config.lookupd_poll_timeout
        self._asker = asker
        self._errands = errands
        self._directory = directory
        self._admission = admission
        self._complaints = complaints
        self._clock = clock
        pace = Pace(config.lookupd_poll_interval, config.lookupd_poll_jitter, self._timeout + _MARGIN, chance)
        self._rounds: Rounds[Url] = Rounds(pace, clock())
        self._texts: dict[Url, str] = {}
        self._states: dict[Url, LookupdState] = {}

    # Whom to ask, and when.

    def add(self, lookupd: Url, text: str) -> None:
        """``text`` is the address as it was given."""
        self._texts[lookupd] = text
        self._states[lookupd] = LookupdState(str(lookupd))
        self._rounds.request(self._clock())

    def remove(self, lookupd: Url) -> None:
        del self._texts[lookupd], self._states[lookupd]
        self._complaints.settle(lookupd)
        self._rounds.withdraw(lookupd)
        if not self._texts:
            self._directory.round_ended((), self._clock())

    def request(self, now: float) -> None:
        """Ask before it is time."""
        self._rounds.request(now)

    def next_due(self) -> float:
        return self._rounds.next_due() if self._texts else math.inf

    @property
    def states(self) -> tuple[LookupdState, ...]:
        return tuple(self._states.values())

    # Rounds.

    def turn(self, now: float) -> None:
        """End the round that is over, begin the one that is due."""
        begins = bool(self._texts) and self._rounds.due(now)
        if self._rounds.over(now):
            for lookupd in self._rounds.missing:
                self._note(lookupd, NsqError(f"{lookupd} did not answer within {self._timeout:g} s"))
            self._end(now)
        elif begins and self._rounds.under_way:
            self._end(now)  # those that are missing take part in the next one, nothing is wrong with them yet
        if begins:
            for lookupd in self._rounds.begin(self._texts, now):
                self._ask(lookupd)

    def _end(self, now: float) -> None:
        answers = self._rounds.end(now)
        if answers:
            self._directory.round_ended(answers.values(), now)

    def _ask(self, lookupd: Url) -> None:
        self._errands.run(
            f"ask-{lookupd}",
            partial(self._asker.ask, self._texts[lookupd]),
            partial(self._answered, lookupd),
            partial(self._failed, lookupd),
        )

    def _answered(self, lookupd: Url, listed: frozenset[str]) -> None:
        if lookupd not in self._states:
            self._rounds.answered(lookupd, None)  # removed since
            return
        if self._complaints.settle(lookupd):
            log.info("nsqlookupd %s answers again", lookupd)
        self._states[lookupd] = LookupdState(str(lookupd), self._clock(), len(listed))
        answer = self._admission.admit(listed)
        if self._rounds.answered(lookupd, answer) and answer is not None:
            self._directory.heard(answer)

    def _failed(self, lookupd: Url, fault: NsqError) -> None:
        if self._rounds.answered(lookupd, None) and lookupd in self._states:
            self._note(lookupd, fault)

    def _note(self, lookupd: Url, fault: NsqError) -> None:
        self._states[lookupd] = replace(self._states[lookupd], failed_at=self._clock(), error=str(fault))
        if self._complaints.is_news(lookupd, str(fault)):
            log.warning("nsqlookupd %s fails, others are asked all the same: %s", lookupd, fault)
