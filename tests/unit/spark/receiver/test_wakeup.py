"""Events that wake a receiver's main thread."""

from __future__ import annotations

import os
import signal

from nsq.spark.receiver.process import SignalWakeup


def test_a_signal_ends_the_wait_and_is_found() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with SignalWakeup() as wakeup:
            os.kill(os.getpid(), signal.SIGTERM)
            wakeup.wait(3600.0)
            os.kill(os.getpid(), signal.SIGINT)  # within a second, so it counts as the same
            assert wakeup.signals == 1
    finally:
        signal.signal(signal.SIGTERM, before)
