"""Puts the files of a batch into a folder exactly once, however often Spark runs the batch.

    <root>/_staging/<query>/<batch>/…        the files that Spark wrote; readers ignore them
    <root>/_batches/<query>/<batch>.json     the decision: the list of files and where to move them
    <root>/date=…/hour=…/part-….parquet      the files that readers see

Spark runs a batch again unless it has recorded its end, so every step of a batch can happen twice. The
decision, one small file that is written atomically, is the commit. Without it, a new run discards the staged
files and writes them again, perhaps divided differently. With it, a new run writes nothing, and only makes
the moves that are missing. Each file is moved atomically to a unique name, so readers see it completely or
not at all, and never twice. The files of one batch do appear one after the other.

Paths are relative to a root, with / between names, on a local file system or any that Hadoop supports. Must
not import pyspark or pyarrow: ``HadoopFiles`` gets a session as an argument.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nsq.errors import UsageError
from nsq.fsync import sync_path
from nsq.spark.wal.disk import Disk, replace_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(location: str | os.PathLike[str]) -> str | None:
    """The absolute path of a location on this machine; None for ``s3a://…`` and the like."""
    text = os.fspath(location)
    if not _SCHEME.match(text):
        return os.path.abspath(text)
    scheme, _, path = text.partition(":")
    # Like Hadoop, which does not decode the path: file:///a%20b is a folder called a%20b.
    return os.path.abspath("/" + path.lstrip("/")) if scheme.lower() == "file" else None


def below(location: str | os.PathLike[str], *names: str) -> str:
    """Join names to a location: ``below("s3a://bucket/orders", "_checkpoint")``, or a local path."""
    local = local_path(location)
    if local is not None:
        return os.path.join(local, *names)
    return "/".join([os.fspath(location).rstrip("/"), *names])


def open_files(location: str | os.PathLike[str], spark: SparkSession) -> Files:
    local = local_path(location)
    if local is not None:
        return LocalFiles(local)
    if not hasattr(spark, "sparkContext"):
        raise UsageError(
            f"{os.fspath(location)} is on a file system of Hadoop, which Spark Connect does not let this "
            "program reach: give a directory, or use a session without Connect"
        )
    return HadoopFiles(os.fspath(location), spark)


def check_writable(name: str, location: str) -> None:
    """Try to write into a local folder, which is created. Raises UsageError, before Spark starts; ``name`` is
    that of the argument.
    """
    local = local_path(location)
    if local is None:
        return
    try:
        os.makedirs(local, exist_ok=True)
        with tempfile.TemporaryFile(dir=local):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{name} is {local}, which cannot be written: {reason}; choose another") from None


class LocalFiles:
    """A local folder. It fsyncs what it writes and moves, which Spark itself does not do."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def uri(self, path: str) -> str:
        """The URI of a path, for Spark."""
        return f"file://{self.root / path}"

    def walk(self, folder: str) -> list[str]:
        """The sorted paths of all files below a folder; empty when it does not exist."""
        return sorted(
            Path(place, name).relative_to(self.root).as_posix()
            for place, _, names in os.walk(self.root / folder)
            for name in names
        )

    def read(self, path: str) -> str | None:
        """The content of a file; None when it is missing."""
        try:
            return (self.root / path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write(self, path: str, text: str) -> None:
        """Write a file atomically."""
        target = self.root / path
        changed = _make_folder(target.parent)
        replace_file(Disk(), target, text.encode(), 0o666)
        for folder in changed:
            sync_path(folder)

    def persist(self, paths: Iterable[str]) -> None:
        """Fsync files that another process wrote."""
        for path in paths:
            sync_path(self.root / path)

    def move(self, moves: Iterable[Move]) -> None:
        """Move each file atomically; skip a missing source, which was moved before."""
        changed: set[Path] = set()
        for source, target in moves:
            place = self.root / target
            changed |= _make_folder(place.parent)
            with contextlib.suppress(FileNotFoundError):
                (self.root / source).replace(place)
        for folder in changed:
            sync_path(folder)

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its content; a missing one is no error."""
        place = self.root / path
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)


def _make_folder(folder: Path) -> set[Path]:
    """Create a folder. Returns the folders to fsync: this one, and those that got a new entry."""
    missing = [place for place in (folder, *folder.parents) if not place.is_dir()]
    folder.mkdir(parents=True, exist_ok=True)
    return {folder, *(place.parent for place in missing)}


class HadoopFiles:
    """Like ``LocalFiles``, on a file system of Hadoop. The usual object stores make closed files durable."""

    def __init__(self, root: str, spark: SparkSession) -> None:
        self._root = root.rstrip("/")
        self._jvm: Any = spark.sparkContext._jvm
        context: Any = spark.sparkContext._jsc
        self._files: Any = self._path("").getFileSystem(context.hadoopConfiguration())

    def uri(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def walk(self, folder: str) -> list[str]:
        place = self._path(folder)
        if not self._files.exists(place):
            return []
        # Listed paths are qualified: the file system adds its default scheme, host and user.
        start = len(self._files.makeQualified(self._path("")).toString().rstrip("/")) + 1
        found, listing = [], self._files.listFiles(place, True)
        while listing.hasNext():
            found.append(listing.next().getPath().toString()[start:])
        return sorted(found)

    def read(self, path: str) -> str | None:
        place = self._path(path)
        if not self._files.exists(place):
            return None
        with contextlib.closing(self._files.open(place)) as stream:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))

    def write(self, path: str, text: str) -> None:
        folder, _, name = path.rpartition("/")
        temporary = f"{folder}/.{name}.new"
        with contextlib.closing(self._files.create(self._path(temporary), True)) as stream:
            stream.write(bytearray(text.encode()))
        self._replace(temporary, path)

    def persist(self, paths: Iterable[str]) -> None:
        pass

    def move(self, moves: Iterable[Move]) -> None:
        for source, target in moves:
            if self._files.exists(self._path(source)):
                self._files.mkdirs(self._path(target).getParent())
                self._replace(source, target)

    def _replace(self, source: str, target: str) -> None:
        # Delete first, because some renames do not replace; a crash in between means "not written". Where a
        # rename copies, the target may be a complete copy whose source was not deleted yet.
        self._files.delete(self._path(target), False)
        if not self._files.rename(self._path(source), self._path(target)):
            raise OSError(f"{self.uri(source)} cannot be renamed to {self.uri(target)}")

    def delete(self, path: str) -> None:
        self._files.delete(self._path(path), True)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.uri(path))


Files = LocalFiles | HadoopFiles
#: The source and target of a move.
Move = tuple[str, str]


class Batch(NamedTuple):
    """A batch of a query. ``query`` is the id in the checkpoint: a new checkpoint has a new id, and counts
    from 0."""

    query: str
    number: int


class Written(NamedTuple):
    """The rows of a batch, the bytes of their bodies, and the number of files."""

    rows: int
    bytes: int
    files: int = 0


def publish(files: Files, batch: Batch, write: Callable[[str], Written]) -> Written:
    """Publish a batch: ``write(uri)`` writes its Parquet files to a staging folder, and this moves them to
    the same folders below the root, under names that contain the batch.
    """
    decisions, name = f"_batches/{batch.query}", f"{batch.number:09d}"
    staging = f"_staging/{batch.query}/{name}"
    text = files.read(f"{decisions}/{name}.json")
    if text is None:
        # Delete earlier decisions: Spark never repeats a batch after it has started a later one.
        for path in files.walk(decisions):
            files.delete(path)
        files.delete(staging)  # of an earlier run that wrote no decision
        written = write(files.uri(staging))
        staged = [path for path in files.walk(staging) if path.endswith(".parquet")]
        files.persist(staged)
        moves: list[Move] = []
        for place, path in enumerate(staged):
            folder, slash, file = path.removeprefix(f"{staging}/").rpartition("/")
            kind = file[file.index(".") :]  # .zstd.parquet
            moves.append((path, f"{folder}{slash}part-{batch.query[:13]}-{name}-{place:05d}{kind}"))
        text = json.dumps({"rows": written.rows, "bytes": written.bytes, "moves": moves}, indent=1)
        files.write(f"{decisions}/{name}.json", text)
    decided = json.loads(text)
    files.move(decided["moves"])
    files.delete(staging)
    return Written(decided["rows"], decided["bytes"], len(decided["moves"]))
