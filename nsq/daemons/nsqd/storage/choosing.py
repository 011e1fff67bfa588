"""After a kill or a power cut: which record of a message counts, if there are several."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from nsq.daemons.nsqd.disk.layout import Bounds, Place, message_id, wholeness
from nsq.daemons.nsqd.disk.reading import UnreadRecord
from nsq.daemons.nsqd.storage.deferred_file import HAS_LEFT, DeferredFile

#: How many of the last records of a queue, and of its topic's, are compared with the indexes.
COMPARED = 50_000


class Choice(NamedTuple):
    """``obsolete`` are the queue's records that do not count, with their messages' ids; ``known`` the ids of
    the topic's messages that it need not hand over.
    """

    obsolete: dict[Place, bytes]
    known: set[bytes]


def choose_records(
    queued: list[UnreadRecord], files: list[DeferredFile], sizes: Bounds, in_topic: Mapping[bytes, int]
) -> Choice:
    """Of each message that a kill or a power cut left with several records, choose one.

    ``queued`` are the queue's records. ``in_topic`` has the messages that the topic will hand over again:
    their ids, and how whole their records are.

    A message gets its next record before the last one is given up. So the files can have it twice: the one
    due last counts. And the queue can have it too: it was deferred after that, or is due already. A power cut
    can tear each record that was not fsynced: then a whole one counts, or that of the topic. And it can leave
    a new record without its due time: then an older one counts, or that of the topic.
    """
    suspects = {each.id for each in queued} | in_topic.keys()
    incomplete: set[DeferredFile] = set()
    known: set[bytes] = set()
    for file in files:
        dues = file.read_index()
        known.update(each for each, due in dues.items() if due == HAS_LEFT and each in in_topic)
        if file.was_read:
            suspects.update(dues)
        if without := file.ids_without_due_time(dues, sizes):
            incomplete.add(file)
            suspects.update(without)
            file.ignore(without & in_topic.keys())
    chosen: dict[bytes, tuple[int, int, DeferredFile]] = {}
    for file in files:
        if suspects.isdisjoint(file.read_index()) and file not in incomplete:
            continue
        with suppress(OSError):  # reading it later logs the problem
            for due, record in file.read(sizes)[0]:
                each = message_id(record)
                if file.latest and due > file.latest:
                    due = 0  # it is damaged: another record counts, if there is one
                found = wholeness(record), due, file
                other = chosen.get(each, found)
                chosen[each] = max(found, other)
                if other[2] is not file:
                    min(found, other)[2].leave([each])
    last = {each.id: each for each in sorted(queued, key=lambda each: each.wholeness)}  # of the whole ones
    for each, (whole, _, file) in [*chosen.items()]:
        queue, topic = last[each].wholeness if each in last else 0, in_topic.get(each, 0)
        if whole < max(queue, topic):
            (file.ignore if queue < topic else file.leave)([each])
            del chosen[each]
    obsolete = {
        place: each
        for each, place, whole in queued
        if each in chosen or last[each].place != place or whole < in_topic.get(each, 0)
    }
    known.update(each for each, place, _ in queued if place not in obsolete)
    known.update(chosen)
    return Choice(obsolete, known & in_topic.keys())
