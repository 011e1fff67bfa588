"""Runs nsqd, nsqlookupd and nsqadmin for tests: in a background thread, as a child process, or any binary.

Must not import the client, nor aiohttp or asyncio before a daemon starts in a thread.
"""

from __future__ import annotations

from .daemon import Daemon, Nsqadmin, Nsqd, Nsqlookupd
from .errors import AddressTaken, DaemonFailed
from .http import Reply

__all__ = ["AddressTaken", "Daemon", "DaemonFailed", "Nsqadmin", "Nsqd", "Nsqlookupd", "Reply"]
