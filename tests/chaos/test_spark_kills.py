"""Each process of a stream is killed in the middle of a batch: no message is lost, and only those that
nsqd has delivered twice are there twice.

make chaos ARGS='-k spark'              # tells what happened
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import Factory

pytest.importorskip("pyspark", reason="pip install 'nsq[spark]'")

from tests.chaos.spark_processes import DRIVER, JVM, RECEIVER, RUNNER
from tests.chaos.spark_scene import WINDOW, Scene, Verdict, judge, playing
from tests.chaos.telling import Tell
from tests.fakes.s3 import S3
from tests.fakes.s3 import running as running_s3

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

#: So that what a killed receiver had in flight comes again soon.
_SOON = {"msgTimeout": "10s"}

Stage = Callable[..., Scene]
Report = Callable[[str, Verdict], Verdict]


@pytest.fixture
def stage(nsqd_factory: Factory[Nsqd], tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:

        def build(**options: str) -> Scene:
            load = {"receivers": "2", "maxMessagesPerTrigger": "30000", "minPartitions": "2"}
            scene = playing(nsqd_factory(process=True), tmp_path, a_second=10_000, **load, **options)
            return stack.enter_context(scene)

        yield build


@pytest.fixture
def s3() -> Iterator[S3]:
    with running_s3() as server:
        yield server


@contextmanager
def in_the_middle(scene: Scene, master: str = "local[2]", on_executors: int = 0) -> Iterator[None]:
    """Publishing goes on, some batches are done, and one is logged and half done."""
    with scene.publishing():
        scene.follow(master, on_executors)
        scene.await_batches(2)
        scene.hold()
        yield


@pytest.fixture
def report(tell: Tell) -> Report:
    def report(killed: str, verdict: Verdict) -> Verdict:
        tell(f"Spark, {killed} killed: {verdict}")
        return verdict

    return report


@pytest.mark.parametrize("role", [DRIVER, JVM], ids=["Python driver", "JVM"])
def test_no_message_is_lost_when_one_half_of_the_driver_is_killed(
    stage: Stage, report: Report, role: str
) -> None:
    scene = stage()
    with in_the_middle(scene):
        scene.kill(role)
        scene.await_end()
        assert scene.pending()
        scene.go_on()
    judge(report(role, scene.drain()), 0)


def test_no_message_is_lost_when_an_executor_is_killed(stage: Stage, report: Report) -> None:
    scene = stage()
    with in_the_middle(scene, "local-cluster[2,1,1024]"):
        (batch,) = scene.pending()
        scene.kill_executor_at_work()
        assert scene.pending() == {batch}
        scene.go_on()
        scene.await_batches(3)
    scene.stop()
    judge(report("an executor", scene.drain()), 0)


@pytest.mark.parametrize("into", ["a directory", "an object store"])
def test_no_message_is_lost_when_an_executor_that_receives_is_killed(
    stage: Stage, report: Report, s3: S3, into: str
) -> None:
    """Spark starts the lost receivers on another executor, where they receive under new names. The object
    store is slow, loses replies, and stalls for longer than a message's timeout.
    """
    scene = stage(**_SOON, **({} if into == "a directory" else {"wal": s3.uri("orders")}))
    s3.control(delay=0.05, errors=0.03, lost=0.03, conflicts=0.03)
    with in_the_middle(scene, "local-cluster[2,2,1024]", on_executors=2):
        scene.kill_executor_at_work()
        scene.go_on()
        scene.await_batches(3)
        s3.control(stall=12)
        scene.await_batches(3)
    scene.kill(DRIVER, JVM)
    scene.await_end()
    judge(report(f"an executor that receives into {into}", scene.drain()), 4 * WINDOW)


@pytest.mark.parametrize("into", ["a directory", "an object store"])
def test_no_message_is_lost_on_a_standalone_cluster(stage: Stage, report: Report, s3: S3, into: str) -> None:
    """An executor, a worker and the driver are killed one after the other, each in the middle of a batch.
    Receivers run on the executors; a request to the object store takes 50 ms.
    """
    scene = stage(**_SOON, **({} if into == "a directory" else {"wal": s3.uri("orders")}))
    s3.control(delay=0.05)
    with scene.standalone() as cluster, in_the_middle(scene, cluster.url, on_executors=2):
        scene.kill_executor_at_work()
        scene.go_on()
        scene.await_batches(3)
        scene.hold()
        scene.kill_worker_at_work(cluster)
        scene.go_on()
        scene.await_batches(3)
        scene.hold()
        scene.kill(DRIVER, JVM)
        scene.await_end()
        assert scene.pending()
        scene.go_on()
        scene.follow(cluster.url, on_executors=2)
        scene.await_batches(3)
        scene.kill(DRIVER, JVM)
        scene.await_end()
    judge(report(f"on a standalone cluster, into {into}", scene.drain()), 8 * WINDOW)


def test_no_message_is_lost_when_all_processes_are_killed_in_turn(stage: Stage, report: Report) -> None:
    """The same checkpoint and log survive them all."""
    scene, bound = stage(**_SOON), 0
    everybody = (DRIVER, JVM, RUNNER, RECEIVER)
    with scene.publishing():
        for roles in ((JVM,), (DRIVER, RUNNER, RECEIVER), (DRIVER,), everybody):
            scene.follow("local[2]")
            scene.await_batches(2)
            bound += WINDOW * len(scene.processes(RECEIVER)) if RECEIVER in roles else 0
            scene.kill(*roles)
            scene.await_end()
    judge(report("one after the other", scene.drain()), bound)
