"""Stopping several consumers at the same time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsq.log import Logger

if TYPE_CHECKING:
    from nsq import Consumer
    from nsq.threads.signals import SignalWatch

log = Logger("nsq.work")

STOP_TIMEOUT = 30.0


def stop_all(consumers: Sequence[Consumer], watch: SignalWatch, timeout: float = STOP_TIMEOUT) -> bool:
    """Stop all consumers at once; return whether all stopped cleanly. A later signal cuts it short."""
    reports: list[object] = []

    def stop(consumer: Consumer) -> None:
        report = None
        try:
            report = consumer.stop(timeout)
        finally:
            reports.append(report)
            watch.wake()

    threads = [
        threading.Thread(target=stop, args=(consumer,), name=f"nsq-stop-{consumer.topic}", daemon=True)
        for consumer in consumers
    ]
    for thread in threads:
        thread.start()
    while len(reports) < len(threads):
        if watch.wait() is not None:
            log.warning("a second signal: exiting at once")
            for consumer in consumers:
                consumer.stop(0.0)
    for thread in threads:
        thread.join()
    return all(reports)
