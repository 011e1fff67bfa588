"""Copies the files that a clone of this tree would have: ``tree.py DIRECTORY``.

These are tracked and untracked, unignored files in their present state; without git, all files except those
that tools write. Uses the standard library only.
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
    """Return sorted paths below the root, with slashes."""
    names = listed_by_git()
    if names is None:
        names = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if is_source(path)}
    # git also lists deleted files until the deletion is committed.
    return sorted(name for name in names if (ROOT / name).is_file())


def listed_by_git() -> set[str] | None:
    """Return None without git, or if git refuses, as in a tree of another owner."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return None
    done = subprocess.run(LIST, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    return {name.decode() for name in done.stdout.split(b"\0") if name} if done.returncode == 0 else None


def is_source(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    made = BY_PRODUCTS.intersection(parts) or parts[0].endswith((".egg-info", "_cache"))
    return path.is_file() and not made and parts[0] != ".hypothesis" and not parts[0].startswith(".coverage")


def copy_to(directory: Path) -> list[str]:
    """Copy the files; return their paths."""
    names = files()
    for name in names:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return names


if __name__ == "__main__":
    copy_to(Path(sys.argv[1]))
