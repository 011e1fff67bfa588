"""Reads what ``fanout --sink`` is given: ``parquet:DIR``, ``nsq:TOPIC``, ``nsq:TOPIC@HOST:PORT`` or
``console``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from nsq.errors import ConfigError
from nsq.spark.pipelines.sinks import Console, Parquet, Sink, Topic


def sinks(given: Iterable[str], nsqd: Sequence[str], lookupd: Sequence[str]) -> dict[str, Sink]:
    """By a name that stays the same in the next run: what a sink has done is remembered under it.

    ``nsqd`` and ``lookupd`` are for topics without an address of their own.
    """
    return {_name(text): _sink(text, nsqd, lookupd) for text in given}


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "sink"


def _sink(text: str, nsqd: Sequence[str], lookupd: Sequence[str]) -> Sink:
    kind, _, rest = text.partition(":")
    if kind == "console" and not rest:
        return Console()
    if kind == "parquet" and rest:
        return Parquet(rest)
    if kind == "nsq" and rest:
        topic, _, address = rest.partition("@")
        return Topic(topic=topic, nsqd=address) if address else Topic(topic=topic, nsqd=nsqd, lookupd=lookupd)
    raise ConfigError(f"sink {text!r} is neither parquet:DIR, nor nsq:TOPIC[@HOST:PORT], nor console")
