from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq.spark.pipelines.replay import ArchivePosition, Entry, Mark, remaining, send
from nsq.spark.sink.task import packs


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


def entry(number: int, body: bytes = b"x") -> Entry:
    return Entry(ArchivePosition(number, "n", "id"), body)


def never(seconds: float) -> bool:
    return False


def chunks(entries: Iterable[Entry], most: int) -> Iterator[list[Entry]]:
    return packs(entries, most, 1000, lambda entry: len(entry.body))


@pytest.mark.parametrize(("rate", "seconds"), [(50.0, 95 / 50), (None, 0.0)])
def test_a_rate_is_kept_on_average_from_the_first_message_on(rate: float | None, seconds: float) -> None:
    clock = Clock()
    places = send(
        chunks([entry(number) for number in range(100)], 5),
        Mark(),
        publish=lambda bodies: None,
        save=lambda place: None,
        wait=clock.wait,
        rate=rate,
        now=clock,
    )
    assert [place.rows for place in places] == list(range(5, 101, 5))
    assert clock.now == pytest.approx(100 + seconds)


def test_a_place_is_noted_only_when_it_is_published() -> None:
    events: list[object] = []
    sending = send(
        chunks([entry(1, b"a"), entry(2, b"b"), entry(3, b"c")], 2),
        Mark(),
        publish=events.append,
        save=lambda place: events.append(place.rows),
        wait=never,
    )
    assert [place.rows for place in sending] == [2, 3]
    assert events == [[b"a", b"b"], 2, [b"c"], 3]


def test_stopped_it_publishes_nothing_more() -> None:
    published: list[list[bytes]] = []
    answers = iter([False, True])
    sending = send(
        chunks([entry(number) for number in range(4)], 2),
        Mark(),
        publish=published.append,
        save=lambda place: None,
        wait=lambda seconds: next(answers),
    )
    assert [place.rows for place in sending] == [2]
    assert len(published) == 1


ORDERED = st.lists(st.integers(0, 6), max_size=30).map(sorted)


@given(ORDERED, st.integers(1, 5), st.data())
def test_cut_off_anywhere_it_repeats_one_publish_at_most_and_misses_nothing(
    positions: list[int], most: int, data: st.DataObject
) -> None:
    """Several messages may stand at the same position."""
    entries = [entry(position, b"%d" % number) for number, position in enumerate(positions)]
    kept: list[Mark] = [Mark()]
    sent: list[bytes] = []
    crash_at = data.draw(st.integers(0, len(entries)))

    class Crash(Exception):
        pass

    def save(place: Mark) -> None:
        if place.rows > crash_at:
            raise Crash
        kept.append(place)

    def run(saving: bool) -> Iterator[Mark]:
        return send(
            chunks(remaining(entries, kept[-1]), most),
            kept[-1],
            publish=sent.extend,
            save=save if saving else kept.append,
            wait=never,
        )

    try:
        list(run(saving=True))
    except Crash:
        list(run(saving=False))
    assert sorted(set(sent), key=int) == [each.body for each in entries]
    assert len(sent) - len(set(sent)) <= most
    assert kept[-1].rows == len(entries)
    assert list(remaining(entries, kept[-1])) == []
