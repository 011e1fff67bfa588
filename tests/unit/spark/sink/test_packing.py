from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsq.spark.sink.packing import Pack, Packer
from nsq.wire import commands

Chunks = list[tuple[str, list[bytes]]]


def packed(chunks: Chunks, most_messages: int, most_bytes: int) -> list[Pack]:
    packer = Packer(most_messages, most_bytes)
    packs = [pack for topic, bodies in chunks for pack in packer.add(topic, bodies)]
    return [*packs, *packer.rest()]


def test_a_pack_is_full_at_its_number_of_messages() -> None:
    packs = packed([("a", [b"x"] * 7)], 3, 1000)

    assert [len(pack.bodies) for pack in packs] == [3, 3, 1]
    assert [pack.size for pack in packs] == [3, 3, 1]


def test_a_pack_is_full_when_the_next_body_does_not_fit() -> None:
    packs = packed([("a", [b"x" * 40] * 3)], 100, 4 + 2 * 44)

    assert [len(pack.bodies) for pack in packs] == [2, 1]


def test_a_body_that_is_larger_than_a_pack_travels_alone() -> None:
    packs = packed([("a", [b"1", b"x" * 100, b"2"])], 100, 50)

    assert [pack.bodies for pack in packs] == [[b"1"], [b"x" * 100], [b"2"]]


def test_rows_wait_for_company_of_their_topic() -> None:
    packer = Packer(3, 1000)

    assert list(packer.add("a", [b"1", b"2"])) == []
    assert list(packer.add("b", [b"3"])) == []
    assert list(packer.add("a", [b"4"])) == [Pack("a", [b"1", b"2", b"4"], 3)]
    assert list(packer.rest()) == [Pack("b", [b"3"], 1)]
    assert list(packer.rest()) == []


def test_rows_of_many_topics_do_not_wait_for_ever() -> None:
    packer = Packer(10, 1000)

    early = [pack for number in range(1000) for pack in packer.add(f"topic{number}", [b"x"])]

    assert len(early) > 600
    assert len(early) + len(list(packer.rest())) == 1000


def test_large_rows_of_many_topics_do_not_wait_for_ever() -> None:
    packer = Packer(1000, 100)

    early = [pack for number in range(100) for pack in packer.add(f"topic{number}", [b"x" * 90])]

    assert sum(pack.size for pack in early) > 5000


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.binary(min_size=1, max_size=60), max_size=20))),
    st.integers(1, 8),
    st.integers(1, 200),
)
def test_nothing_is_lost_and_no_limit_is_passed(chunks: Chunks, most_messages: int, most_bytes: int) -> None:
    packs = packed(chunks, most_messages, most_bytes)

    for topic in "abc":
        sent = [body for pack in packs if pack.topic == topic for body in pack.bodies]
        assert sent == [body for name, bodies in chunks if name == topic for body in bodies]
    for pack in packs:
        assert pack.size == sum(map(len, pack.bodies))
        assert 1 <= len(pack.bodies) <= most_messages
        assert len(pack.bodies) == 1 or len(commands.pack_bodies(pack.bodies)) <= most_bytes
