"""Spark Connect, in a program of its own: source, sink, receivers, archive, metrics and the listener."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsq.http.nsqd import NsqdApi
from nsq.testing import Nsqd

pytest.importorskip("grpc", reason="pip install 'pyspark[connect]'")

_ROOT = Path(__file__).resolve().parents[2]
COUNT = 200  # less than the first window of a receiver: one batch


def test_source_sink_and_pipelines_work_with_spark_connect(java: None, nsqd: Nsqd, tmp_path: Path) -> None:
    api = NsqdApi(nsqd.http_address)
    api.create_topic("orders")
    for channel in ("spark", "archive", "metrics"):
        api.create_channel("orders", channel)
    api.create_topic("copies")
    api.create_channel("copies", "test")
    api.multi_publish("orders", [b"%d" % number for number in range(COUNT)])
    given = {"folder": str(tmp_path), "nsqd": nsqd.tcp_address, "http": nsqd.http_address, "count": COUNT}
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",  # any free port, instead of 15002
        "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_program", json.dumps(given)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "connect": True,
        "rows": COUNT,
        "receivers": 1,
        "left": 0,
        "archived": [COUNT, 1],
        "read": COUNT,
        "counted": [COUNT, COUNT],
        "prometheus": True,
    }, done.stderr[-4000:]
    (channel,) = api.stats("copies")["topics"][0]["channels"]
    assert channel["depth"] == COUNT
