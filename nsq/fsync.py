"""Fsync of a file or a folder by its path. A folder's makes the names in it durable: creations, renames."""

from __future__ import annotations

import os
from pathlib import Path


def sync_path(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
