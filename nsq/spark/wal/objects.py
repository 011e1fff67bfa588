"""Objects in a store, by five calls, which are all that a log needs:

    put_new("m/one.json", b"…")                     only if there is none
    put_match("m/one.json", b"…", tag)              only if it has not changed
    get("m/one.json")
    list_after("m/")
    delete_many(["m/one.json"])

``Folder`` (``folder.py``) keeps objects in a directory, ``Bucket`` in S3 and stores like it by obstore,
``Memory`` in this process, for tests. Objects appear whole, and a conditional put has one winner. Errors name
the object but never the URI's credentials. A directory also has locks, which end with their process.

A put whose answer is lost may have succeeded: ``replace`` and ``create`` find that out. obstore hangs in a
process that was forked after its parent had used it, so a ``Bucket`` refuses to work there.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

from nsq.errors import ConfigError, WalError, how_to_install
from nsq.spark.wal.ownership import FileLock


class Conflict(WalError):
    """A conditional put found another object than it expected."""


class Found(NamedTuple):
    """An object. ``tag`` changes with every put."""

    data: bytes
    tag: str


class Entry(NamedTuple):
    """An object as a listing shows it. ``modified`` is in seconds since 1970, by the store's clock."""

    name: str
    tag: str
    size: int
    modified: float


class Objects(Protocol):
    """The five calls. All are thread-safe, and raise WalError."""

    def path(self, name: str) -> str:
        """The object's name for messages."""

    def put_new(self, name: str, data: bytes) -> str:
        """Write a new object; return its tag. Raises Conflict when there is one."""

    def put_match(self, name: str, data: bytes, tag: str) -> str:
        """Overwrite the object that has this tag; return the new one. Raises Conflict when it has another or
        is missing."""

    def get(self, name: str) -> Found | None:
        """The object; None when it is missing."""

    def list_after(self, prefix: str, after: str = "", most: int | None = None) -> list[Entry]:
        """The objects whose names begin with ``prefix`` and sort behind ``after``, sorted by name; the first
        ``most`` of them. ``prefix`` is empty or ends in a slash."""

    def delete_many(self, names: Iterable[str]) -> None:
        """Delete objects; missing ones are no error."""

    def hold(self, name: str) -> FileLock | None:
        """Lock an object, which need not exist, until the process ends; None where the store has no locks.
        Raises Conflict while another process holds it; a process that looks whether it is held holds it for
        an instant."""

    def is_held(self, name: str) -> bool | None:
        """Whether a process holds the object; None where the store has no locks."""


class Raced(WalError):
    """The store refused to decide between two requests at once; one of them may be an earlier attempt."""


def create(store: Objects, name: str, data: bytes) -> str:
    """Put a new object of which no other process writes the same bytes; return its tag. Raises Conflict when
    another process has put one."""
    try:
        return store.put_new(name, data)
    except Conflict:
        return _ours(store, name, data, None)


def replace(store: Objects, name: str, data: bytes, tag: str) -> str:
    """Like ``create``, for an object that has ``tag``."""
    try:
        return store.put_match(name, data, tag)
    except Conflict:
        return _ours(store, name, data, tag)


def _ours(store: Objects, name: str, data: bytes, tag: str | None) -> str:
    """The tag of the object if it has our bytes: an earlier attempt succeeded, and its answer was lost.

    If the object is as before, S3 only refused to decide between two requests at once (409, which may be two
    attempts of our own): then this raises Raced, and the caller tries again."""
    found = store.get(name)
    if found is not None and found.data == data:
        return found.tag
    if (found.tag if found else None) == tag:
        raise Raced(f"{store.path(name)} cannot be written: the store refused it because of a race")
    raise Conflict(f"{store.path(name)} was written by another process")


def refuse_unconditional(store: Objects) -> None:
    """Raise WalError if the store ignores the conditions of puts: two processes would overwrite each other's
    objects, and lose messages."""
    name = f".probe-{uuid.uuid4().hex}"  # hidden from others that prepare the log now
    ignored = []
    try:
        tag = create(store, name, b"1")
        try:
            store.put_new(name, b"2")
            ignored.append("If-None-Match")
        except Conflict:
            pass
        try:
            store.put_match(name, b"3", f'"{hashlib.md5(b"0", usedforsecurity=False).hexdigest()}"')
            ignored.append("If-Match")
        except Conflict:
            pass
        if not ignored:
            replace(store, name, b"4", tag)
    finally:
        store.delete_many([name])
    if ignored:
        raise WalError(
            f"{store.path('')} ignores {' and '.join(ignored)}, without which two receivers could overwrite "
            "each other's objects: a log needs a store with conditional puts, such as S3 has"
        )


# A store on the network


#: The longest that one request may take, and all attempts of a call, in seconds: less than nsqd's usual
#: message timeout of 60 s. Callers that must not give up try again.
TIMEOUT, ATTEMPTS_TIMEOUT, ATTEMPTS = 10, 20, 3

#: Schemes that obstore knows as well. Only S3 is tried.
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")

_used_by = 0  # the process that has used obstore


class Bucket:
    """The objects below a URI such as ``s3://bucket/folder?endpoint=http://host:9000``.

    What stands behind the ``?`` are obstore's options. Credentials come from the environment, as for other
    programs: ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``, or the machine's role.
    """

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        scheme = parts.scheme.lower()
        if scheme not in SCHEMES:
            raise ConfigError(
                f"wal begins with {scheme}:, but must be a directory or begin with s3:, gs: or az: (HDFS and "
                "other file systems of Hadoop cannot hold a log; a directory on NFS can)"
            )
        if "@" in parts.netloc and scheme not in ("abfs", "abfss"):
            raise ConfigError(
                "wal holds credentials: leave them out of the URI, and set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY in the environment of the driver, the executors and the receivers"
            )
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise ConfigError(
                f"a log in an object store needs obstore ({error}): {how_to_install('s3')}"
            ) from None
        self._obstore: Any = obstore
        self._shown = f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        options = dict(parse_qsl(parts.query))
        client = {"timeout": f"{TIMEOUT}s", "connect_timeout": "5s"}
        if options.get("endpoint", os.environ.get("AWS_ENDPOINT_URL", "")).startswith("http:"):
            client["allow_http"] = "true"
        retries = {"max_retries": ATTEMPTS - 1, "retry_timeout": timedelta(seconds=ATTEMPTS_TIMEOUT)}
        try:
            open_store: Any = from_url
            self._store = open_store(
                f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}",
                config=options or None,
                client_options=client,
                retry_config=retries,
            )
        except Exception as error:
            raise ConfigError(f"wal cannot be opened: {_reason(error)}") from None

    def path(self, name: str) -> str:
        return f"{self._shown}/{name}" if name else self._shown

    def put_new(self, name: str, data: bytes) -> str:
        return self._put(name, data, "create")

    def put_match(self, name: str, data: bytes, tag: str) -> str:
        return self._put(name, data, {"e_tag": tag})

    def _put(self, name: str, data: bytes, mode: Any) -> str:
        done = self._call(name, "written", self._obstore.put, name, data, mode=mode, use_multipart=False)
        tag = done["e_tag"]
        if not tag:
            raise WalError(f"{self.path(name)}: the store answers without an ETag")
        return str(tag)

    def get(self, name: str) -> Found | None:
        try:
            got = self._call(name, "read", self._obstore.get, name)
            return Found(bytes(self._call(name, "read", lambda _: got.bytes())), str(got.meta["e_tag"]))
        except FileNotFoundError:
            return None

    def list_after(self, prefix: str, after: str = "", most: int | None = None) -> list[Entry]:
        def listed(store: Any) -> list[Entry]:
            chunks = self._obstore.list(store, prefix=prefix, offset=after or None)  # requests as it is read
            entries = itertools.islice(itertools.chain.from_iterable(chunks), most)
            return [
                Entry(one["path"], str(one["e_tag"]), one["size"], one["last_modified"].timestamp())
                for one in entries
            ]

        return sorted(self._call(prefix, "listed", listed))

    def delete_many(self, names: Iterable[str]) -> None:
        gone = list(names)
        if gone:
            self._call(gone[0], "deleted", self._obstore.delete, gone)

    def hold(self, name: str) -> None:
        return None

    is_held = hold

    def _call(self, name: str, what: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call obstore, and name the object in its errors. FileNotFoundError passes."""
        global _used_by
        if _used_by not in (0, os.getpid()):
            raise WalError(
                f"{self._shown} cannot be used in this process: it was forked from process {_used_by}, which "
                "had used an object store; start processes with subprocess or multiprocessing's spawn"
            )
        _used_by = os.getpid()
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            return call(self._store, *args, **kwargs)
        except FileNotFoundError as error:
            if isinstance(kwargs.get("mode"), dict):  # If-Match on a missing object
                raise Conflict(f"{self.path(name)} is missing") from None
            if what != "read":
                raise WalError(f"{self.path(name)} cannot be {what}: {_reason(error)}") from None
            raise
        except (AlreadyExistsError, PreconditionError):
            raise Conflict(f"{self.path(name)} was written by another process") from None
        except Exception as error:
            raise WalError(f"{self.path(name)} cannot be {what}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """The first line of obstore's error, which has many, without what Rust adds for debugging."""
    text = re.sub(r"\s+", " ", str(error).strip().partition("\n\n")[0])
    return text[:400] or type(error).__name__


# A store in this process


class Memory:
    """Objects in this process."""

    def __init__(self, name: str = "memory://log", *, now: Callable[[], float] = time.time) -> None:
        self._name = name
        self._now = now
        self._lock = threading.Lock()
        self._tags = 0
        self._objects: dict[str, tuple[bytes, Entry]] = {}

    def path(self, name: str) -> str:
        return f"{self._name}/{name}"

    def put_new(self, name: str, data: bytes) -> str:
        with self._lock:
            if name in self._objects:
                raise Conflict(f"{self.path(name)} exists")
            return self._put(name, data)

    def put_match(self, name: str, data: bytes, tag: str) -> str:
        with self._lock:
            if name not in self._objects or self._objects[name][1].tag != tag:
                raise Conflict(f"{self.path(name)} has changed")
            return self._put(name, data)

    def _put(self, name: str, data: bytes) -> str:
        self._tags += 1
        tag = f'"{self._tags}"'
        self._objects[name] = bytes(data), Entry(name, tag, len(data), self._now())
        return tag

    def get(self, name: str) -> Found | None:
        with self._lock:
            found = self._objects.get(name)
        return None if found is None else Found(found[0], found[1].tag)

    def list_after(self, prefix: str, after: str = "", most: int | None = None) -> list[Entry]:
        assert not prefix or prefix.endswith("/")
        with self._lock:
            names = [name for name in self._objects if name.startswith(prefix) and name > after]
            return [self._objects[name][1] for name in sorted(names)[:most]]

    def delete_many(self, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                self._objects.pop(name, None)

    def hold(self, name: str) -> None:
        return None

    is_held = hold
