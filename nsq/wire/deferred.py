"""The envelope of a message that is deferred for longer than nsqd allows at once: one line, then the body."""

from __future__ import annotations

import re

_LINE = b"nsq-deferred %d\n"
_match = re.compile(rb"nsq-deferred ([0-9]{1,18})\n").match


def wrap(body: bytes, due_ms: int) -> bytes:
    """Return the body in an envelope that says when it is due, in milliseconds since the epoch."""
    return _LINE % due_ms + body


def unwrap(data: bytes) -> tuple[bytes, int] | None:
    """Return the body and when it is due; None for a message without the envelope."""
    found = _match(data)
    return None if found is None else (data[found.end() :], int(found[1]))
