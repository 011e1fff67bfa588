"""The tools over the recorded answers of a real partitioned cluster: recorded_cluster.txt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from nsq.tools import front_door
from tests.fakes.recorded_cluster import recorded_cluster
from tests.transcripts import Session


def test_the_tools_do_as_the_transcript_says(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with recorded_cluster() as cluster:

        def posted(_: Sequence[str]) -> int:
            """Write what the daemons were asked to change, and forget it."""
            print(*sorted(cluster.posted), sep="\n", end="\n" * bool(cluster.posted))
            cluster.posted.clear()
            return 0

        places = {
            name.upper(): cluster.address(name) for name in ("lookup1", "lookup2", "nsqd1", "nsqd2", "nsqd3")
        }
        places["LEADER"] = f"--lookupd-http-address={places['LOOKUP1']}"
        places["FOLLOWER"] = f"--lookupd-http-address={places['LOOKUP2']}"
        places["NODE"] = f"--nsqd-http-address={places['NSQD1']}"
        programs = {"nsq": front_door.main, "posted": posted}
        transcript = Path(__file__).with_name("recorded_cluster.txt")
        Session(capfdbinary, programs, places, tmp_path).follow(transcript)


def test_doctor_reads_all_that_a_partitioned_cluster_answers(capfd: pytest.CaptureFixture[str]) -> None:
    with recorded_cluster() as cluster:
        front_door.main(["doctor", "--json", f"--lookupd-http-address={cluster.address('lookup2')}"])
    over_http = [each for each in json.loads(capfd.readouterr().out) if not each["where"].endswith("(TCP)")]
    assert [each for each in over_http if each["level"] == "failure"] == []
    found = {each["found"] for each in over_http}
    assert "channel rec_ordered/c has no consumer, and 3 messages wait" in found
