"""Putting the files of a batch into a folder exactly once, however often the batch is run.

    <root>/_staging/<query>/<batch>/…        what Spark wrote; nobody reads there
    <root>/_batches/<query>/<batch>.json     the decision: which of those files goes where
    <root>/date=…/hour=…/part-….parquet      where readers look

Spark runs a batch again unless it has noted its end, so whatever is done by a batch happens once or twice.
Here it is the decision that counts, one small file that is there or not: without it, whatever was staged is
thrown away and written anew, perhaps cut into other files; with it, nothing is written again, and the moves
that are still missing are made up for. A file is moved in one step and under a name of its own, so readers
find it whole or not at all, and never twice. The files of one batch do appear one after the other.

Must import neither pyspark nor pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from nsq.spark.pipelines.files import Files, Move

STAGING, DECISIONS = "_staging", "_batches"


class Batch(NamedTuple):
    """``query`` is the id that a checkpoint keeps: a new checkpoint counts from 0 under another id."""

    query: str
    number: int


class Written(NamedTuple):
    """What went into a batch: rows, and bytes of their bodies."""

    rows: int
    bytes: int


class Published(NamedTuple):
    """``again``: it had been decided before, by a run that was cut short."""

    rows: int
    bytes: int
    files: int
    again: bool


class _Decision(NamedTuple):
    written: Written
    moves: list[Move]

    def encode(self) -> str:
        return json.dumps(
            {"rows": self.written.rows, "bytes": self.written.bytes, "moves": self.moves}, indent=1
        )

    @classmethod
    def decode(cls, text: str) -> _Decision:
        read = json.loads(text)
        return cls(Written(read["rows"], read["bytes"]), [Move(*move) for move in read["moves"]])


def publish(
    files: Files, batch: Batch, write: Callable[[str], Written], *, suffix: str = ".parquet"
) -> Published:
    """``write(uri)`` is to put the batch's files there; they are moved to where it put them, seen from
    there, below the root.
    """
    path = f"{DECISIONS}/{batch.query}/{batch.number:09d}.json"
    decided = files.read(path)
    if decided is not None:
        decision = _Decision.decode(decided)
    else:
        _forget(files, batch)
        decision = _stage(files, batch, write, suffix)
        files.write(path, decision.encode())
    files.move(decision.moves)
    files.delete(_staging(batch))
    return Published(*decision.written, files=len(decision.moves), again=decided is not None)


def _forget(files: Files, batch: Batch) -> None:
    """Earlier decisions: once there is a later batch, Spark does not ask for them again."""
    for entry in files.walk(f"{DECISIONS}/{batch.query}"):
        files.delete(entry.path)


def _stage(files: Files, batch: Batch, write: Callable[[str], Written], suffix: str) -> _Decision:
    staging = _staging(batch)
    files.delete(staging)  # of an earlier try, which came to no decision
    written = write(files.uri(staging))
    staged = [entry.path for entry in files.walk(staging) if entry.path.endswith(suffix)]
    files.persist(staged)
    moves = [Move(path, _target(path, staging, batch, place)) for place, path in enumerate(staged)]
    return _Decision(written, moves)


def _target(path: str, staging: str, batch: Batch, place: int) -> str:
    """In the same folder below the root; the name says which batch it came from, and is like no other."""
    folder, _, name = path.removeprefix(f"{staging}/").rpartition("/")
    kind = name[name.index(".") :]  # .zstd.parquet
    renamed = f"part-{batch.query[:13]}-{batch.number:09d}-{place:05d}{kind}"
    return f"{folder}/{renamed}" if folder else renamed


def _staging(batch: Batch) -> str:
    return f"{STAGING}/{batch.query}/{batch.number:09d}"
