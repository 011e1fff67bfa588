"""nsq_to_nsq with destinations that refuse, disappear or hang; transcripts tell the rest."""

from __future__ import annotations

import signal
import socket
import subprocess
import time

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from nsq.tools import nsq_to_nsq
from tests.integration.consuming import channel_of, create, drained, numbered, publish, until
from tests.integration.running_tools import signalled_when, tool_process

ARGUMENTS = ["--topic=orders", "--channel=billing"]
QUICK = ["--consumer-opt=default_requeue_delay,0", "--consumer-opt=max_backoff_duration,0"]


def test_a_message_that_is_refused_does_not_keep_the_others(nsqd_factory: Factory[Nsqd]) -> None:
    source, target = nsqd_factory(), nsqd_factory(max_msg_size=20)
    create(source)
    create(target)
    publish(source, [*numbered(10), b"x" * 21, *numbered(10)])
    with signalled_when(lambda: channel_of(source)["requeue_count"] > 1):
        flags = [f"--nsqd-tcp-address={source.tcp_address}", *QUICK]
        destination = f"--destination-nsqd-tcp-address={target.tcp_address}"
        assert nsq_to_nsq.main([*ARGUMENTS, *flags, destination]) == 0
    assert channel_of(target)["message_count"] == 20
    assert channel_of(source)["depth"] == 1


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("mode", ["hostpool", "round-robin"])
def test_messages_for_a_destination_that_refuses_go_to_the_other_at_once(
    nsqd_factory: Factory[Nsqd], mode: str, first: bool
) -> None:
    source, target = nsqd_factory(), nsqd_factory()
    create(source)
    create(target)
    publish(source, numbered(1000))
    with socket.socket() as refusing, signalled_when(drained(source)):
        refusing.bind(("127.0.0.1", 0))  # and does not listen
        both = [f"127.0.0.1:{refusing.getsockname()[1]}", target.tcp_address]
        targets = [f"--destination-nsqd-tcp-address={each}" for each in (both if first else both[::-1])]
        flags = [f"--nsqd-tcp-address={source.tcp_address}", f"--mode={mode}"]
        assert nsq_to_nsq.main([*ARGUMENTS, *flags, *targets]) == 0
    assert channel_of(target)["message_count"] == 1000
    assert channel_of(source)["requeue_count"] == 0


def test_a_destination_that_disappears_costs_nothing(nsqd_factory: Factory[Nsqd]) -> None:
    source, target = nsqd_factory(), nsqd_factory()
    create(source)
    create(target)
    publish(source, numbered(50))
    target.stop(keep_data=True)
    came_back: list[float] = []

    def back_and_drained() -> bool:
        if channel_of(source)["requeue_count"] and not came_back:
            came_back.append(time.monotonic())
            target.start()
        return drained(source)()

    with signalled_when(back_and_drained):
        flags = [f"--nsqd-tcp-address={source.tcp_address}", *QUICK, "--producer-opt=publish_timeout,200"]
        destination = f"--destination-nsqd-tcp-address={target.tcp_address}"
        assert nsq_to_nsq.main([*ARGUMENTS, *flags, destination]) == 0
    assert channel_of(target)["message_count"] == 50


def test_a_second_signal_ends_it_though_the_destination_hangs(nsqd: Nsqd) -> None:
    create(nsqd)
    publish(nsqd, numbered(50))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        flags = [*ARGUMENTS, f"--nsqd-tcp-address={nsqd.tcp_address}"]
        destination = f"--destination-nsqd-tcp-address=127.0.0.1:{silent.getsockname()[1]}"
        with tool_process("nsq_to_nsq", *flags, destination, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            until("in flight", lambda: channel_of(nsqd)["in_flight_count"] == 50)
            began = time.monotonic()
            for _ in range(2):
                process.send_signal(signal.SIGTERM)
                time.sleep(1.2)  # those within a second count as one
            assert process.wait(60) == 0
            assert time.monotonic() - began < 15
            assert b"a second signal" in process.stderr.read()
    until("nothing is lost", lambda: channel_of(nsqd)["depth"] == 50)
