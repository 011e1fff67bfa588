"""The Spark part of the demo: two more channels become an archive in Parquet and a chart, with the commands
that a user would type.
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

#: Created before the first event, like those of the services.
CHANNELS = ("lake", "metrics")
FIELDS = "event bigint, step string"


class Pipelines:
    """Call ``run`` after everything is published."""

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
        """Run a command; its output goes to ours."""
        command = [verb, TOPIC, "--lookupd", self._lookupd, *map(str, words)]
        self._screen.say(f"\n$ nsq-spark {shlex.join(command)}")
        program = subprocess.Popen([sys.executable, "-m", "nsq.spark", *command])
        try:
            status = program.wait()
        except BaseException:
            # Interrupted: the command got the same Ctrl-C, or gets one now, and ends gracefully.
            program.terminate()
            program.wait()
            raise
        if status:
            raise ChildProcessError(f"nsq-spark {verb} ended with status {status}")


def counted(archive: Path) -> tuple[int, int]:
    """Count rows and distinct events: an event that NSQ delivered twice has two rows."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    found = ds.dataset(archive, partitioning="hive").to_table(columns={"event": ds.field("body", "event")})
    return found.num_rows, pc.count_distinct(found["event"]).as_py()
