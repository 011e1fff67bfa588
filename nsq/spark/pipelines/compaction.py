"""``compact``: the many small files of an archive's past hours become few large ones. Needs no Spark, and
loads pyarrow only when it merges.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nsq.errors import ConfigError, UsageError
from nsq.spark.pipelines.files import FileEntry, local_path
from nsq.spark.pipelines.merging import merge
from nsq.spark.pipelines.streaming import OnProgress, Progress
from nsq.spark.pipelines.swap import JOBS, Swap, finish, unfinished

_HOUR = re.compile(r"date=(\d{4}-\d{2}-\d{2})/hour=(\d{1,2})")
_MERGED = re.compile(r"merged-(\d{6})-.*")


@dataclasses.dataclass(frozen=True)
class CompactResult:
    """``hours`` were rewritten; files and bytes are those of these hours, before and after."""

    hours: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rows: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class _Hour:
    folder: str
    files: Sequence[FileEntry]  # by name, not by path
    groups: Sequence[Sequence[str]]  # each becomes one file


def compact(
    path: str | os.PathLike[str],
    *,
    settle: float = 3600.0,
    target_bytes: int = 256 << 20,
    linger: float = 5.0,
    now: datetime.datetime | None = None,
    stop: threading.Event | None = None,
    progress: OnProgress | None = None,
) -> CompactResult:
    """Merge the files of every hour that has been over for ``settle`` seconds, up to ``target_bytes`` each.

        nsq.spark.compact("/data/orders")

    ``archive`` may go on writing and readers may go on reading meanwhile. Whoever lists an hour finds its old
    files or its new ones, never both, never neither, and a crash at any point leaves it at that: the next
    call, of this or of ``archive``, tidies up. Who had listed the old files and comes to open them later gets
    "file not found", an error and no wrong result, and has to start again. Old files are deleted ``linger``
    seconds after they were replaced, so that no listing under way comes out short.

    That takes a file system of Linux that can exchange two folders in one step, which network file systems
    and object stores cannot: ConfigError there, with nothing done. ``stop`` ends it after the hour at hand.
    """
    if not (settle >= 0 and linger >= 0 and target_bytes > 0):
        raise UsageError(
            f"settle is {settle!r}, linger {linger!r}, target_bytes {target_bytes!r}: none may be negative"
        )
    moment = now or datetime.datetime.now(datetime.UTC)
    return compact_hours(
        _root(path),
        moment - datetime.timedelta(seconds=settle),
        target_bytes=target_bytes,
        linger=linger,
        stop=stop or threading.Event(),
        progress=progress or (lambda _: None),
        step=lambda _: None,
    )


def compact_hours(
    root: Path,
    over_before: datetime.datetime,
    *,
    target_bytes: int,
    linger: float,
    stop: threading.Event,
    progress: OnProgress,
    step: Callable[[str], None],
) -> CompactResult:
    """``step`` is told what comes next: a place to crash at."""
    start = time.monotonic()
    result = CompactResult(0, 0, 0, 0, 0, 0, 0.0)
    swapped: list[Swap] = []
    with _alone(root):
        finish(unfinished(root))
        for hour in _worthwhile(root, over_before, target_bytes):
            if stop.is_set():
                break
            swap, rows = _compact_hour(root, hour, step)
            swapped.append(swap)
            result = _sum(result, root, hour, rows, time.monotonic() - start)
            progress(_progress(result))
        if swapped:
            stop.wait(linger)
        for swap in swapped:
            step("clean")
            swap.clean()
    return dataclasses.replace(result, seconds=time.monotonic() - start)


def recover(path: str | os.PathLike[str]) -> None:
    """Tidy up behind a ``compact`` that has crashed; nothing, while one is running, or in an object store."""
    local = local_path(path)
    if local is None or not os.path.isdir(os.path.join(local, JOBS)):
        return
    with contextlib.suppress(UsageError), _alone(Path(local)):
        finish(unfinished(Path(local)))


def _root(path: str | os.PathLike[str]) -> Path:
    local = local_path(path)
    if local is None:
        raise ConfigError(
            f"{os.fspath(path)} is not on this machine: compact needs a file system that can exchange two "
            "folders in one step; to get larger files in an object store, archive in larger batches"
        )
    if not os.path.isdir(local):
        raise UsageError(f"there is no archive at {local}")
    return Path(local)


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Only one process at a time; the lock ends with it."""
    (root / JOBS).mkdir(exist_ok=True)
    with (root / JOBS / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{root} is being compacted by another process") from None
        yield


def _worthwhile(root: Path, over_before: datetime.datetime, target_bytes: int) -> Iterator[_Hour]:
    for folder in sorted(root.glob("date=*/hour=*")):
        name = folder.relative_to(root).as_posix()
        end = end_of(name)
        if end is None or end > over_before:
            continue
        files = [FileEntry(each.name, each.stat().st_size) for each in sorted(folder.glob("[!._]*.parquet"))]
        groups = grouped(files, target_bytes)
        if groups:
            yield _Hour(name, files, groups)


def end_of(folder: str) -> datetime.datetime | None:
    """The end of the hour that ``date=2026-03-01/hour=07`` is for; None when it is for none."""
    found = _HOUR.fullmatch(folder)
    if found is None:
        return None
    try:
        day = datetime.datetime.strptime(found[1], "%Y-%m-%d").replace(tzinfo=datetime.UTC)
    except ValueError:
        return None
    return day + datetime.timedelta(hours=int(found[2]) + 1)


def grouped(files: Sequence[FileEntry], target_bytes: int) -> list[list[str]]:
    """Which to merge into one each: in order, up to the target. One that is half as large is left alone."""
    groups: list[list[str]] = []
    size = target_bytes
    for file in files:
        if file.bytes * 2 >= target_bytes:
            continue
        if size + file.bytes > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file.path)
        size += file.bytes
    return [group for group in groups if len(group) > 1]


def next_generation(names: Sequence[str]) -> int:
    """Of merged files: a name is never used again for something else."""
    return 1 + max((int(found[1]) for name in names if (found := _MERGED.fullmatch(name))), default=0)


def _compact_hour(root: Path, hour: _Hour, step: Callable[[str], None]) -> tuple[Swap, int]:
    names = [file.path for file in hour.files]
    generation = next_generation(names)
    swap = Swap(root, hour.folder, frozenset(names), generation)
    rows = 0

    def fill(place: Path) -> None:
        nonlocal rows
        merged = {name for group in hour.groups for name in group}
        for name in names:
            if name not in merged:
                os.link(swap.target / name, place / name)
        for number, group in enumerate(hour.groups):
            rows += merge(
                [swap.target / name for name in group], place, f"merged-{generation:06d}-{number:05d}"
            )

    for name, act in (
        ("prepare", lambda: swap.prepare(fill)),
        ("decide", swap.decide),
        ("exchange", swap.exchange),
        ("carry over", swap.carry_over),
    ):
        step(name)
        act()
    return swap, rows


def _sum(so_far: CompactResult, root: Path, hour: _Hour, rows: int, seconds: float) -> CompactResult:
    after = [path.stat().st_size for path in (root / hour.folder).glob("[!._]*.parquet")]
    return CompactResult(
        hours=so_far.hours + 1,
        files_before=so_far.files_before + len(hour.files),
        files_after=so_far.files_after + len(after),
        bytes_before=so_far.bytes_before + sum(file.bytes for file in hour.files),
        bytes_after=so_far.bytes_after + sum(after),
        rows=so_far.rows + rows,
        seconds=seconds,
    )


def _progress(result: CompactResult) -> Progress:
    rate = result.rows / result.seconds if result.seconds else 0.0
    return Progress(result.rows, result.bytes_before, result.hours, result.seconds, rate)
