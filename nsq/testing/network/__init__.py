"""A network with faults on demand: TCP proxies between clients and daemons, in this process.

    with Network() as network:
        link = network.link(nsqd.tcp_address)
        consumer = nsq.Consumer("orders", "billing", nsqd=link.address)
        ...
        link.stall(2.0)

``faults``, ``schedule`` and ``flow`` are pure; ``loop``, ``connection``, ``link`` and ``network`` use
sockets. Must not import the client.
"""

from __future__ import annotations

from .connection import Connection
from .faults import BOTH, CLIENT, KINDS, SERVER, Fault
from .link import Link
from .network import Hit, Network
from .schedule import Schedule, Strike

__all__ = [
    "BOTH",
    "CLIENT",
    "KINDS",
    "SERVER",
    "Connection",
    "Fault",
    "Hit",
    "Link",
    "Network",
    "Schedule",
    "Strike",
]
