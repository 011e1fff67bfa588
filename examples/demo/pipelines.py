"""The end of the play on Spark: two channels of its own become an archive in Parquet and a picture, with the
commands that one would type.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from .cluster import TOPIC, Cluster
from .screen import Screen
from .shop import STEPS

#: Made before the first event, like those of the services.
CHANNELS = ("lake", "metrics")
FIELDS = "event bigint, step string"


class Pipelines:
    """``run`` is to be called once everything is published."""

    def __init__(self, cluster: Cluster, screen: Screen, expected: int) -> None:
        self._lookupd = cluster.nsqlookupd.http_address
        self._screen = screen
        self._expected = expected
        self.directory = Path(tempfile.mkdtemp(prefix="orders-spark-"))
        self.lost = expected

    def run(self) -> None:
        to, chart = self.directory / "orders", self.directory / "orders.png"
        self._call("archive", "--channel", "lake", "--to", to, "--body", "json", "--schema", FIELDS)
        wal = self.directory / "metrics-wal"
        self._call(
            "metrics", "--channel", "metrics", "--wal", wal, "--window", "2 seconds",
            "--key", "$.step", "--top", len(STEPS), "--chart", chart,
        )  # fmt: skip
        rows, events = counted(to)
        self.lost = self._expected - events
        self._screen.say(
            f"\nthe archive in Parquet has {rows:,} rows of {events:,} different events, {self.lost:,} lost"
        )
        self._screen.say(f"it is {to}, and the picture {chart}")

    def _call(self, verb: str, *words: object) -> None:
        """What the command prints is for the reader, so it goes where ours goes."""
        command = [verb, TOPIC, "--lookupd", self._lookupd, *map(str, words)]
        self._screen.say(f"\n$ nsq-spark {shlex.join(command)}")
        program = subprocess.Popen([sys.executable, "-m", "nsq.spark", *command])
        try:
            status = program.wait()
        except BaseException:
            # Interrupted: it has had the same Ctrl-C, or gets one now, and ends in order.
            program.terminate()
            program.wait()
            raise
        if status:
            raise ChildProcessError(f"nsq-spark {verb} ended with status {status}")


def counted(archive: Path) -> tuple[int, int]:
    """Rows, and different events: one that came twice from NSQ stands there twice."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    found = ds.dataset(archive, partitioning="hive").to_table(columns={"event": ds.field("body", "event")})
    return found.num_rows, pc.count_distinct(found["event"]).as_py()
