"""How far a replay has come, in a small file. Knows no clock, and nothing of Spark."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from nsq.errors import UsageError
from nsq.spark.pipelines.files import make_folder, sync


class ArchivePosition(NamedTuple):
    """Where a message stands in the order of an archive; one that was delivered twice stands there twice."""

    timestamp_ns: int
    nsqd: str
    id: str


@dataclasses.dataclass(frozen=True)
class Mark:
    """After ``at``, of whose messages ``repeated`` are done; ``rows`` and ``bytes`` so far."""

    at: ArchivePosition | None = None
    repeated: int = 0
    rows: int = 0
    bytes: int = 0

    def after(self, position: ArchivePosition, size: int) -> Mark:
        repeated = self.repeated + 1 if position == self.at else 1
        return Mark(position, repeated, self.rows + 1, self.bytes + size)


class Bookmark:
    """The file, and the job that it belongs to: what is replayed, and where to."""

    def __init__(self, path: str | os.PathLike[str], job: Mapping[str, object]) -> None:
        self.path = Path(path)
        self._job = dict(job)

    def load(self) -> Mark:
        try:
            read = json.loads(self.path.read_text(encoding="utf-8"))
            job, at = read["job"], read["at"]
            place = Mark(ArchivePosition(*at) if at else None, read["repeated"], read["rows"], read["bytes"])
        except FileNotFoundError:
            return Mark()
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.path} is no state of a replay ({error}): name another, or delete it"
            ) from None
        differing = [name for name in self._job if job.get(name) != self._job[name]]
        if differing:
            name = differing[0]
            raise UsageError(
                f"{self.path} belongs to another replay, with {name} {job.get(name)!r} instead of "
                f"{self._job[name]!r}: name another, or delete it"
            )
        return place

    def save(self, place: Mark) -> None:
        changed = {self.path.parent, *make_folder(self.path.parent)}
        temporary = self.path.with_name(f"{self.path.name}.new")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"job": self._job, **dataclasses.asdict(place)}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        for folder in changed:
            sync(folder)

    def forget(self) -> None:
        """The replay is complete: the next one begins anew."""
        self.path.unlink(missing_ok=True)
