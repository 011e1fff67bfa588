"""What a clone of this tree would hold, copied elsewhere: ``tree.py DIRECTORY``.

That is what git knows or would take, as it is now; without git, all but what only tools write. Uses
the standard library only.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
BY_PRODUCTS = {".git", ".venv", "__pycache__", "build", "dist", "htmlcov"}


def files() -> list[str]:
    """Paths below the root, with slashes, sorted."""
    names = listed_by_git()
    if names is None:
        names = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if is_source(path)}
    # What was deleted and is not committed yet is listed all the same.
    return sorted(name for name in names if (ROOT / name).is_file())


def listed_by_git() -> set[str] | None:
    """None where there is no git, or where it will not say: a tree that belongs to somebody else."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return None
    done = subprocess.run(LIST, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    return {name.decode() for name in done.stdout.split(b"\0") if name} if done.returncode == 0 else None


def is_source(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    made = BY_PRODUCTS.intersection(parts) or parts[0].endswith((".egg-info", "_cache"))
    return path.is_file() and not made and parts[0] != ".hypothesis" and not parts[0].startswith(".coverage")


def copy_to(directory: Path) -> list[str]:
    """What was copied."""
    names = files()
    for name in names:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return names


if __name__ == "__main__":
    copy_to(Path(sys.argv[1]))
