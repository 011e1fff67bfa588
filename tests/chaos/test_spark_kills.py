"""Whoever has a part in a stream is killed while its batch is half done: no message is lost, and none is
there twice but those that nsqd has delivered twice.

make chaos ARGS='-k spark'              # tells what happened
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from tests.integration.patience import eventually

pytest.importorskip("pyspark", reason="pip install 'nsq[spark]'")

from tests.chaos.spark_processes import DRIVER, JVM, RECEIVER, RUNNER
from tests.chaos.spark_scene import PATIENCE, WINDOW, Scene, Verdict, judge, playing
from tests.chaos.telling import Tell

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

#: So that what a killed receiver had in flight comes again soon.
_SOON = {"msgTimeout": "10s"}

Stage = Callable[..., Scene]
Told = Callable[[str, Verdict], Verdict]


@pytest.fixture
def stage(nsqd_factory: Factory[Nsqd], tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:

        def build(**options: str) -> Scene:
            load = {"receivers": "2", "maxMessagesPerTrigger": "30000", "minPartitions": "2"}
            scene = playing(nsqd_factory(process=True), tmp_path, a_second=10_000, **load, **options)
            return stack.enter_context(scene)

        yield build


@contextmanager
def in_the_middle(scene: Scene, master: str = "local[2]") -> Iterator[None]:
    """Publishing goes on, some batches are done, and one is logged and half done."""
    with scene.publishing():
        scene.follow(master)
        scene.await_batches(2)
        scene.hold()
        yield


@pytest.fixture
def told(tell: Tell) -> Told:
    def told(killed: str, verdict: Verdict) -> Verdict:
        tell(f"Spark, {killed} killed: {verdict}")
        return verdict

    return told


def test_the_python_driver(stage: Stage, told: Told) -> None:
    scene = stage()
    with in_the_middle(scene):
        scene.kill(DRIVER)
        scene.await_end()
        assert scene.pending()
        scene.go_on()
    judge(told("Python driver", scene.drain()), 0)


def test_the_jvm(stage: Stage, told: Told) -> None:
    scene = stage()
    with in_the_middle(scene):
        scene.kill(JVM)
        scene.await_end()
        assert scene.pending()
        scene.go_on()
    judge(told("JVM", scene.drain()), 0)


def test_a_receiver(stage: Stage, told: Told) -> None:
    scene = stage(**_SOON)
    with in_the_middle(scene):
        victim = scene.kill_one(RECEIVER)
        scene.go_on()
        eventually(
            lambda: scene.processes(RECEIVER),
            lambda alive: len(alive) == 2 and victim not in alive,
            PATIENCE,
        )
        scene.await_batches(3)
    scene.stop()
    judge(told("a receiver", scene.drain()), WINDOW)


def test_an_executor(stage: Stage, told: Told) -> None:
    scene = stage()
    with in_the_middle(scene, "local-cluster[2,1,1024]"):
        (batch,) = scene.pending()
        scene.kill_executor_at_work()
        assert scene.pending() == {batch}
        scene.go_on()
        scene.await_batches(3)
    scene.stop()
    judge(told("an executor", scene.drain()), 0)


def test_everybody_at_once(stage: Stage, told: Told) -> None:
    scene = stage(**_SOON)
    with in_the_middle(scene):
        receivers = len(scene.processes(RECEIVER))
        scene.kill(DRIVER, JVM, RUNNER, RECEIVER)
        scene.await_end()
        assert scene.pending()
        scene.go_on()
    judge(told("driver, JVM, runner and receivers", scene.drain()), receivers * WINDOW)


def test_everybody_one_after_the_other(stage: Stage, told: Told) -> None:
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
    judge(told("one after the other", scene.drain()), bound)
