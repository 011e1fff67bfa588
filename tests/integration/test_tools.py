"""nsq_tail, nsq_stat and to_nsq against an nsqd: output, end, and answers to messages."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsq.testing import Nsqd, Nsqlookupd
from nsq.testing.plugin import Factory
from nsq.tools import nsq_stat, nsq_tail, program, to_nsq
from tests.integration.consuming import (
    channel_of,
    create,
    numbered,
    publish,
    until,
)
from tests.integration.patience import eventually
from tests.integration.running_tools import signalled_when, tool_process

CHANNEL = "--channel=billing"
TOPIC = "--topic=orders"


def nsqd_of(nsqd: Nsqd) -> str:
    return f"--nsqd-tcp-address={nsqd.tcp_address}"


class TestTail:
    def test_n_messages_are_shown_and_finished(
        self, nsqd: Nsqd, capfdbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        create(nsqd)
        publish(nsqd, [b"one", b'{"two": 2}', b"three"])
        assert nsq_tail.main([TOPIC, CHANNEL, nsqd_of(nsqd), "-n", "2"]) == 0
        said = capfdbinary.readouterr()
        assert said.out == b'one\n{"two": 2}\n'
        assert said.err.startswith(b"Adding consumer for topic: orders\n")

        def two_finished() -> bool:
            counts = channel_of(nsqd)
            return counts["depth"] == 1 and not counts["in_flight_count"]

        until("finished", two_finished)

    def test_a_refused_identify_ends_it(self, nsqd: Nsqd, capfd: pytest.CaptureFixture[str]) -> None:
        assert nsq_tail.main([TOPIC, CHANNEL, nsqd_of(nsqd), "--consumer-opt=msg_timeout,1h"]) == 1
        assert "E_BAD_BODY" in capfd.readouterr().err.splitlines()[-1]

    def test_messages_after_the_last_shown_one_are_not_lost(
        self, nsqd: Nsqd, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
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

    def test_nsq_tail_shows_several_topics_until_a_signal(
        self, nsqd: Nsqd, capfdbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        create(nsqd)
        create(nsqd, topic="returns")
        publish(nsqd, [b"one"])
        publish(nsqd, [b"two"], topic="returns")

        def both_shown() -> bool:
            counts = [channel_of(nsqd, topic) for topic in ("orders", "returns")]
            return all(
                each["client_count"] and not each["depth"] and not each["in_flight_count"] for each in counts
            )

        with signalled_when(both_shown):
            arguments = [TOPIC, "--topic=returns", CHANNEL, nsqd_of(nsqd), "--print-topic", "--meta"]
            assert nsq_tail.main(arguments) == 0
        shown = capfdbinary.readouterr().out.splitlines()
        assert [re.sub(rb"\| \w{16} attempts=1 age=\d+\.\d{3}s ", b"| ", line) for line in sorted(shown)] == [
            b"orders | one",
            b"returns | two",
        ]

    def test_nsq_tail_uses_an_ephemeral_channel(self, nsqd: Nsqd) -> None:
        def channels() -> list[str]:
            topics = nsqd.get("/stats?format=json").json()["topics"] or []
            return [channel["channel_name"] for topic in topics for channel in topic["channels"]]

        found: list[str] = []
        with signalled_when(lambda: found.extend(channels()) or found):
            assert nsq_tail.main([TOPIC, nsqd_of(nsqd), "--consumer-opt=tls_v1,false"]) == 0
        assert re.fullmatch(r"tail\d{6}#ephemeral", found[0])

    def test_a_reader_that_goes_away_loses_nothing(self, nsqd: Nsqd) -> None:
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


class TestStat:
    def test_nsq_stat_writes_rows_of_rates(
        self, nsqlookupd: Nsqlookupd, nsqd_factory: Factory[Nsqd], capfd: pytest.CaptureFixture[str]
    ) -> None:
        for count in (3, 4):
            nsqd = nsqd_factory(lookupd=[nsqlookupd])
            create(nsqd)
            publish(nsqd, numbered(count))
            eventually(lambda: channel_of(nsqd)["depth"], count.__eq__)  # noqa: B023 - called at once
        lookupd = nsqlookupd.http_address
        until("both are known", lambda: len(nsqlookupd.get("/lookup?topic=orders").json()["producers"]) == 2)
        twice = [f"--lookupd-http-address={lookupd}"] * 2
        assert nsq_stat.main([TOPIC, CHANNEL, *twice, "--interval=1ms", "--count=2"]) == 0
        _, header, *rows = capfd.readouterr().out.splitlines()
        assert header.split()[0] == "ingress"
        assert [row.split() for row in rows] == [[*"00|77000|0070"]] * 2

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ([CHANNEL], "no nsqd has topic orders"),
            ([CHANNEL, "--nsqd-http-address=127.0.0.1:1"], "127.0.0.1:1"),
            ([CHANNEL, "--lookupd-http-address=127.0.0.1:1"], "not both"),
            ([CHANNEL, "--nsqd-http-address=http://a:1"], "without a scheme"),
            ([CHANNEL, "--interval=0s"], "--interval"),
            ([CHANNEL, "--count=0"], "--count"),
            ([], "--channel required (or write: nsq stat TOPIC/CHANNEL)"),
        ],
    )  # fmt: skip
    def test_any_mistake_or_missing_answer_is_status_1_and_a_line(
        self, nsqd: Nsqd, arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert nsq_stat.main([TOPIC, f"--nsqd-http-address={nsqd.http_address}", *arguments]) == 1
        printed = capfd.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert said in printed.err


class TestToNsq:
    @pytest.fixture
    def run(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., int]]:
        files: list[io.TextIOWrapper] = []

        def run(data: bytes, *arguments: str) -> int:
            (tmp_path / "in").write_bytes(data)
            files.append((tmp_path / "in").open())
            monkeypatch.setattr("sys.stdin", files[-1])
            return to_nsq.main([TOPIC, *arguments])

        yield run
        for file in files:
            file.close()

    def test_every_record_reaches_every_nsqd(
        self, run: Callable[..., int], nsqd_factory: Factory[Nsqd], capfdbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        nsqds = [nsqd_factory(), nsqd_factory()]
        for nsqd in nsqds:
            create(nsqd)
        assert run(b"one;;two;last", "--delimiter=;", *map(nsqd_of, nsqds)) == 0
        for nsqd in nsqds:
            capfdbinary.readouterr()
            assert nsq_tail.main([TOPIC, CHANNEL, nsqd_of(nsqd), "-n=3"]) == 0
            assert capfdbinary.readouterr().out == b"one\ntwo\nlast\n"

    def test_a_signal_ends_it_with_what_was_read_whole(
        self, nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
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

    @pytest.mark.parametrize(
        ("arguments", "status", "said"),
        [
            (["--nsqd-tcp-address=127.0.0.1:1", "--producer-opt=publish_timeout,100"], 1, "127.0.0.1:1"),
            (["--nsqd-tcp-address=127.0.0.1:1", "--producer-opt=nonsense,1"], 2, "--producer-opt: "),
            (["--nsqd-tcp-address=127.0.0.1:1", "--delimiter=ab"], 1, "--delimiter must be a single byte"),
            ([], 1, "--nsqd-tcp-address required"),
            (["--version"], 2, "not defined: -version"),
            (["--topic=a b"], 1, "to_nsq: topic name 'a b' contains ' '"),
        ],
    )
    def test_wrong_flags_are_reported(
        self,
        run: Callable[..., int],
        arguments: list[str],
        status: int,
        said: str,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        assert run(b"one\n", *arguments) == status
        assert said in capfd.readouterr().err
