"""``nsq pub``: publishes its arguments, or the lines of stdin, to one of the nsqds."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nsq import Producer
from nsq.tools.cluster import Cluster, ClusterFlags, warn_of
from nsq.tools.program import ProducerFlags, SignalWatch, duration, run_command
from nsq.tools.to_nsq import Publisher, publish_records
from nsq.wire.names import check_topic


@dataclass(frozen=True, kw_only=True)
class PubOptions(ClusterFlags, ProducerFlags):
    defer: float = duration(0.0, "delay after which nsqd delivers the message", low=0.0)


def main(argv: Sequence[str]) -> int:
    synopsis = "TOPIC [BODY...]\nPublishes each BODY, or if there is none each line of stdin, to one nsqd."
    return run_command(PubOptions, argv, "nsq pub", synopsis, _publish)


def _publish(options: PubOptions, words: tuple[str, ...]) -> int:
    topic, *bodies = words
    check_topic(topic)
    cluster = Cluster(options)
    with options.producer("nsq-pub", *cluster.tcp_addresses) as producer:
        if bodies:
            count = _publish_each(topic, map(os.fsencode, bodies), producer, options.defer)
        elif options.defer:
            lines = (line.rstrip(b"\n") for line in sys.stdin.buffer)
            count = _publish_each(topic, filter(None, lines), producer, options.defer)
        else:
            with SignalWatch() as watch:
                publisher = Publisher(topic, [producer], watch)
                publish_records(sys.stdin.fileno(), publisher, watch)
            count = publisher.published
    if options.json:
        sys.stdout.write(json.dumps({"topic": topic, "published": count}) + "\n")
    else:
        sys.stderr.write(f"published {count} message{'s'[: count != 1]} to {topic}\n")
    warn_of(cluster.problems)  # status 0: the messages are published
    return 0


def _publish_each(topic: str, bodies: Iterable[bytes], producer: Producer, defer: float) -> int:
    count = 0
    for body in bodies:
        producer.publish(topic, body, defer=defer or None)
        count += 1
    return count
