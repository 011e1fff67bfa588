"""What the user makes of the addresses an nsqlookupd lists: rewrites them, picks among them.

User code runs here, so whatever it raises is logged and must not cost the consumer its connections.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from nsq.consumer.complaints import Complaints
from nsq.consumer.directory import Answer

log = logging.getLogger("nsq.consumer")

#: The address to dial for the one that an nsqd advertises.
Rewrite = Callable[[str], str]
#: Those of these addresses that this consumer connects to.
Accept = Callable[[list[str]], Iterable[str]]


class Admission:
    """Each nsqlookupd's answer goes through ``rewrite``, address by address, then as a sorted list through
    ``accept``.

    An address whose rewriting fails is used as it was. When ``accept`` fails nobody knows what it would
    have taken: none of the answer's addresses is dialled on its account, and as if that nsqlookupd had
    failed nothing known is given up either.
    """

    def __init__(self, rewrite: Rewrite | None, accept: Accept | None, complaints: Complaints) -> None:
        self._rewrite = rewrite
        self._accept = accept
        self._complaints = complaints

    def admit(self, addresses: frozenset[str]) -> Answer:
        rewritten = frozenset(map(self._rewritten, addresses))
        if self._accept is None:
            return rewritten
        try:
            accepted = self._accept(sorted(rewritten))
            if isinstance(accepted, str):
                raise TypeError("it returned a str, not addresses")
            answer = frozenset(map(_text, accepted))
        except Exception as fault:
            self._complain("accept_addresses", "its addresses are left out", fault)
            return None
        self._complaints.settle("accept_addresses")
        return answer

    def _rewritten(self, address: str) -> str:
        if self._rewrite is None:
            return address
        try:
            return _text(self._rewrite(address))
        except Exception as fault:
            self._complain(f"rewrite_address({address!r})", "the address is used as it is", fault)
            return address

    def _complain(self, what: str, consequence: str, fault: Exception) -> None:
        if self._complaints.is_news(what, repr(fault)):
            log.error("%s failed; %s", what, consequence, exc_info=fault)


def _text(address: object) -> str:
    if not isinstance(address, str):
        raise TypeError(f"it returned {address!r}, not an address")
    return address
