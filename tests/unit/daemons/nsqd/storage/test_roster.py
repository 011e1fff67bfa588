from __future__ import annotations

from pathlib import Path

import pytest

from nsq.daemons.nsqd.core.broker import Broker
from nsq.daemons.nsqd.storage.roster import ChannelEntry, Roster, TopicEntry, decode, encode
from nsq.errors import ConfigError
from tests.fakes.clock import FakeClock
from tests.unit.daemons.nsqd.disk.files import GOLDEN, Lines, names

RECORDED = (GOLDEN / "nsqd.dat").read_bytes()


def test_the_recorded_file_is_read_and_written_byte_for_byte() -> None:
    topics = Roster(GOLDEN, Lines()).read()
    assert topics == [TopicEntry("dq", False, (ChannelEntry("ch", False),))]
    assert encode(topics, "1.3.0") == RECORDED


def test_topics_are_written_when_they_have_changed_and_restored(tmp_path: Path) -> None:
    roster, broker = Roster(tmp_path, Lines()), Broker(FakeClock())
    roster.restore(broker)
    assert (list(broker.topics), roster.job_if_changed()) == ([], None)
    broker.topic("t").channel("c").pause(True)
    broker.topic("t").channel("d")
    broker.topic("t").channel("e#ephemeral")
    broker.topic("u#ephemeral")
    roster.changed()
    job = roster.job_if_changed()
    assert job is not None
    job()
    assert roster.job_if_changed() is None
    assert names(tmp_path) == ["nsqd.dat"]
    Roster(tmp_path, Lines()).restore(restored := Broker(FakeClock()))
    assert list(restored.topics) == ["t"]
    assert {name: each.paused for name, each in restored.topics["t"].channels.items()} == {
        "c": True,
        "d": False,
    }
    assert not restored.topics["t"].paused


def test_a_file_of_before_1_0_is_read_unless_there_is_a_newer_one(tmp_path: Path) -> None:
    (tmp_path / "nsqd.516.dat").write_bytes(b'{"topics":[{"name":"t"}]}')
    (tmp_path / "nsqd.5.diskqueue.000000.dat").write_bytes(b"records of a topic named nsqd.5")
    roster = Roster(tmp_path, Lines())
    assert roster.read() == [TopicEntry("t")]
    roster.job()()
    assert roster.read() == []


def test_empty_lists_of_topics_and_channels_are_null() -> None:
    assert encode([], "1.3.0") == b'{"topics":null,"version":"1.3.0"}'
    expected = b'{"topics":[{"name":"a","paused":false,"channels":null}],"version":"v"}'
    assert encode([TopicEntry("a")], "v") == expected


@pytest.mark.parametrize(
    ("content", "topics"),
    [
        (b'{"topics":[{"channels":["c"],"name":"t"}]}', ["t"]),
        (b'{"version":"0.2.30","topics":[{"channels":[{"name":"c"}],"name":"t","paused":null}]}', ["t"]),
        (
            b'{"topics":[{"name":"t","channels":[{"name":"c"},{"name":"?"},7,{}]},{"name":"a b"},"?"]}',
            ["t"],
        ),
        (b"{}", []),
        (b'{"topics":null,"version":"1"}', []),
        (b'{"topics":[]}', []),
        (b'{"topics":5}', []),
    ],
)
def test_older_forms_are_read_and_nonsense_is_left_out(content: bytes, topics: list[str]) -> None:
    assert decode(content) == [TopicEntry(name, False, (ChannelEntry("c"),)) for name in topics]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "Expecting value"),
        (b'{"topics":[', "Expecting value"),
        (b'{"\xff', "codec"),
        (b"[]", "no JSON object"),
        (b"null", "no JSON object"),
    ],
)
def test_an_invalid_list_is_named_with_what_to_do(tmp_path: Path, content: bytes, error: str) -> None:
    (tmp_path / "nsqd.dat").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"nsqd\.dat'.*{error}.*repair it, or move it away"):
        Roster(tmp_path, Lines()).read()
