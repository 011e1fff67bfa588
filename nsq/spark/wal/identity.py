"""The file that says which log a place holds. Text only; no I/O.

{"format": 1, "identity": "5f0c…", "created": "2025-01-31T12:00:00Z"}
"""

from __future__ import annotations

import json
import time
import uuid

from nsq.errors import WalForeign

FORMAT = 1


def new_identity() -> str:
    return uuid.uuid4().hex


def encode(identity: str, now: float) -> bytes:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    return json.dumps({"format": FORMAT, "identity": identity, "created": created}).encode() + b"\n"


def decode(text: bytes, path: str) -> str:
    """The identity; raises WalForeign for what this version cannot read."""
    try:
        found = json.loads(text)
        version, identity = found["format"], found["identity"]
    except (ValueError, KeyError, TypeError):
        raise WalForeign(f"{path} is not the identity of a log: {text[:60]!r}") from None
    if not isinstance(version, int) or not isinstance(identity, str) or not identity:
        raise WalForeign(f"{path} is not the identity of a log: {text[:60]!r}")
    if version > FORMAT:
        raise WalForeign(
            f"{path} has format {version}, this version of nsq reads {FORMAT}: read it with a newer one"
        )
    return identity
