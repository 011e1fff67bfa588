"""A test double of the partitioned NSQ, whose server is https://github.com/youzan/nsq.

    from nsq.testing import PartitionedCluster

    with PartitionedCluster() as cluster:
        cluster.create_topic("orders", partitions=4, ordered=True)

``cluster`` is what tests use, ``serving`` carries out what they want. ``state`` is who leads what,
``channel`` what is stored and how it is delivered. ``program`` has the ports, ``nsqd`` and ``http`` speak the
protocols, ``nsqd_http`` and ``lookupd`` are the programs and their pages. Must not import the client.
"""

from __future__ import annotations

from .channel import ChannelState, StoredMessage
from .cluster import Lookup, Node, PartitionedCluster

__all__ = ["ChannelState", "Lookup", "Node", "PartitionedCluster", "StoredMessage"]
