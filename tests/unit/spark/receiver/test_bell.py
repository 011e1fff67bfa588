"""What wakes the main thread."""

from __future__ import annotations

import os
import signal

from nsq.spark.receiver.bell import Bell

FOREVER = 3600.0


def test_a_ring_ends_the_wait_even_when_it_came_before() -> None:
    with Bell() as bell:
        for _ in range(100_000):
            bell.ring()  # more than a pipe holds
        assert bell.wait(FOREVER) == set()
        assert bell.wait(0.0) == set()


def test_a_signal_ends_the_wait_and_is_found() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Bell() as bell:
        os.kill(os.getpid(), signal.SIGTERM)
        bell.wait(FOREVER)
        assert bell.signals == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_descriptors_that_are_ready_are_named() -> None:
    reader, writer = os.pipe()
    try:
        with Bell() as bell:
            assert bell.wait(0.0, readable=reader) == set()
            assert bell.wait(FOREVER, readable=reader, writable=writer) == {writer}
            os.write(writer, b"x")
            assert bell.wait(FOREVER, readable=reader) == {reader}
    finally:
        os.close(reader)
        os.close(writer)


def test_a_ring_after_the_end_does_nothing() -> None:
    with Bell() as bell:
        pass
    bell.ring()
