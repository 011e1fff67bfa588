"""Tools for tests, yours and ours: real daemons on free ports, a double of the partitioned NSQ, a network
that can be cut, a pytest plugin and a blocking protocol client.

    from nsq.testing import Nsqd, Nsqlookupd

    with Nsqlookupd() as lookupd, Nsqd(lookupd=[lookupd], msg_timeout=1.0) as nsqd:
        ...nsqd.tcp_address, nsqd.post("/topic/create?topic=orders"), nsqd.restart()...

Importing this package needs nothing but the core; aiohttp is loaded when the first daemon starts in a thread.
It must not import the client.
"""

from __future__ import annotations

from .daemons import DaemonFailed, Nsqadmin, Nsqd, Nsqlookupd, Reply
from .network import Fault, Link, Network, Schedule
from .partitioned import PartitionedCluster
from .v2 import V1Client, V2Client

__all__ = [
    "DaemonFailed",
    "Fault",
    "Link",
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
