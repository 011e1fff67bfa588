"""Which partitions of which batch are published completely: small files below the query's checkpoint.

    <checkpoint>/nsq-sink/<query>/<batch>/<partition>.json

The query's id is part of the path: a checkpoint that is deleted and begun anew has another one, and what
remains of its predecessor on some disk must not be taken for its own. Imports pyarrow only when used, and no
Spark.
"""

from __future__ import annotations

import dataclasses
import json
import posixpath
import re
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pyarrow import fs

_FOLDER = "nsq-sink"


@dataclasses.dataclass(frozen=True)
class Content:
    """What a partition held. The order of its rows does not count: a shuffle may change it."""

    rows: int = 0
    size: int = 0
    digest: int = 0

    def plus(self, bodies: Iterable[bytes]) -> Content:
        bodies = list(bodies)
        return Content(
            self.rows + len(bodies),
            self.size + sum(map(len, bodies)),
            (self.digest + sum(map(zlib.crc32, bodies))) % (1 << 64),
        )

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.size} bytes"


class Markers:
    """Of one query."""

    def __init__(self, files: fs.FileSystem, folder: str) -> None:
        self._files = files
        self._folder = folder

    @classmethod
    def of(cls, checkpoint: str, query: str) -> Self:
        files, path = _place(checkpoint)
        return cls(files, posixpath.join(path, _FOLDER, query))

    def read(self, batch: int, partition: int) -> Content | None:
        """None unless the partition was published completely."""
        try:
            with self._files.open_input_stream(self._path(batch, partition)) as stream:
                return Content(**json.loads(stream.read()))
        except (FileNotFoundError, ValueError, TypeError):
            # Cut off by a crash while it was written: as good as not there.
            return None

    def write(self, batch: int, partition: int, content: Content) -> None:
        path = self._path(batch, partition)
        self._files.create_dir(posixpath.dirname(path), recursive=True)
        with self._files.open_output_stream(path) as stream:
            stream.write(json.dumps(dataclasses.asdict(content)).encode())

    def forget_before(self, batch: int) -> None:
        """Of earlier batches, which are never run again."""
        from pyarrow import fs

        for entry in self._files.get_file_info(fs.FileSelector(self._folder, allow_not_found=True)):
            if entry.base_name.isdecimal() and int(entry.base_name) < batch:
                self._files.delete_dir(entry.path)

    def _path(self, batch: int, partition: int) -> str:
        return posixpath.join(self._folder, str(batch), f"{partition}.json")


def _place(location: str) -> tuple[fs.FileSystem, str]:
    """A path, or a URI as Hadoop spells them: ``file:/…``, ``hdfs://…``, ``s3a://…``."""
    from pyarrow import fs

    scheme, colon, rest = location.partition(":")
    if not colon or not re.fullmatch(r"[a-z][a-z0-9+.-]+", scheme):
        return fs.LocalFileSystem(), location
    if scheme == "file":
        return fs.LocalFileSystem(), "/" + rest.lstrip("/")
    files, path = fs.FileSystem.from_uri(f"{'s3' if scheme in ('s3a', 's3n') else scheme}:{rest}")
    return files, path
