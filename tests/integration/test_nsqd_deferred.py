"""Deferred messages of a real nsqd: channels that are paused, emptied, deleted; a clock that is set."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from nsq.wire import commands
from tests.integration.clients import channel_stats, connected, consumer
from tests.integration.judged import only_ours
from tests.integration.patience import eventually

pytestmark = only_ours("the store of deferred messages")

MODES = pytest.mark.parametrize("durable", [False, True], ids=["default", "durable"])
YEAR_MS = 365 * 86_400_000


def start(nsqd_factory: Factory[Nsqd], data: Path, *, durable: bool, **options: object) -> Nsqd:
    """Start an nsqd that keeps 100 deferred messages in memory."""
    data.mkdir(exist_ok=True)
    given = {"durable": True} if durable else {}
    return nsqd_factory(
        **({"process": True} if "binary" not in options else {}),
        data_path=str(data),
        mem_queue_size=100,
        sync_timeout=0.1,
        max_req_timeout="8760h",
        log_level="warning",
        **given,
        **options,
    )


def defer(nsqd: Nsqd, delays: list[int], channel: str = "channel") -> None:
    """Defer one message for each delay, in milliseconds; the delay is its body."""
    with consumer(nsqd, "t", channel, rdy=0), connected(nsqd) as client:
        for start in range(0, len(delays), 50):
            part = delays[start : start + 50]
            client.send(b"".join(commands.dpub("t", delay, b"%d" % delay) for delay in part))
            for _ in part:
                client.expect_ok(timeout=30)


def deferred_files(data: Path) -> list[str]:
    return sorted(path.name for path in data.iterdir() if ".deferred." in path.name)


def deferred_count(nsqd: Nsqd, channel: str = "channel") -> int:
    return int(channel_stats(nsqd, "t", channel).get("deferred_count", -1))


@MODES
def test_a_message_is_deferred_for_a_year(nsqd_factory: Factory[Nsqd], tmp_path: Path, durable: bool) -> None:
    nsqd = start(nsqd_factory, tmp_path / "data", durable=durable)
    defer(nsqd, [YEAR_MS])
    nsqd.restart()
    channel = channel_stats(nsqd, "t")
    assert channel["deferred_count"] == 1
    assert YEAR_MS - 600_000 < channel["next_deferred_ms"] <= YEAR_MS


@MODES
@pytest.mark.parametrize("target", ["/channel/empty", "/channel/delete", "/topic/delete"])
def test_emptying_and_deleting_discard_deferred_messages_and_their_files(
    nsqd_factory: Factory[Nsqd], tmp_path: Path, durable: bool, target: str
) -> None:
    nsqd = start(nsqd_factory, tmp_path / "data", durable=durable)
    defer(nsqd, [3_600_000 + number for number in range(500)])
    assert deferred_count(nsqd) == 500
    assert deferred_files(tmp_path / "data")
    assert nsqd.post(f"{target}?topic=t&channel=channel").status == 200
    assert deferred_files(tmp_path / "data") == []
    nsqd.restart()
    assert deferred_count(nsqd) == (0 if "empty" in target else -1)


@MODES
def test_a_paused_channel_keeps_messages_that_become_due(
    nsqd_factory: Factory[Nsqd], tmp_path: Path, durable: bool
) -> None:
    nsqd = start(nsqd_factory, tmp_path / "data", durable=durable)
    defer(nsqd, [300])
    assert nsqd.post("/channel/pause?topic=t&channel=channel").status == 200
    with consumer(nsqd, "t", rdy=5) as client:
        eventually(lambda: channel_stats(nsqd, "t")["depth"], lambda depth: depth == 1)
        client.expect_silence(0.05)
        assert nsqd.post("/channel/unpause?topic=t&channel=channel").status == 200
        assert client.expect_message().body == b"300"


def test_an_ephemeral_channel_writes_no_file(nsqd_factory: Factory[Nsqd], tmp_path: Path) -> None:
    nsqd = start(nsqd_factory, tmp_path / "data", durable=True)
    with consumer(nsqd, "t", "c#ephemeral", rdy=1) as client:
        defer(nsqd, [400, 3_600_000])
        assert deferred_count(nsqd, "c#ephemeral") == 2
        assert not any("ephemeral" in path.name for path in (tmp_path / "data").iterdir())
        assert client.expect_message().body == b"400"


@MODES
def test_a_clock_that_is_set_over_a_restart_repeats_and_loses_nothing(
    nsqd_factory: Factory[Nsqd], tmp_path: Path, durable: bool
) -> None:
    if shutil.which("faketime") is None:
        pytest.skip("needs faketime")
    shown = subprocess.run(
        ["faketime", "-f", "+0d", "printenv", "LD_PRELOAD"], capture_output=True, text=True
    )
    offset, program = tmp_path / "offset", tmp_path / "nsqd-with-its-own-clock"
    program.write_text(
        "#!/bin/sh\n"
        f"export LD_PRELOAD='{shown.stdout.strip()}' FAKETIME=\"$(cat '{offset}')\"\n"
        f'exec "{sys.executable}" -m nsq.daemons.nsqd "$@"\n'
    )
    program.chmod(0o755)
    offset.write_text("+0d")
    nsqd = start(nsqd_factory, tmp_path / "data", durable=durable, binary=program)
    hours = [(hour + 1) * 3_600_000 for hour in range(300)]
    defer(nsqd, hours)
    found: list[bytes] = []
    for days, expected in ((2, 48), (1, 48), (5, 120), (-3, 120), (14, 300)):
        nsqd.stop(keep_data=True)
        offset.write_text(f"{days:+d}d")
        nsqd.start()
        with consumer(nsqd, "t", rdy=100) as client:
            while len(found) < expected:
                message = client.expect_message(timeout=30)
                found.append(message.body)
                client.send(commands.fin(message.id))
            client.expect_silence(0.2)
            eventually(lambda: channel_stats(nsqd, "t")["in_flight_count"], lambda count: count == 0)
        assert deferred_count(nsqd) == 300 - expected
    assert sorted(found) == sorted(b"%d" % hour for hour in hours)
