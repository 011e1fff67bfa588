"""The files of a batch, put into a folder exactly once, however often the batch is run.

    <root>/_staging/<query>/<batch>/…        what Spark wrote; readers do not look there
    <root>/_batches/<query>/<batch>.json     the decision: which of those files goes where
    <root>/date=…/hour=…/part-….parquet      where readers look

Spark runs a batch again unless it has noted its end, so whatever is done by a batch happens once or twice.
Here it is the decision that counts, one small file that is there or not: without it, whatever was staged is
thrown away and written anew, perhaps cut into other files; with it, nothing is written again, and the moves
that are still missing are made up for. A file is moved in one step and under a name of its own, so readers
find it whole or not at all, and never twice. The files of one batch do appear one after the other.

Paths are relative to a root, with / between names, on a local file system or on whatever Hadoop knows. Must
import neither pyspark nor pyarrow: ``HadoopFiles`` is handed a session.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(location: str | os.PathLike[str]) -> str | None:
    """The absolute path of a location on this machine; None for ``s3a://…`` and the like."""
    text = os.fspath(location)
    if not _SCHEME.match(text):
        return os.path.abspath(text)
    scheme, _, path = text.partition(":")
    # Like Hadoop, which takes what follows as it is: file:///a%20b is a folder of that name.
    return os.path.abspath("/" + path.lstrip("/")) if scheme.lower() == "file" else None


def below(location: str | os.PathLike[str], *names: str) -> str:
    """``below("s3a://bucket/orders", "_checkpoint")``, and the same for local paths."""
    local = local_path(location)
    if local is not None:
        return os.path.join(local, *names)
    return "/".join([os.fspath(location).rstrip("/"), *names])


def open_files(location: str | os.PathLike[str], spark: SparkSession) -> Files:
    local = local_path(location)
    return LocalFiles(local) if local is not None else HadoopFiles(os.fspath(location), spark)


class LocalFiles:
    """What is written or moved survives a power cut: Spark itself leaves that to chance."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def uri(self, path: str) -> str:
        """What Spark calls it."""
        return f"file://{self.root / path}"

    def walk(self, folder: str) -> list[str]:
        """The paths of all files below, sorted; none when there is no such folder."""
        return sorted(
            Path(place, name).relative_to(self.root).as_posix()
            for place, _, names in os.walk(self.root / folder)
            for name in names
        )

    def read(self, path: str) -> str | None:
        """None when it is not there."""
        try:
            return (self.root / path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write(self, path: str, text: str) -> None:
        """All of it or nothing."""
        target = self.root / path
        changed = _make_folder(target.parent)
        # Hidden from readers of the folder, should it be left behind.
        temporary = target.with_name(f".{target.name}.new")
        temporary.write_text(text, encoding="utf-8")
        sync(temporary)
        temporary.replace(target)
        for folder in changed:
            sync(folder)

    def persist(self, paths: Iterable[str]) -> None:
        """Make what another process wrote there durable."""
        for path in paths:
            sync(self.root / path)

    def move(self, moves: Iterable[Move]) -> None:
        """Each in one step; a source that is not there has been moved before."""
        changed: set[Path] = set()
        for source, target in moves:
            place = self.root / target
            changed |= _make_folder(place.parent)
            with contextlib.suppress(FileNotFoundError):
                (self.root / source).replace(place)
        for folder in changed:
            sync(folder)

    def delete(self, path: str) -> None:
        """A file, or a folder with all it holds; nothing when it is not there."""
        place = self.root / path
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)


def _make_folder(folder: Path) -> set[Path]:
    """The folder itself, and those above that have a new entry by it: all have to be synced."""
    missing = [place for place in (folder, *folder.parents) if not place.is_dir()]
    folder.mkdir(parents=True, exist_ok=True)
    return {folder, *(place.parent for place in missing)}


def sync(path: Path) -> None:
    """fsync of a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HadoopFiles:
    """The same on a file system of Hadoop's. For the usual object stores, closed is durable."""

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
        # The file system completes the root by what it takes for granted: scheme, host, user.
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
        # Not all renames replace: a crash in between leaves nothing, which is "not written". And where
        # renaming is copying, there may be a copy that was complete before its source could be deleted.
        self._files.delete(self._path(target), False)
        if not self._files.rename(self._path(source), self._path(target)):
            raise OSError(f"{self.uri(source)} cannot be renamed to {self.uri(target)}")

    def delete(self, path: str) -> None:
        self._files.delete(self._path(path), True)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.uri(path))


Files = LocalFiles | HadoopFiles
#: From and to.
Move = tuple[str, str]


class Batch(NamedTuple):
    """``query`` is the id that a checkpoint keeps: a new checkpoint counts from 0 under another id."""

    query: str
    number: int


class Written(NamedTuple):
    """What went into a batch: rows, bytes of their bodies, and the files that they became."""

    rows: int
    bytes: int
    files: int = 0


def publish(files: Files, batch: Batch, write: Callable[[str], Written]) -> Written:
    """``write(uri)`` puts the batch's Parquet files there; they are moved to the same folders below the root,
    under names that say which batch they came from.
    """
    decisions, name = f"_batches/{batch.query}", f"{batch.number:09d}"
    staging = f"_staging/{batch.query}/{name}"
    text = files.read(f"{decisions}/{name}.json")
    if text is None:
        # Earlier decisions: once there is a later batch, Spark does not ask for them again.
        for path in files.walk(decisions):
            files.delete(path)
        files.delete(staging)  # of an earlier try, which came to no decision
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
