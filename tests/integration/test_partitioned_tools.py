"""The command-line tools with a partitioned cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nsq.testing import PartitionedCluster, V2Client
from nsq.wire import commands
from tests.integration.consuming import until
from tests.integration.running_tools import tool_command, tool_process

NUMBERS = 50


def fill(cluster: PartitionedCluster) -> None:
    for partition in range(2):
        leader = cluster.leader("orders", partition)
        assert leader is not None
        with V2Client(leader.tcp_address) as client:
            for number in range(NUMBERS):
                client.send(commands.pub(f"orders {partition}", b"%d-%d" % (partition, number)))
                client.expect_ok()


def in_order(lines: list[bytes]) -> bool:
    """Whether these are all messages, those of each partition in order."""
    parts = [[line for line in lines if line.startswith(b"%d-" % partition)] for partition in range(2)]
    return parts == [[b"%d-%d" % (each, number) for number in range(NUMBERS)] for each in range(2)]


@pytest.fixture(params=[True, False], ids=["ordered", "unordered"])
def ordered(request: pytest.FixtureRequest, partitioned_cluster: PartitionedCluster) -> bool:
    made: bool = request.param
    partitioned_cluster.create_topic("orders", partitions=2, ordered=made, channels=["archive"])
    fill(partitioned_cluster)
    return made


def source(cluster: PartitionedCluster, ordered: bool) -> list[str]:
    return [f"--lookupd-http-address={cluster.lookup_addresses[0]}", *["--ordered"] * ordered]


def test_nsq_tail_shows_every_partition(partitioned_cluster: PartitionedCluster, ordered: bool) -> None:
    options = ["--topic=orders", "--channel=archive", "-n", str(2 * NUMBERS)]
    command = tool_command("nsq_tail", *source(partitioned_cluster, ordered), *options)
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    lines = done.stdout.split()
    assert in_order(lines) if ordered else len(set(lines)) == 2 * NUMBERS


def test_nsq_to_file_archives_every_partition(
    partitioned_cluster: PartitionedCluster, ordered: bool, tmp_path: Path
) -> None:
    options = ["--topic=orders", "--channel=archive", f"--output-dir={tmp_path}", "--sync-interval=100ms"]

    def done() -> bool:
        states = [partitioned_cluster.channel("orders", each, "archive") for each in range(2)]
        return not any(state.depth or state.in_flight for state in states)

    with tool_process("nsq_to_file", *source(partitioned_cluster, ordered), *options) as process:
        until("archived", done)
        process.terminate()
        assert process.wait(60) == 0
    lines = b"".join(path.read_bytes() for path in tmp_path.iterdir()).split()
    assert in_order(lines) if ordered else len(set(lines)) == 2 * NUMBERS


def test_nsq_stat_adds_up_the_partitions(partitioned_cluster: PartitionedCluster) -> None:
    partitioned_cluster.create_topic("orders", partitions=2, placement=[[0], [0]], channels=["archive"])
    fill(partitioned_cluster)
    options = ["--topic=orders", "--channel=archive", "--count=1", "--interval=10ms"]
    command = tool_command("nsq_stat", *source(partitioned_cluster, False), *options)
    done = subprocess.run(command, capture_output=True, timeout=60, check=True, text=True)
    _, depths, counts = done.stdout.splitlines()[-1].split("|")
    depth, messages = int(depths.split()[0]), int(counts.split()[2])
    assert (depth, messages) == (2 * NUMBERS, 2 * NUMBERS)


def test_nsq_doctor_names_a_channel_once_for_each_node(partitioned_cluster: PartitionedCluster) -> None:
    partitioned_cluster.create_topic("orders", partitions=2, placement=[[0], [0]], channels=["archive"])
    fill(partitioned_cluster)
    command = [sys.executable, "-m", "nsq", "doctor", *source(partitioned_cluster, False)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True, text=True)
    waiting = [line for line in done.stdout.splitlines() if "has no consumer" in line]
    assert len(waiting) == 1
    assert f"channel orders/archive has no consumer, and {2 * NUMBERS} messages wait" in waiting[0]
