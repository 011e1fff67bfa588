"""Two folders trade places in one step, as Linux can do it: renameat2(2) with RENAME_EXCHANGE.

Imports nothing of this package but its errors.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

from nsq.errors import ConfigError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2

# What a kernel or a file system answers that does not have it.
_UNABLE = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


def exchange(one: Path, other: Path) -> None:
    """Whoever looks finds either both where they were or both where the other one was."""
    if not sys.platform.startswith("linux"):
        raise ConfigError(f"two folders cannot be exchanged in one step on {sys.platform}, only on Linux")
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        raise ConfigError(
            "this C library is too old to exchange two folders in one step: it has no renameat2"
        )
    outcome = renameat2(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE)
    )
    if outcome == 0:
        return
    number = ctypes.get_errno()
    if number in _UNABLE:
        raise ConfigError(
            f"the file system of {one} cannot exchange two folders in one step: ext4, xfs, btrfs and tmpfs "
            "can, network file systems cannot"
        )
    raise OSError(number, os.strerror(number), str(one), None, str(other))
