"""``nsq pub``: publishes its arguments, or the lines of stdin, to one of the nsqds."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nsq import Producer
from nsq.tools.cluster import Cluster, ClusterFlags, warn_of
from nsq.tools.program import ProducerFlags, SignalWatch, duration, flag, run_command
from nsq.tools.to_nsq import Publisher, publish_records
from nsq.wire.names import check_topic


@dataclass(frozen=True, kw_only=True)
class PubOptions(ClusterFlags, ProducerFlags):
    defer: float = duration(0.0, "delay after which nsqd delivers the message", low=0.0)
    key: str = flag("", "key of the messages: those with the same key go to the same partition")
    partition: int = flag(-1, "partition to publish to (-1 for any)", low=-1, high=1023)


def main(argv: Sequence[str]) -> int:
    synopsis = "TOPIC [BODY...]\nPublishes each BODY, or if there is none each line of stdin, to one nsqd."
    return run_command(PubOptions, argv, "nsq pub", synopsis, _publish)


def _publish(options: PubOptions, words: tuple[str, ...]) -> int:
    topic, *bodies = words
    check_topic(topic)
    more: dict[str, Any] = {"key": os.fsencode(options.key)} if options.key else {}
    if options.partition >= 0:
        more["partition"] = options.partition
    cluster = Cluster(options)
    with _producer(options, cluster) as producer:
        if options.defer:
            more["defer"] = options.defer
        if bodies:
            count = _publish_each(topic, map(os.fsencode, bodies), producer, more)
        elif options.defer:
            lines = (line.rstrip(b"\n") for line in sys.stdin.buffer)
            count = _publish_each(topic, filter(None, lines), producer, more)
        else:
            with SignalWatch() as watch:
                publisher = Publisher(topic, [producer], watch, **more)
                publish_records(sys.stdin.fileno(), publisher, watch)
            count = publisher.published
    if options.json:
        sys.stdout.write(json.dumps({"topic": topic, "published": count}) + "\n")
    else:
        sys.stderr.write(f"published {count} message{'s'[: count != 1]} to {topic}\n")
    warn_of(cluster.problems)  # status 0: the messages are published
    return 0


def _producer(options: PubOptions, cluster: Cluster) -> Producer:
    if cluster.lookupds and cluster.partitioned:  # only nsqlookupd tells who leads which partition
        return options.producer("nsq-pub", nsqlookupd=tuple(cluster.lookupds))
    return options.producer("nsq-pub", *cluster.tcp_addresses)


def _publish_each(topic: str, bodies: Iterable[bytes], producer: Producer, options: dict[str, Any]) -> int:
    count = 0
    for body in bodies:
        producer.publish(topic, body, **options)
        count += 1
    return count
