"""A receiver and its log: ``spark_receive PORT COUNT IN_FLIGHT``; prints messages per second, and the total
seconds.
"""

from __future__ import annotations

import sys
import tempfile
import time

from benchmarks.peers.work import CHANNEL, TOPIC
from nsq.spark.receiver.pool import ReceiverPool
from nsq.spark.source.options import SourceOptions
from nsq.spark.wal import open_wal

_WARM_UP = 50_000
_PAUSE = 0.005
_PATIENCE = 60.0


def main(port: int, count: int, in_flight: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        options = SourceOptions.of(
            {
                "topic": TOPIC,
                "channel": CHANNEL,
                "wal": f"{folder}/wal",
                "nsqd": f"127.0.0.1:{port}",
                "maxInFlight": str(in_flight),
                "walMaxBytes": "1t",  # no reader empties it
            }
        )
        open_wal(options.wal).prepare()
        with ReceiverPool(options) as pool:
            pool.start()
            began_at_all, _ = _reached(pool, 1)
            began, first = _reached(pool, _WARM_UP)
            ended, last = _reached(pool, first + count)
        return (last - first) / (ended - began), ended - began_at_all


def _reached(pool: ReceiverPool, count: int) -> tuple[float, int]:
    """Return the time when this number had been received, and the number then."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        received, now = pool.status().received, time.monotonic()
        if received >= count:
            return now, received
        if now > deadline or pool.fatal_error:
            raise SystemExit(f"{received} of {count} received; {pool.fatal_error or pool.status()}")
        time.sleep(_PAUSE)


if __name__ == "__main__":
    print(*main(*map(int, sys.argv[1:])))
