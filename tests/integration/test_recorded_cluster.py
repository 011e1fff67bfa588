"""The tools over the recorded answers of a real partitioned cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from nsq.tools.front_door import main
from tests.fakes.recorded_cluster import RecordedCluster, recorded_cluster

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster() -> Iterator[RecordedCluster]:
    with recorded_cluster() as made:
        yield made


@pytest.fixture
def run(cluster: RecordedCluster, capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str, flag: str = "--lookupd-http-address", name: str = "lookup2") -> tuple[int, str, str]:
        status = main([*words, f"{flag}={cluster.address(name)}"])
        said = capfd.readouterr()
        return status, said.out, said.err

    return run


def test_topics_count_the_bytes_of_partitions_that_lead(run: Run) -> None:
    status, out, err = run("topics")
    assert (status, err) == (0, "")
    assert "STORED BYTES" in out.splitlines()[0]
    status, out, _ = run("topics", "--json")
    topics = {each["topic"]: each for each in json.loads(out)}
    assert topics["rec_plain"] == {
        "topic": "rec_plain",
        "stored_bytes": 1223 + 31,
        "messages": 38 + 1,
        "channels": 1,
        "nsqds": 2,
        "paused": False,
    }
    assert topics["rec_ordered"]["stored_bytes"] == 192


def test_channels_count_the_messages_of_partitions_that_lead(run: Run) -> None:
    status, out, err = run("channels", "rec_ordered", "--json")
    assert (status, err) == (0, "")
    found = [(each["channel"], each["depth"], each["messages"]) for each in json.loads(out)]
    assert found == [("c", 3, 3), ("c2", 1, 3)]


def test_stat_counts_the_messages_of_partitions_that_lead(run: Run) -> None:
    status, out, err = run("stat", "rec_ordered/c", "--count=1", "--interval=0.01s")
    assert (status, err) == (0, "")
    assert out.splitlines()[2].split() == ["0", "0", "|", "3", "0", "3", "0", "0", "|", "0", "0", "3", "0"]


def test_peek_says_that_these_nsqds_cannot_show_messages(run: Run) -> None:
    status, out, err = run("peek", "rec_plain/c2")
    assert (status, out) == (1, "")
    assert "it is not one of ours" in err


@pytest.mark.parametrize("named", [("--lookupd-http-address", "lookup1"), ("--nsqd-http-address", "nsqd1")])
@pytest.mark.parametrize(
    "words", [("pause",), ("unpause",), ("empty", "--yes"), ("delete", "--yes"), ("create",)]
)
def test_a_change_to_a_channel_goes_to_the_leader_of_each_partition(
    cluster: RecordedCluster, run: Run, words: tuple[str, ...], named: tuple[str, str]
) -> None:
    action = words[0]
    status, out, err = run(action, "rec_plain/c2", *words[1:], flag=named[0], name=named[1])
    assert (status, err) == (0, "")
    # The other partitions of the topic have no such channel.
    target = f"/channel/{action}?partition={{}}&topic=rec_plain&channel=c2"
    led = [("nsqd1", 0)]
    if action == "create":
        led += [("nsqd1", 3)] + ([("nsqd3", 2)] if named[1] == "lookup1" else [])
    assert sorted(cluster.posted) == [f"{nsqd}{target.format(number)}" for nsqd, number in led]
    assert len(out.splitlines()) == len(led)
    assert f"nsqd {cluster.address('nsqd1')} partition 0: ok" in out


def test_the_leading_nsqlookupd_deletes_a_topic(cluster: RecordedCluster, run: Run) -> None:
    status, _, err = run("delete", "rec_plain", "--yes")
    assert (status, err) == (0, "")
    assert cluster.posted == ["lookup1/topic/delete?partition=**&topic=rec_plain"]


@pytest.mark.parametrize(
    ("words", "flag", "remedy"),
    [
        (("pause", "rec_plain"), "lookupd", "nsq pause rec_plain/CHANNEL"),
        (("unpause", "rec_plain"), "nsqd", "nsq unpause rec_plain/CHANNEL"),
        (("empty", "rec_plain", "--yes"), "lookupd", "nsq empty rec_plain/CHANNEL"),
        (("create", "new"), "lookupd", "/topic/create?topic=new&partition_num="),
        (("delete", "rec_plain", "--yes"), "nsqd", "nsqlookupd deletes the topics"),
    ],
)
def test_what_a_partitioned_cluster_cannot_do_to_topics_is_refused_by_name(
    cluster: RecordedCluster, run: Run, words: tuple[str, ...], flag: str, remedy: str
) -> None:
    name = "lookup1" if flag == "lookupd" else "nsqd1"
    status, _, err = run(*words, flag=f"--{flag}-http-address", name=name)
    assert status != 0
    assert remedy in err
    assert cluster.posted == []


def test_doctor_reads_all_that_a_partitioned_cluster_answers(run: Run) -> None:
    _, out, _ = run("doctor", "--json")
    over_http = [each for each in json.loads(out) if not each["where"].endswith("(TCP)")]
    assert [each for each in over_http if each["level"] == "failure"] == []
    found = {each["found"] for each in over_http}
    assert "channel rec_ordered/c has no consumer, and 3 messages wait" in found
