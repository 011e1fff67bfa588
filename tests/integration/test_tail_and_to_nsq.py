"""nsq_tail and to_nsq where time and signals matter; transcripts tell the rest."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from typing import Any

import pytest

from nsq.testing import Nsqd
from nsq.tools import nsq_tail, program, to_nsq
from tests.integration.consuming import (
    channel_of,
    create,
    publish,
    until,
)
from tests.integration.running_tools import signalled_when, tool_process

CHANNEL = "--channel=billing"
TOPIC = "--topic=orders"


def nsqd_of(nsqd: Nsqd) -> str:
    return f"--nsqd-tcp-address={nsqd.tcp_address}"


def test_messages_after_the_last_shown_one_are_not_lost(
    nsqd: Nsqd, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    create(nsqd)
    publish(nsqd, [b"one", b"two"])
    stop_all = program.stop_all

    def late(*args: Any, **options: Any) -> bool:
        """nsqd has time to deliver the next message again and again."""
        until("delivered", lambda: paused_or_delivered(nsqd))
        return stop_all(*args, **options)

    def paused_or_delivered(nsqd: Nsqd) -> bool:
        counts = channel_of(nsqd)
        ready = sum(client["ready_count"] for client in counts["clients"])
        return not ready or counts["requeue_count"] > 10

    monkeypatch.setattr(program, "stop_all", late)
    assert nsq_tail.main([TOPIC, CHANNEL, nsqd_of(nsqd), "-n", "1"]) == 0
    assert capfdbinary.readouterr().out == b"one\n"
    assert until("requeued", lambda: channel_of(nsqd)["depth"] == 1)


def test_nsq_tail_uses_an_ephemeral_channel(nsqd: Nsqd) -> None:
    def channels() -> list[str]:
        topics = nsqd.get("/stats?format=json").json()["topics"] or []
        return [channel["channel_name"] for topic in topics for channel in topic["channels"]]

    found: list[str] = []
    with signalled_when(lambda: found.extend(channels()) or found):
        assert nsq_tail.main([TOPIC, nsqd_of(nsqd), "--consumer-opt=tls_v1,false"]) == 0
    assert re.fullmatch(r"tail\d{6}#ephemeral", found[0])


def test_a_reader_that_goes_away_loses_nothing(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, [b"one"])
    with tool_process(
        "nsq_tail", TOPIC, CHANNEL, nsqd_of(nsqd), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"one\n"
        process.stdout.close()
        publish(nsqd, [b"two"])
        assert process.wait(60) == 128 + signal.SIGPIPE
        assert b"Traceback" not in process.stderr.read()
    until("back in the channel", lambda: channel_of(nsqd)["depth"] == 1)


def test_a_signal_ends_it_with_what_was_read_whole(
    nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    create(nsqd)
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin, os.fdopen(writer, "wb") as out:
        monkeypatch.setattr("sys.stdin", stdin)
        out.write(b"one\ntwo\nthr")
        out.flush()
        with signalled_when(lambda: channel_of(nsqd)["message_count"] == 2):
            assert to_nsq.main([TOPIC, nsqd_of(nsqd), "--rate=1000"]) == 0
    assert channel_of(nsqd)["message_count"] == 2
    assert "published 2 messages to orders" in capfd.readouterr().err
