"""The backend for ``django.tasks``: Django 6 alone has it. Workers are real ones, run by ``nsq_consume``."""

from __future__ import annotations

import json
import re
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection, transaction
from django.test import override_settings
from django.utils import timezone
from shop.models import Billed

import nsq
from nsq.contrib.django import locmem
from nsq.contrib.django.testing import handle
from nsq.testing import Nsqd
from tests.contrib.postgres import Postgres
from tests.integration.consuming import channel_of, until

from .conftest import PROJECT, Site, bodies

if django.VERSION >= (6,):
    from django.tasks import task, task_backends
    from django.tasks.exceptions import InvalidTask
    from django.tasks.signals import task_finished
    from shop import tasks

    from nsq.contrib.django import NsqBackend
    from nsq.contrib.django import tasks as backend
    from nsq.contrib.django.results.models import StoredResult

pytestmark = pytest.mark.skipif(django.VERSION < (6,), reason="not run: django.tasks needs Django 6")
#: Django's own tests of tasks, which `make django` puts there.
SUITE = next(iter(sorted(Path(sys.prefix).glob("sdist/django-*/tests/tasks"))), None)
MANAGE = str(PROJECT / "manage.py")


def deliver(body: bytes, attempts: int = 1) -> None:
    """Give a body to the worker's handler."""
    handle(lambda message: backend.handle("default", message), body, attempts=attempts)


def test_enqueue_publishes_to_the_topic_of_the_queue_and_the_worker_stores_the_result(outbox: Any) -> None:
    result = tasks.add.enqueue(1, second=2)
    (published,) = outbox
    assert (published.topic, published.defer) == ("tasks.default", None)
    assert (result.status, tasks.add.get_result(result.id).status) == ("READY", "READY")
    deliver(published.body)
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 3, 1)


@pytest.mark.parametrize(
    ("name", "arguments", "status", "value"),
    [
        ("multiply", [3, 4], "SUCCESSFUL", 12),
        ("attempts", [], "SUCCESSFUL", 1),
        ("fail", [], "FAILED", "builtins.ValueError"),
        ("leave", [], "FAILED", "builtins.SystemExit"),
        ("bad_result", [], "FAILED", "builtins.TypeError"),
        ("add", [1], "FAILED", "builtins.TypeError"),
    ],
)
def test_the_result_says_how_a_task_ended(
    name: str, arguments: list[Any], status: str, value: Any, outbox: Any
) -> None:
    result = getattr(tasks, name).enqueue(*arguments)
    deliver(outbox[0].body)
    result.refresh()
    said = result.return_value if status == "SUCCESSFUL" else result.errors[0].exception_class_path
    assert (result.status, said, len(outbox)) == (status, value, 1)


def test_a_second_delivery_of_a_finished_task_does_not_run_it(outbox: Any) -> None:
    tasks.add.enqueue(1, 2)
    deliver(outbox[0].body)
    deliver(outbox[0].body, attempts=2)
    assert Billed.objects.count() == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task": "shop.tasks.gone"}, "does not define a"),
        ({"task": "shop.models.Order"}, "is no task"),
        ({"task": "shop.impostors.one"}, "is no task"),
        ({"task": "antigravity.fly_to"}, r"OPTIONS\['MODULES'\] of TASKS\['default'\]"),
        ({"task": "shopping.tasks.add"}, "in no package of INSTALLED_APPS"),
        ({"task": "add"}, "in no package of INSTALLED_APPS"),
        ({"task": 17}, "has no attribute|must be"),
        ({"queue": "unknown"}, "Queue 'unknown' is not valid"),
        ({"args": None}, "args is None"),
        ({"run_after": "soon"}, "Invalid isoformat"),
        (None, "Expecting value"),
    ],
)
def test_a_message_that_is_no_task_of_this_project_is_given_up(change: Any, said: str, outbox: Any) -> None:
    tasks.add.enqueue(1, 2)
    body = b"hello" if change is None else json.dumps(json.loads(outbox.pop().body) | change).encode()
    outbox.clear()
    with pytest.raises(nsq.GiveUp, match=f"no task that can run here: .*{said}"):
        deliver(body)
    assert outbox == []
    assert "antigravity" not in sys.modules


def test_a_task_outside_of_the_apps_needs_a_setting(outbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("jobs.nightly")
    monkeypatch.setitem(sys.modules, "jobs", ModuleType("jobs"))
    monkeypatch.setitem(sys.modules, "jobs.nightly", module)

    def clean() -> int:
        return 5

    clean.__module__, clean.__qualname__ = module.__name__, "clean"
    module.clean = task(clean)  # type: ignore[attr-defined]
    with pytest.raises(InvalidTask, match=r"jobs\.nightly\.clean is in no package of INSTALLED_APPS"):
        module.clean.enqueue()
    assert (outbox, StoredResult.objects.count()) == ([], 0)
    for modules in (["jobs"], ("jobs.nightly",)):
        options = {"BACKEND": "nsq.contrib.django.NsqBackend", "OPTIONS": {"MODULES": modules}}
        with override_settings(TASKS={"default": options}):
            result = module.clean.enqueue()
            deliver(outbox.pop().body)
            result.refresh()
            assert result.return_value == 5


def test_run_after_is_reached_by_hops_of_what_nsqd_allows(outbox: Any) -> None:
    soon, late = timezone.now() + timedelta(minutes=10), timezone.now() + timedelta(days=2)
    tasks.add.using(run_after=soon).enqueue(1, 2)
    tasks.add.using(run_after=late).enqueue(3, 4)
    assert 590 < outbox[0].defer <= 600
    assert outbox[1].defer == 3600
    deliver(outbox[1].body)
    assert (outbox[2].topic, outbox[2].body, outbox[2].defer) == ("tasks.default", outbox[1].body, 3600)
    assert Billed.objects.count() == 0


def test_enqueue_on_commit_sends_nothing_after_a_rollback(outbox: Any) -> None:
    with transaction.atomic():
        tasks.mail.enqueue("ada")
        assert outbox == []
    with pytest.raises(ValueError, match="no"), transaction.atomic():
        tasks.mail.enqueue("bob")
        raise ValueError("no")
    assert [each.topic for each in outbox] == ["tasks.mails"]


def test_a_task_that_could_not_be_enqueued_leaves_no_result_that_waits(database: None) -> None:
    down = {"NSQD": "127.0.0.1:1", "OPTIONS": {"publish_timeout": 0.2}}
    with override_settings(NSQ=down), pytest.raises(nsq.PublishFailed):
        tasks.add.enqueue(1, 2)
    assert StoredResult.objects.count() == 0


def test_a_result_that_cannot_be_stored_within_a_transaction_says_why(outbox: Any) -> None:
    result = tasks.add.enqueue(1, 2)
    with pytest.raises(OperationalError, match="no such table"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("drop table nsq_results_storedresult")
        task_backends["default"].save_result(result)


def test_priorities_and_unknown_queues_are_refused_and_arguments_are_json(outbox: Any) -> None:
    with pytest.raises(InvalidTask, match="priority"):
        tasks.add.using(priority=5)
    with pytest.raises(InvalidTask, match="Queue 'mails' is not valid"):
        tasks.add.using(queue_name="mails")
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.add.enqueue(timezone.now(), 1)
    assert outbox == []


def test_without_the_results_app_nothing_is_stored_and_attempts_are_nsqds(outbox: Any) -> None:
    finished = []

    def note(task_result: Any, **_: Any) -> None:
        finished.append((task_result.return_value, len(task_result.worker_ids)))

    task_finished.connect(note)
    with override_settings(
        INSTALLED_APPS=[each for each in settings.INSTALLED_APPS if "results" not in each]
    ):
        assert not task_backends["default"].supports_get_result
        result = tasks.attempts.enqueue()
        with pytest.raises(NotImplementedError):
            result.refresh()
        deliver(outbox[0].body, attempts=3)
    task_finished.disconnect(note)
    assert finished == [(3, 3)]


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(ImproperlyConfigured, match="has 'TOPIC'; known are CHANNEL, DATABASE"):
        NsqBackend("default", {"OPTIONS": {"TOPIC": "x"}})
    with pytest.raises(ImproperlyConfigured, match=r"OPTIONS\['MODULES'\].* is 'jobs'; it must be a list"):
        NsqBackend("default", {"OPTIONS": {"MODULES": "jobs"}})


def test_workers_run_tasks_that_other_processes_have_enqueued(site: Site, nsqd: Nsqd) -> None:
    program = """
import asyncio
from shop import tasks
for number in range(10):
    tasks.add.enqueue(number, 1)
async def several():
    await asyncio.gather(*[tasks.add.aenqueue(number, 2) for number in range(10)])
asyncio.run(several())
tasks.mail.enqueue("ada")
"""
    site.manage("shell", "--no-imports", "-c", program)
    with nsq.Producer(nsqd.tcp_address) as producer:
        producer.publish("tasks.default", b"no task")
    with site.running(MANAGE, "nsq_consume", "django.tasks", "--processes=2"):
        until("all have run", lambda: len(site.billed()) == 21)
        finished = "select count(*) from nsq_results_storedresult where status = 'SUCCESSFUL'"
        until("all results are there", lambda: site.query(finished) == [(21,)])
        assert bodies(nsqd, "tasks.dead", 1) == [b"no task"]
    assert "mail to ada" in site.billed()


def test_tasks_of_one_transaction_leave_together_and_within_the_time_for_commits(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[tuple[str, int, float | None]] = []
    monkeypatch.setattr(
        locmem, "multi_publish", lambda topic, bodies, timeout: batches.append((topic, len(bodies), timeout))
    )
    options = {
        "default": {"BACKEND": "nsq.contrib.django.NsqBackend", "OPTIONS": {"ENQUEUE_ON_COMMIT": True}}
    }
    nsq_setting = {"BACKEND": "nsq.contrib.django.locmem", "ON_COMMIT_TIMEOUT": 0.5}
    with override_settings(TASKS=options, NSQ=nsq_setting), transaction.atomic():
        for number in range(3):
            tasks.multiply.enqueue(number, 2)
        assert batches == []
    ((topic, count, timeout),) = batches
    assert (topic, count) == ("tasks.default", 3)
    assert timeout is not None
    assert 0 < timeout <= 0.5


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
@pytest.mark.parametrize("rolled_back", [False, True], ids=["commit", "rollback"])
def test_a_task_that_runs_before_its_transaction_ends_has_its_result_afterwards(
    rolled_back: bool, database: str, site: Site, nsqd: Nsqd, request: pytest.FixtureRequest
) -> None:
    ask = site.query
    if database == "postgresql":
        server = request.getfixturevalue("postgres")
        site.environment["SHOP_POSTGRES"], ask = str(server.directory), server.query
        site.manage("migrate", "--verbosity=0")
    program = f"""
import time
from django.db import transaction
from shop import tasks
with transaction.atomic():
    tasks.multiply.enqueue(3, 4)
    time.sleep(2)
    transaction.set_rollback({rolled_back})
"""
    with site.running(MANAGE, "nsq_consume", "django.tasks.default", "--processes=1"):
        until("the worker waits", lambda: channel_of(nsqd, "tasks.default", "workers").get("clients"))
        site.manage("shell", "--no-imports", "-c", program)
        final = "select 1 from nsq_results_storedresult where status not in ('READY', 'RUNNING')"
        until("the result is final", lambda: ask(final))
    rows = ask("select status, return_value from nsq_results_storedresult")
    assert [(status, str(value)) for status, value in rows] == [("SUCCESSFUL", "12")]


def test_a_task_whose_database_connection_was_lost_while_it_ran_is_not_run_again(
    site: Site, nsqd: Nsqd, postgres: Postgres
) -> None:
    site.environment["SHOP_POSTGRES"] = str(postgres.directory)
    site.manage("migrate", "--verbosity=0")
    site.manage("shell", "--no-imports", "-c", "from shop import tasks; tasks.lose_the_connection.enqueue()")
    with site.running(MANAGE, "nsq_consume", "django.tasks.default", "--processes=1"):
        final = "select status from nsq_results_storedresult where status not in ('READY', 'RUNNING')"
        until("the result is final", lambda: postgres.query(final))
    assert postgres.query(final) == [("SUCCESSFUL",)]
    assert "handler failed" not in site.said()


#: Three test what ImmediateBackend does not support, and this backend does. The fourth wants a
#: KeyboardInterrupt to reach the caller of enqueue; here it is a result, as a worker has no such caller.
OTHERWISE = {
    "test_cannot_get_result",
    "test_cannot_refresh_result",
    "test_cannot_pass_run_after",
    "test_throws_keyboard_interrupt",
}


@pytest.mark.skipif(SUITE is None, reason="not run: `make django` installs Django's own tests")
def test_djangos_own_tests_of_tasks_pass_but_for_a_listed_set(site: Site, tmp_path: Path) -> None:
    assert SUITE is not None
    suite = tmp_path / "suite"
    shutil.copytree(SUITE, suite / "tasks")
    for path in (suite / "tasks").glob("*.py"):
        path.write_text(
            re.sub(r"django\.tasks\.backends\.(dummy|immediate)", "suite_backends", path.read_text())
        )
    site.environment["PYTHONPATH"] += f":{suite}:{Path(__file__).parent}"
    site.environment["SHOP_BACKEND"] = "nsq.contrib.django.locmem"
    said = site.manage("test", "tasks", status=1)
    assert set(re.findall(r"^(?:FAIL|ERROR): (\w+)", said, re.MULTILINE)) == OTHERWISE, said
    assert int(re.findall(r"Ran (\d+) tests", said)[0]) > 80
