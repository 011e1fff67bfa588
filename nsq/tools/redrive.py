"""``nsq redrive``: moves messages of one topic to another, such as dead letters back to their topic.

It moves as many messages as wait at its start, then exits; messages that fail again and return meanwhile are
left for the next run. A message is finished when it is stored in the other topic. A dead letter with a reason
gets there without it, as the message that it was.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from nsq import Consumer, Message, NsqError
from nsq.errors import UsageError
from nsq.http.nsqd import NsqdStats
from nsq.rate import Rate
from nsq.tools.cluster import Cluster, ClusterFlags, warn_of
from nsq.tools.program import (
    ConsumerOptFlags,
    ProducerFlags,
    SignalWatch,
    flag,
    log,
    run_command,
    run_consumers,
)
from nsq.wire.names import check_channel, check_topic
from nsq.work.redrive import Mover

#: Seconds between two checks whether messages are left.
_CHECK_EVERY = 1.0
_IN_FLIGHT = 200
#: Seconds whose messages may go at once after a pause.
_BURST = 1.0


@dataclass(frozen=True, kw_only=True)
class RedriveOptions(ClusterFlags, ConsumerOptFlags, ProducerFlags):
    channel: str = flag("redrive", "channel of the first topic to consume from")
    rate: int = flag(0, "messages per second (0 for no limit)", low=0, high=2**31 - 1)
    count: int = flag(0, "largest number of messages to move (0 for all that wait)", low=0, high=2**63 - 1)
    dry_run: bool = flag(False, "only report what would be moved")


def main(argv: Sequence[str]) -> int:
    synopsis = (
        "FROM_TOPIC TO_TOPIC\nMoves the waiting messages of FROM_TOPIC to TO_TOPIC, through a channel of "
        "FROM_TOPIC.\nAfter an interruption run it again for the rest; a message may then arrive twice."
    )
    return run_command(RedriveOptions, argv, "nsq redrive", synopsis, _redrive)


def _redrive(options: RedriveOptions, words: tuple[str, ...]) -> int:
    source, target = map(check_topic, words)
    check_channel(options.channel)
    if source == target:
        raise UsageError(f"{source} is both topics: messages would be moved in circles")
    cluster = Cluster(options)
    stats = cluster.stats(source)
    waiting = waiting_messages(stats, options.channel)
    for name in paused_names(stats, options.channel):
        log.warning("%s is paused; to move its messages: nsq unpause %s", name, name)
    total = sum(waiting.values())
    wanted = min(total, options.count or total)
    if not options.json:
        for address, count in waiting.items():
            sys.stdout.write(f"{address}: {count} messages wait in {source}\n")
    moved = 0 if options.dry_run or not wanted else _move(options, cluster, source, target, wanted)
    if options.json:
        report = {"from": source, "to": target, "waiting": waiting, "wanted": wanted, "moved": moved}
        sys.stdout.write(json.dumps(report | {"problems": cluster.problems}, indent=2) + "\n")
    elif options.dry_run or not wanted:
        sys.stdout.write(f"{wanted} messages would go to {target}\n")
    else:
        sys.stdout.write(f"{moved} of {wanted} messages moved to {target}\n")
    return max(warn_of(cluster.problems), int(moved < wanted and not options.dry_run))


def _move(options: RedriveOptions, cluster: Cluster, source: str, target: str, wanted: int) -> int:
    """Move messages; return how many."""
    addresses = cluster.tcp_addresses
    with SignalWatch() as watch, options.producer("nsq-redrive", *addresses) as producer:
        mover = Mover(producer, target, wanted, ended=watch.wake)
        rate = Rate(options.rate, _BURST, time.monotonic())

        def move(message: Message) -> None:
            while not mover.over.is_set() and not rate.take(1, time.monotonic()):
                mover.over.wait(rate.pause())
            mover(message)

        consumer = options.consumer_of(
            "nsq-redrive",
            source,
            options.channel,
            nsqd=addresses,
            # With a rate, at most as many as it moves in a second: messages that wait here for long time out.
            max_in_flight=min(wanted, options.rate or _IN_FLIGHT, _IN_FLIGHT),
        )
        consumer.add_handler(move)
        watcher = threading.Thread(
            target=_end_if_empty,
            args=(consumer, cluster, options, source, mover),
            name="nsq-redrive-watch",
            daemon=True,
        )
        watcher.start()
        try:
            run_consumers([consumer], watch, mover.over.is_set, [producer])
        finally:
            mover.over.set()
            watcher.join()
    return mover.moved


def waiting_messages(stats: dict[str, NsqdStats], channel: str) -> dict[str, int]:
    """Count waiting messages, by nsqd. Those that wait in the topic will go to its first channel."""
    found = {}
    for address, of_nsqd in stats.items():
        for each in of_nsqd["topics"]:
            depths = [one["depth"] for one in each["channels"] if one["channel_name"] == channel]
            found[address] = sum(depths) + (0 if each["channels"] and not depths else each["depth"])
    return found


def paused_names(stats: dict[str, NsqdStats], channel: str) -> list[str]:
    """Return the names of the topic and of the channel if they are paused on any nsqd."""
    names = set()
    for each in itertools.chain.from_iterable(of_nsqd["topics"] for of_nsqd in stats.values()):
        topic = each["topic_name"]
        if each["paused"]:
            names.add(topic)
        if any(one["paused"] and one["channel_name"] == channel for one in each["channels"]):
            names.add(f"{topic}/{channel}")
    return sorted(names)


def _end_if_empty(
    consumer: Consumer, cluster: Cluster, options: RedriveOptions, source: str, mover: Mover
) -> None:
    """End the run when other consumers have taken the rest."""
    while not mover.over.wait(_CHECK_EVERY):
        try:
            left = sum(waiting_messages(cluster.stats(source), options.channel).values())
        except NsqError as error:
            log.warning("%s", error)
            continue
        if not left and not consumer.stats().in_flight and consumer.stats().connections:
            mover.end()
