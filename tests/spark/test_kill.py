"""Every process of a stream is killed at once. ``make chaos`` also kills them one by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from tests.chaos.spark_processes import DRIVER, JVM, RECEIVER, RUNNER
from tests.chaos.spark_scene import WINDOW, judge, playing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_no_message_is_lost_when_a_process_is_killed_in_the_middle_of_a_batch(
    spark: SparkSession, nsqd_factory: Factory[Nsqd], tmp_path: Path
) -> None:
    nsqd = nsqd_factory(process=True)
    with playing(nsqd, tmp_path, a_second=2000, msgTimeout="10s") as scene:
        with scene.publishing():
            scene.follow("local[2]")
            scene.await_batches(1)
            scene.hold()
            scene.kill(DRIVER, JVM, RUNNER, RECEIVER)
            scene.await_end()
            assert scene.pending()
            scene.go_on()
        judge(scene.drain_in(spark), WINDOW)
