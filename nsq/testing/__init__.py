"""Tools for tests, yours and ours: real daemons on free ports, an nsqd in memory, a double of the partitioned
NSQ, a network that can be cut, a pytest plugin and a blocking protocol client.

    from nsq.testing import Nsqd, Nsqlookupd

    with Nsqlookupd() as lookupd, Nsqd(lookupd=[lookupd], msg_timeout=1.0) as nsqd:
        ...nsqd.tcp_address, nsqd.post("/topic/create?topic=orders"), nsqd.restart()...

Importing this package needs nothing but the core; aiohttp is loaded when the first daemon starts in a thread,
and nsqd's code when MemoryNsqd is used. It must not import the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .daemons import DaemonFailed, Nsqadmin, Nsqd, Nsqlookupd, Reply
from .network import Fault, Link, Network, Schedule
from .partitioned import PartitionedCluster
from .v2 import V1Client, V2Client

if TYPE_CHECKING:
    from .memory_nsqd import MemoryNsqd

__all__ = [
    "DaemonFailed",
    "Fault",
    "Link",
    "MemoryNsqd",
    "Network",
    "Nsqadmin",
    "Nsqd",
    "Nsqlookupd",
    "PartitionedCluster",
    "Reply",
    "Schedule",
    "V1Client",
    "V2Client",
]


def __getattr__(name: str) -> object:
    if name == "MemoryNsqd":
        from .memory_nsqd import MemoryNsqd

        return MemoryNsqd
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
