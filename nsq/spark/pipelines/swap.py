"""One folder of files takes the place of another, for good or not at all, whatever crashes on the way.

    <root>/_compaction/<name>/content/…     the new files; after the exchange, the old ones
    <root>/_compaction/<name>/job.json      what was there when it began: the decision to exchange
    <folder>/.compaction-<generation>       comes with the new files: where it lies tells what has happened

The exchange is one step of the kernel's, so who lists the folder finds all old files or all new ones. What
is put into the old folder while the new one is made is carried over: nobody has to stop writing.
Must import neither pyspark nor pyarrow.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from nsq.spark.pipelines.exchange import exchange
from nsq.spark.pipelines.files import sync

JOBS = "_compaction"


@dataclasses.dataclass(frozen=True)
class Swap:
    """One exchange: of ``folder`` below ``root``, which holds ``inputs`` as far as the new files know.
    ``generation`` is another one each time a folder is exchanged.
    """

    root: Path
    folder: str
    inputs: frozenset[str]
    generation: int

    @property
    def job(self) -> Path:
        return self.root / JOBS / self.folder.replace("/", ",")

    @property
    def content(self) -> Path:
        return self.job / "content"

    @property
    def target(self) -> Path:
        return self.root / self.folder

    @property
    def exchanged(self) -> bool:
        return (self.target / self._marker).exists()

    @property
    def _marker(self) -> str:
        return f".compaction-{self.generation}"

    def prepare(self, fill: Callable[[Path], None]) -> None:
        """Let ``fill`` make the new files; no reader sees any of it."""
        shutil.rmtree(self.job, ignore_errors=True)
        self.content.mkdir(parents=True)
        fill(self.content)
        (self.content / self._marker).touch()
        for place in (*self.content.iterdir(), self.content):
            sync(place)

    def decide(self) -> None:
        described = json.dumps(
            {"folder": self.folder, "inputs": sorted(self.inputs), "generation": self.generation}
        )
        temporary = self.job / "job.new"
        temporary.write_text(described, encoding="utf-8")
        sync(temporary)
        temporary.replace(self.job / "job.json")
        for place in (self.job, self.job.parent):
            sync(place)

    def exchange(self) -> None:
        exchange(self.content, self.target)
        sync(self.target.parent)
        sync(self.job)

    def carry_over(self) -> int:
        """What was put into the old folder since its files were listed; how many files."""
        late = [path for path in _visible(self.content) if path.name not in self.inputs]
        for path in late:
            path.replace(self.target / path.name)
        if late:
            sync(self.target)
        return len(late)

    def clean(self) -> None:
        """Forget the old files."""
        self.carry_over()  # a writer may have had its hand in the door during the exchange
        (self.target / self._marker).unlink(missing_ok=True)
        shutil.rmtree(self.job)


def unfinished(root: Path) -> list[Swap]:
    """Those that were exchanged, and not cleaned up, by a run that has crashed; what had not come so far is
    removed. Nobody else may be swapping meanwhile.
    """
    swaps = []
    for job in sorted(path for path in _listed(root / JOBS) if path.is_dir()):
        swap = _read(root, job)
        if swap is not None and swap.exchanged:
            swaps.append(swap)
        else:
            shutil.rmtree(job)
    return swaps


def finish(swaps: Iterable[Swap]) -> None:
    for swap in swaps:
        swap.carry_over()
        swap.clean()


def _read(root: Path, job: Path) -> Swap | None:
    try:
        read = json.loads((job / "job.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Swap(root, read["folder"], frozenset(read["inputs"]), read["generation"])


def _visible(folder: Path) -> list[Path]:
    return [path for path in _listed(folder) if not path.name.startswith((".", "_"))]


def _listed(folder: Path) -> list[Path]:
    return [folder / name for name in os.listdir(folder)] if folder.is_dir() else []
