"""A file system of pyarrow as the object log needs it: whole objects put, got, listed and deleted, below one
root. Its errors end here: they become WalError, which names the path but never the URI, for that may hold
credentials.

A segment must appear whole or not at all. Object stores promise that; elsewhere (HDFS, a local directory) it
is written under a hidden name and moved.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
from pyarrow import fs

from nsq.errors import WalError

_APPEAR_WHOLE = {"s3", "gcs", "abfs"}
_HIDDEN = "."


class Found(NamedTuple):
    """What a listing says of an object."""

    path: str  # below the root
    size: int


class Bucket:
    """Paths are relative to ``root``. Any number of threads may use it."""

    def __init__(self, filesystem: fs.FileSystem, root: str) -> None:
        self._files = filesystem
        self._root = root.rstrip("/")
        self._appear_whole = _kind(filesystem) in _APPEAR_WHOLE

    def path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def make_folder(self, name: str) -> None:
        with _named(self.path(name), "cannot be made"):
            self._files.create_dir(self.path(name), recursive=True)

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        """When this raises, it may be there all the same."""
        folder, _, last = name.rpartition("/")
        draft = name if self._appear_whole else f"{folder}/{_HIDDEN}{last}-{uuid.uuid4().hex[:8]}".lstrip("/")
        with _named(self.path(name), "cannot be written"):
            with self._files.open_output_stream(self.path(draft)) as out:
                out.write(data)
            if draft != name:
                self._files.move(self.path(draft), self.path(name))

    def rewrite(self, name: str, data: bytes) -> None:
        """A small object that may be there already; on what is no object store it is short for an instant."""
        path = self.path(name)
        with _named(path, "cannot be written"), self._files.open_output_stream(path) as out:
            out.write(data)

    def get(self, name: str) -> pa.Buffer | None:
        """None when it is not there."""
        with _named(self.path(name), "cannot be read"):
            try:
                with self._files.open_input_file(self.path(name)) as source:
                    return source.read_buffer(source.size())
            except FileNotFoundError:
                return None

    def size(self, name: str) -> int | None:
        with _named(self.path(name), "cannot be looked at"):
            found = self._files.get_file_info(self.path(name))
        return int(found.size) if found.type == fs.FileType.File else None

    def delete(self, name: str) -> None:
        """One that is gone already is fine."""
        with _named(self.path(name), "cannot be deleted"), contextlib.suppress(FileNotFoundError):
            self._files.delete_file(self.path(name))

    def delete_folder(self, name: str) -> None:
        """With everything in it."""
        with _named(self.path(name), "cannot be deleted"), contextlib.suppress(FileNotFoundError):
            self._files.delete_dir(self.path(name))

    def names(self) -> list[str]:
        """What lies directly below the root, folders too, but not what is hidden."""
        return sorted(name for name, _ in self._list(recursive=False, folders=True))

    def everything(self) -> list[Found]:
        """All objects: one request, or one per thousand."""
        return self._list(recursive=True, folders=False)

    def folders(self) -> list[str]:
        """Those directly below the root, as far as the store knows folders that hold nothing."""
        with_folders = {name for name, size in self._list(recursive=False, folders=True) if size < 0}
        return sorted(with_folders)

    def _list(self, recursive: bool, folders: bool) -> list[Found]:
        selector = fs.FileSelector(self._root, allow_not_found=True, recursive=recursive)
        with _named(self._root, "cannot be listed"):
            infos = self._files.get_file_info(selector)
        return [
            Found(info.path[len(self._root) :].lstrip("/"), int(info.size) if info.is_file else -1)
            for info in infos
            if (folders or info.is_file) and not info.base_name.startswith(_HIDDEN)
        ]


def _kind(filesystem: fs.FileSystem) -> str:
    while isinstance(filesystem, fs.SubTreeFileSystem):
        filesystem = filesystem.base_fs
    return str(filesystem.type_name)


@contextlib.contextmanager
def _named(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise WalError(f"{path} {what}: {error}") from error
