"""A test double of the partitioned NSQ, whose server is https://github.com/youzan/nsq.

    from nsq.testing import PartitionedCluster

    with PartitionedCluster() as cluster:
        cluster.create_topic("orders", partitions=4, ordered=True)

``state`` is who leads what and what is stored, ``channel`` delivers, ``nsqd`` and ``http`` speak the
protocols, ``serving`` has the sockets, ``cluster`` is what tests use. Must not import the client.
"""

from __future__ import annotations

from .cluster import Lookup, Node, PartitionedCluster
from .reports import ChannelState, StoredMessage

__all__ = ["ChannelState", "Lookup", "Node", "PartitionedCluster", "StoredMessage"]
