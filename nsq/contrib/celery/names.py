"""Maps names of exchanges and queues to topics and channels, and decides which queue takes a message. Pure.

A topic carries everything that is published to the exchange or to the queue of its name; each queue is a
channel and filters. So Celery's usual queue, exchange and routing key of one name need one subscription.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache

from nsq.wire.names import EPHEMERAL

_LONGEST = 64 - len(EPHEMERAL)
_DIGEST = 10

# Characters that NSQ does not allow, and an underscore that would look like the escape of one.
_escaped = re.compile(r"[^.a-zA-Z0-9_-]|_(?=x[0-9a-f]+_)").sub


@lru_cache(maxsize=1024)
def nsq_name(name: str, *, transient: bool) -> str:
    """Return the topic or channel for a name of Celery's: characters that NSQ lacks are escaped, and a name
    that is too long is cut and ends in a hash of the whole name. A transient one is ``#ephemeral``.
    """
    safe = _escaped(lambda match: f"_x{ord(match[0]):x}_", name)
    if len(safe) > _LONGEST:
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
        safe = f"{safe[: _LONGEST - _DIGEST - 1]}-{digest}"
    return safe + EPHEMERAL if transient else safe


def topic_of_exchange(name: str) -> str:
    """Return the topic of an exchange. That of remote control or events is ephemeral: they are of no use once
    their readers are gone. The name alone decides: a publisher may not know how the exchange was declared.
    """
    return nsq_name(name, transient=name.endswith(".pidbox") or name.startswith("celeryev"))


def takes(kind: str, keys: Iterable[str], routing_key: str) -> bool:
    """Whether a queue that is bound with ``keys`` to an exchange of this kind takes the routing key."""
    if kind == "fanout":
        return True
    if kind == "topic":
        return any(_matches(key.split("."), routing_key.split(".")) for key in keys)
    return routing_key in keys


def _matches(pattern: list[str], words: list[str]) -> bool:
    """Match as AMQP does: ``*`` is one word, ``#`` any number of words, none too."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[start:]) for start in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])
