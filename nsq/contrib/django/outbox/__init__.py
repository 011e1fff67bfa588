"""An optional app: messages that are written in the transaction of your data, and published by ``nsq_relay``.

from nsq.contrib.django.outbox import publish
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsq.contrib.django.outbox.writing import publish as publish

__all__ = ["publish"]


def __getattr__(name: str) -> Any:
    if name != "publish":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not before: an app is imported before models can be.
    from nsq.contrib.django.outbox.writing import publish

    return publish
