from __future__ import annotations

import pytest

from nsq.daemons.nsqd.disk.layout import (
    Layout,
    Meta,
    files_by_queue,
    parse_meta,
    queue_name,
    queue_names,
    topic_and_channel,
)


def test_files_are_called_as_the_go_nsqd_calls_them() -> None:
    layout = Layout("topic:channel")
    assert layout.meta == "topic:channel.diskqueue.meta.dat"
    assert layout.data(0) == "topic:channel.diskqueue.000000.dat"
    assert layout.data(12345678) == "topic:channel.diskqueue.12345678.dat"


@pytest.mark.parametrize("number", [0, 7, 999_999, 1_000_000, 12345678])
def test_a_data_file_tells_its_number(number: int) -> None:
    layout = Layout("t")
    assert layout.number(layout.data(number)) == number


@pytest.mark.parametrize(
    "file",
    [
        "t.diskqueue.meta.dat",
        "t.diskqueue.000000.dat.bad",
        "t.diskqueue.0.dat",
        "t.diskqueue.0000001.dat",
        "t.diskqueue.٠٠٠٠٠٠.dat",
        "t:c.diskqueue.000000.dat",
        "tt.diskqueue.000000.dat",
        "nsqd.dat",
    ],
)
def test_other_files_are_nobody_s_data(file: str) -> None:
    assert Layout("t").number(file) is None


def test_dots_in_a_name_mean_nothing() -> None:
    name = "a.diskqueue.000001.dat"
    assert Layout("a").number(Layout(name).data(3)) is None
    assert Layout("axb").number("a.b.diskqueue.000000.dat") is None
    assert queue_names([Layout(name).data(3), Layout(name).meta]) == [name]


def test_unfinished_meta_files_are_known() -> None:
    layout = Layout("t")
    assert layout.is_temporary("t.diskqueue.meta.dat.5577006791947779410.tmp")
    assert not layout.is_temporary("t.diskqueue.meta.dat")
    assert not layout.is_temporary("tt.diskqueue.meta.dat.1.tmp")


def test_queues_are_found_by_their_files() -> None:
    files = ["a:c.diskqueue.meta.dat", "b.diskqueue.000002.dat", "b.diskqueue.meta.dat", "nsqd.dat"]
    assert queue_names([*files, "gone.diskqueue.000000.dat.bad"]) == ["a:c", "b"]


@pytest.mark.parametrize(("topic", "channel"), [("t", None), ("t", "c")])
def test_names_are_made_of_topic_and_channel(topic: str, channel: str | None) -> None:
    assert topic_and_channel(queue_name(topic, channel)) == (topic, channel)


def test_the_meta_file_is_written_as_go_writes_it() -> None:
    assert Meta(8, 0, 0, 1, 184).text() == "8\n0,0\n1,184\n"


@pytest.mark.parametrize(
    "meta",
    [Meta(0, 0, 0, 0, 0), Meta(8, 0, 0, 1, 184), Meta(-3, 5, 10, 5, 10), Meta(1, 10**17, 1, 10**17, 9)],
)
def test_the_meta_file_is_read(meta: Meta) -> None:
    assert parse_meta(meta.text()) == meta


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\0\0\0",
        "8\n0,0\n",
        "8\n0,0\n1,184\n9",
        "8\n0,-1\n1,184\n",
        "x\n0,0\n1,1\n",
        "1\n2,0\n1,5\n",
        "1\n1,6\n1,5\n",
        f"1\n0,0\n0,{10**18}\n",
    ],
)
def test_what_no_meta_file_says_is_not_believed(text: str) -> None:
    assert parse_meta(text) is None


def test_files_are_sorted_by_what_could_be_their_queue() -> None:
    found = files_by_queue(
        [
            "t.diskqueue.000000.dat",
            "t.diskqueue.meta.dat.x7.tmp",
            "t:c.diskqueue.000001.dat.bad",
            "a.diskqueue.b.diskqueue.meta.dat",
            "nsqd.dat",
            "t.dues.dat",
        ]
    )
    assert found == {
        "t": ["t.diskqueue.000000.dat", "t.diskqueue.meta.dat.x7.tmp"],
        "t:c": ["t:c.diskqueue.000001.dat.bad"],
        "a.diskqueue.b": ["a.diskqueue.b.diskqueue.meta.dat"],
    }
