"""The address book of a producer: which nsqds take which publish."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nsq.connection.conn import Conn
from nsq.discovery.lookups import Asker
from nsq.log import Logger
from nsq.producer.endpoint import PublishingEndpoint
from nsq.producer.publishes import Publish, new_multi_publish, new_publish, refused_option

if TYPE_CHECKING:
    from nsq.producer.pool import Pool

log = Logger("nsq.producer")

#: Endpoints with their open connections.
Takers = tuple[tuple[PublishingEndpoint, Conn], ...]

#: What the version of an nsqd with partitions contains.
_PARTITIONED = "-HA."


class AddressBook:
    """Knows which nsqds take a publish: any of them, with the original NSQ. Belongs to one pool.

    A book for another NSQ makes its own publishes, and gives each to its nsqd. Callers read ``new_publish``
    and ``new_multi_publish``; the pool's thread calls the other methods.
    """

    _warned = False
    asker: Asker | None = None
    """Asks nsqlookupds; None: as for the original NSQ."""
    due_at = math.inf
    """When to assign again, unless something happens before."""
    bursts: Mapping[Any, list[Publish]] = {}
    """Publishes whose ends the pool's thread waits for."""
    urgent = False
    """Whether a publish waits for a connection to a particular nsqd."""
    new_publish: Any = staticmethod(new_publish)
    new_multi_publish: Any = staticmethod(new_multi_publish)

    def begin(self, pool: Pool) -> None:
        """Note the pool."""

    def assign(self, takers: Takers) -> bool:
        """Give the pool's waiting publishes to these connections, and set its ``lanes``. False: any
        connection may take any publish.
        """
        return False

    def prepare(self, publish: Publish) -> None:
        """Make a publish that waited one that any connection may take, or end it."""

    def note_version(self, address: str, version: str) -> None:
        """Note the version of an nsqd that has been connected. Called by endpoints' threads."""
        if _PARTITIONED in version and not self._warned:
            self._warned = True
            log.warning(
                "%s is nsqd %s of a partitioned NSQ, but this producer takes it for an original one, and "
                "publishes to its default partition. Give nsqlookupd= instead of nsqd addresses",
                address,
                version,
                extra={"nsqd_address": address},
            )

    def trace(self, topic: str, on: bool) -> None:
        """Switch tracing of a topic on or off."""
        raise refused_option("trace")

    def reason(self, publish: Publish) -> str:
        """Return why the publish has not found its nsqd; empty if any would do."""
        return ""

    def problems(self) -> dict[str, str]:
        """Return what is wrong, by name, for ``Producer.health``."""
        return {}
