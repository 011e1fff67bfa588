from __future__ import annotations

import pytest

from nsq.daemons.nsqd.disk.roster import ChannelEntry, TopicEntry, decode, encode
from tests.unit.daemons.nsqd.disk.files import GOLDEN

RECORDED = (GOLDEN / "nsqd.dat").read_bytes()


def test_the_recorded_file_is_read_and_written_byte_for_byte() -> None:
    topics = decode(RECORDED)
    assert topics == [TopicEntry("dq", False, (ChannelEntry("ch", False),))]
    assert encode(topics, "1.3.0") == RECORDED


def test_what_is_paused_stays_paused() -> None:
    topics = [TopicEntry("a", True, (ChannelEntry("x", True), ChannelEntry("y"))), TopicEntry("b")]
    assert decode(encode(topics, "1")) == topics


def test_what_is_ephemeral_is_left_out() -> None:
    topics = [TopicEntry("a#ephemeral"), TopicEntry("b", False, (ChannelEntry("c#ephemeral"),))]
    assert decode(encode(topics, "1")) == [TopicEntry("b")]


def test_empty_lists_are_null() -> None:
    assert encode([], "1.3.0") == b'{"topics":null,"version":"1.3.0"}'
    assert (
        encode([TopicEntry("a")], "v")
        == b'{"topics":[{"name":"a","paused":false,"channels":null}],"version":"v"}'
    )


@pytest.mark.parametrize(
    "old",
    [
        b'{"topics":[{"channels":["c"],"name":"t"}]}',
        b'{"version":"0.2.30","topics":[{"channels":[{"name":"c"}],"name":"t","paused":null}]}',
        b'{"topics":[{"name":"t","channels":[{"name":"c"},{"name":"?"},7,{}]},{"name":"a b"},"\xc3\xa4"]}',
    ],
)
def test_older_forms_are_read_and_nonsense_is_left_out(old: bytes) -> None:
    assert decode(old) == [TopicEntry("t", False, (ChannelEntry("c"),))]


@pytest.mark.parametrize(
    "content", [b"{}", b'{"topics":null,"version":"1"}', b'{"topics":[]}', b'{"topics":5}']
)
def test_no_topics(content: bytes) -> None:
    assert decode(content) == []


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "Expecting value"),
        (b'{"topics":[', "Expecting value"),
        (b'{"\xff', "codec"),
        (b"[]", "no JSON object"),
        (b"null", "no JSON object"),
    ],
)
def test_what_is_no_list_of_topics_is_an_error(content: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        decode(content)
