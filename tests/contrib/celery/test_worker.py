"""A real Celery worker on a real nsqd."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable

import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import Factory
from tests.golden.recordings import others_are_judged

from .conftest import PATIENCE, ROOT, Site, wait_for

OLDEST = ROOT / ".venv" / "interop" / "celery" / "bin" / "python"
POOLS = ["prefork", "threads", "solo", "gevent"]


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_runs_tasks_retries_and_eta_and_answers_remote_control(
    site: Callable[..., Site], nsqd: Nsqd, pool: str
) -> None:
    here = site(f"nsq://{nsqd.tcp_address}")
    here.worker("-P", pool, "-c", "2")
    assert [here.tasks.run.delay(each).get(timeout=PATIENCE) for each in range(3)] == [0, 1, 2]
    began = time.monotonic()
    assert here.tasks.run.apply_async((4,), countdown=1.5).get(timeout=PATIENCE) == 4
    assert time.monotonic() - began > 1.4
    assert here.tasks.fail_once.delay(5).get(timeout=PATIENCE) == 5
    inspect = here.app.control.inspect(["w1@here"], timeout=PATIENCE)
    assert inspect.ping() == {"w1@here": {"ok": "pong"}}
    here.app.control.shutdown(["w1@here"])
    wait_for(lambda: here._workers[0].poll() is not None, here.log)
    assert here._workers[0].returncode == 0, here.log()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_worker_of_the_oldest_celery_works_with_a_publisher_of_the_newest(
    site: Callable[..., Site], nsqd: Nsqd, pool: str
) -> None:
    if not OLDEST.exists():
        pytest.skip("the oldest Celery is not installed: run 'make test'")
    here = site(f"nsq://{nsqd.tcp_address}")
    here.worker("-P", pool, "-c", "2", python=str(OLDEST))
    results = [here.tasks.begin_and_end_late.delay(number, 0.0) for number in range(400)]
    began = time.monotonic()
    assert [result.get(timeout=PATIENCE) for result in results] == list(range(400))
    # Without our help kombu before 5.7 lets acks of the threads pool wait for a second: 8 tasks a second.
    assert time.monotonic() - began < 30
    inspect = here.app.control.inspect(["w1@here"], timeout=PATIENCE)
    assert inspect.ping() == {"w1@here": {"ok": "pong"}}
    assert " v5.5." in here.log()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_restart_of_nsqd_runs_no_task_twice_and_loses_none(
    site: Callable[..., Site], nsqd_factory: Factory[Nsqd], pool: str
) -> None:
    if others_are_judged():
        pytest.skip("only our nsqd has --durable")
    nsqd = nsqd_factory(process=True, durable=True)
    here = site(f"nsq://{nsqd.tcp_address}")
    here.worker("-P", pool, "-c", "2")
    for number in range(8):
        here.tasks.begin_and_end_late.delay(number, 1.0)
    here.wait_for_runs(1)
    nsqd.stop(keep_data=True)
    time.sleep(2)
    nsqd.start()
    here.tasks.begin_and_end_late.delay(8, 0.0)
    here.wait_for_runs(18)
    # A message that nsqd delivers again comes at once after the worker has connected.
    assert here.tasks.run.delay(9).get(timeout=PATIENCE) == 9
    assert Counter(here.runs).most_common(1)[0][1] == 1, here.runs
    assert "Connection to broker lost" not in here.log()


@pytest.mark.parametrize(("pool", "task"), [("prefork", "begin_and_end_late"), ("threads", "begin_and_end")])
def test_tasks_longer_than_nsqds_limit_run_once(
    site: Callable[..., Site], nsqd_factory: Factory[Nsqd], pool: str, task: str
) -> None:
    nsqd = nsqd_factory(process=True, msg_timeout=1.0, max_msg_timeout=2.0)
    here = site(f"nsq://{nsqd.tcp_address}")
    here.worker("-P", pool, "-c", "1")
    for number in range(3):
        getattr(here.tasks, task).delay(number, 3.0)
    here.wait_for_runs(6)
    here.tasks.run.delay(9)
    here.wait_for_runs(7)
    assert Counter(here.runs).most_common(1)[0][1] == 1, here.runs


def test_a_task_that_kills_its_process_ends_in_the_dead_letters(
    site: Callable[..., Site], nsqd: Nsqd
) -> None:
    here = site(f"nsq://{nsqd.tcp_address}?max_deaths=2")
    here.worker("-P", "prefork", "-c", "1")
    here.tasks.kill_its_process.delay(1)
    wait_for(lambda: "celery.dead" in nsqd.get("/stats?format=json").body.decode(), here.log)
    assert here.tasks.run.delay(2).get(timeout=PATIENCE) == 2
    assert here.runs == ["die 1"] * 3 + ["run 2"]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_that_asks_to_be_put_back_is_not_counted_as_dead(
    site: Callable[..., Site], nsqd: Nsqd, pool: str
) -> None:
    here = site(f"nsq://{nsqd.tcp_address}?max_deaths=2")
    here.worker("-P", pool, "-c", "1")
    assert here.tasks.ask_back.delay(1, 6).get(timeout=PATIENCE) == 1
    assert here.runs == ["back 1"] * 6


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="counts connections in /proc")
def test_a_process_that_is_forked_late_inherits_no_connection(site: Callable[..., Site], nsqd: Nsqd) -> None:
    here = site(f"nsq://{nsqd.tcp_address}")
    here.worker("-P", "prefork", "-c", "1", "--max-tasks-per-child", "1")
    port = int(nsqd.tcp_address.rpartition(":")[2])
    results = [here.tasks.connections_to.delay(port) for _ in range(4)]
    assert [result.get(timeout=PATIENCE) for result in results] == [0] * 4


def test_a_killed_nsqd_that_forgets_its_tasks_costs_none_that_a_worker_holds(
    site: Callable[..., Site], nsqd_factory: Factory[Nsqd]
) -> None:
    nsqd = nsqd_factory(process=True)
    here = site(f"nsq://{nsqd.tcp_address}")
    here.worker("-P", "threads", "-c", "2")
    for number in range(8):  # as many as the prefetch
        here.tasks.begin_and_end_late.delay(number, 1.0)
    wait_for(lambda: here.log().count(" received") == 8, here.log)
    nsqd.kill()
    nsqd.start()
    assert Counter(here.wait_for_runs(16)).most_common(1)[0][1] == 1
    assert here.tasks.run.delay(9).get(timeout=PATIENCE) == 9


def test_eta_tasks_beyond_nsqds_limit_wait_by_hops_and_do_not_stop_a_worker(
    site: Callable[..., Site], nsqd_factory: Factory[Nsqd]
) -> None:
    nsqd = nsqd_factory(process=True, max_rdy_count=10, max_req_timeout=1.0)
    here = site(f"nsq://{nsqd.tcp_address}?max_defer=1s")
    here.worker("-P", "threads", "-c", "1")
    for number in range(40):  # more than may be in flight
        here.tasks.run.apply_async((number,), countdown=600)
    began = time.monotonic()
    due = here.tasks.run.apply_async((41,), countdown=3.5)
    assert here.tasks.run.delay(42).get(timeout=PATIENCE) == 42
    assert due.get(timeout=PATIENCE) == 41
    assert time.monotonic() - began > 3.4
    assert here.runs == ["run 42", "run 41"]


def test_a_command_from_before_a_workers_start_does_not_reach_it(
    site: Callable[..., Site], nsqd: Nsqd
) -> None:
    here = site(f"nsq://{nsqd.tcp_address}")
    here.app.control.shutdown()
    time.sleep(1.5)
    here.worker("-P", "solo")
    assert here.tasks.run.delay(1).get(timeout=PATIENCE) == 1


def test_a_purge_deletes_waiting_tasks_and_leaves_running_ones(site: Callable[..., Site], nsqd: Nsqd) -> None:
    here = site(f"nsq://{nsqd.tcp_address}")
    here.worker("-P", "threads", "-c", "1", "--prefetch-multiplier", "1")
    here.tasks.begin_and_end_late.delay(1, 8.0)
    here.wait_for_runs(1)
    for number in range(20):
        here.tasks.run.delay(number)
    assert here.app.control.purge() == 20
    here.tasks.run.delay(99)
    assert here.wait_for_runs(3) == ["begin 1", "end 1", "run 99"]


def test_mingle_and_gossip_work_and_the_secret_is_shown_nowhere(
    site: Callable[..., Site], nsqd: Nsqd
) -> None:
    here = site(f"nsq://hunter2@{nsqd.tcp_address}")
    here.worker("-P", "solo", name="w1", quiet=False)
    here.worker("-P", "solo", name="w2", quiet=False)
    wait_for(lambda: "sync with 1 nodes" in here.log("w2"), lambda: here.log("w2"))
    stats = here.app.control.inspect(timeout=10).stats()
    assert sorted(stats) == ["w1@here", "w2@here"]
    shown = [repr(stats), here.log("w1"), here.log("w2"), here.app.connection().as_uri()]
    assert [text for text in shown if "hunter2" in text] == []
    assert here.app.connection().as_uri() == f"nsq://**@{nsqd.tcp_address}"


def test_a_late_task_must_not_be_allowed_more_time_than_nsqd_allows(
    site: Callable[..., Site], nsqd_factory: Factory[Nsqd]
) -> None:
    nsqd = nsqd_factory(process=True, max_msg_timeout=60.0)
    here = site(f"nsq://{nsqd.tcp_address}", TIME_LIMIT="61")
    with pytest.raises(AssertionError, match=r"time_limit of 61 s, but after 60 s nsqd gives it to another"):
        here.worker("-P", "solo")
    here = site(f"nsq://{nsqd.tcp_address}", TIME_LIMIT="60")
    here.worker("-P", "solo", "-Q", "one,two")
    control = here.app.control
    for ask in (control.cancel_consumer, control.add_consumer):
        assert ask("one", reply=True, timeout=PATIENCE, limit=1)
    said = [line for line in here.log().splitlines() if "a task may take 60 s from its delivery" in line]
    assert [sum(f"worker of the queue {name} may" in line for line in said) for name in ("one", "two")] == [
        1,
        1,
    ]
    assert len(said) == 2


def test_inspect_stats_shows_the_port_of_the_url(site: Callable[..., Site], nsqd: Nsqd) -> None:
    here = site(f"nsq://{nsqd.tcp_address}")
    here.worker("-P", "solo")
    stats = here.app.control.inspect(["w1@here"], timeout=PATIENCE).stats()
    assert stats["w1@here"]["broker"]["port"] == int(nsqd.tcp_address.rpartition(":")[2])
