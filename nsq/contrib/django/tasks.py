"""A backend for ``django.tasks`` (Django 6): tasks are messages, and ``nsq_consume`` runs them.

    TASKS = {"default": {"BACKEND": "nsq.contrib.django.NsqBackend", "QUEUES": ["default", "mails"]}}

The queue ``mails`` is the topic ``tasks.mails``. An exception of a task is its result, FAILED, and final: the
message is finished. A message that the worker cannot turn into a task (its function is gone, its queue is
unknown) goes to the dead letters. A message names its task: a worker imports tasks only from modules below
the packages of INSTALLED_APPS, or of the option MODULES.

Django makes a backend for each thread, when a module with tasks is imported. So a backend has no state, and
making one touches neither models nor nsqd. Django calls methods with keywords: parameters keep its names.
"""

from __future__ import annotations

import json
import os
import platform
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from traceback import format_exception
from typing import Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, OperationalError, connections
from django.utils import timezone
from django.utils.module_loading import import_string

from nsq import GiveUp, Message, NsqError
from nsq.contrib.django.connections import close_old_connections
from nsq.contrib.django.publishing import current_settings, publish, publish_on_commit
from nsq.log import Logger
from nsq.wire.names import check_channel, check_topic

try:
    from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ModuleNotFoundError as error:
    raise ImportError("nsq.contrib.django.NsqBackend needs django.tasks, which Django 6 has") from error

log = Logger("nsq.contrib.django")

RESULTS_APP = "nsq.contrib.django.results"


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """The OPTIONS of a backend, in lower case."""

    topic_prefix: str = "tasks."
    channel: str = "workers"
    threads: int = 1
    dead_letters: str = "tasks.dead"
    dead_letter_reasons: bool = False
    #: Send when the transaction of ``database`` commits. Django's own rule is: at once.
    enqueue_on_commit: bool = False
    database: str = "default"
    #: Packages or modules, beside those of INSTALLED_APPS, in which a worker looks for the task of a message.
    modules: Sequence[str] = ()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TaskOptions:
        known = {name.upper() for name in cls.__dataclass_fields__}
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ImproperlyConfigured(
                f"OPTIONS of a task backend has {unknown[0]!r}; known are {', '.join(sorted(known))}"
            )
        modules = given.get("MODULES", ())
        if isinstance(modules, str) or not all(isinstance(each, str) for each in modules):
            raise ImproperlyConfigured(
                f"OPTIONS['MODULES'] of a task backend is {modules!r}; it must be a list of names of modules"
            )
        return cls(**{name.lower(): value for name, value in given.items()})


class NsqBackend(BaseTaskBackend):
    supports_defer = True
    supports_async_task = True
    # Topics are consumed side by side, so that no order of priorities can be promised.
    supports_priority = False

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.nsq = TaskOptions.of(self.options)
        for queue in self.queues:
            check_topic(self.topic_of(queue))
        check_topic(self.nsq.dead_letters)
        check_channel(self.nsq.channel)

    @property
    def supports_get_result(self) -> bool:
        """Whether the app for results is installed."""
        return any(app.startswith(RESULTS_APP) for app in settings.INSTALLED_APPS)

    def topic_of(self, queue: str) -> str:
        return f"{self.nsq.topic_prefix}{queue}"

    # Enqueueing

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        self.check_module(task.module_path)
        result = new_result(task, self.alias, str(uuid.uuid4()), args, kwargs, timezone.now())
        body = encode(result)
        self.add_result(result)
        if self.nsq.enqueue_on_commit:
            topic, defer = self.address_of(task)
            publish_on_commit(topic, body, defer=defer, using=self.nsq.database)
        else:
            try:
                self.send(task, body)
            except NsqError as error:
                if not error.maybe_stored:
                    self.delete_result(result)
                raise
        task_enqueued.send(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        # Only the database needs Django's one thread, through which all calls of a process would queue.
        uses_database = self.nsq.enqueue_on_commit or self.supports_get_result
        enqueue = sync_to_async(self.enqueue, thread_sensitive=uses_database)
        return await enqueue(task=task, args=args, kwargs=kwargs)

    def send(self, task: Any, body: bytes) -> None:
        topic, defer = self.address_of(task)
        publish(topic, body, defer=defer)

    def address_of(self, task: Any) -> tuple[str, float | None]:
        """Return the topic of a task and the seconds to defer it: until its ``run_after``, but no longer than
        nsqd allows.
        """
        left = seconds_until(task.run_after)
        longest = current_settings().config.max_defer
        return self.topic_of(task.queue_name), min(left, longest) if left > 0 else None

    # Results: in the database, if the app is installed

    def add_result(self, result: Any) -> None:
        if self.supports_get_result:
            from nsq.contrib.django.results.models import StoredResult

            StoredResult.objects.using(self.nsq.database).create(**StoredResult.columns_of(result))

    def delete_result(self, result: Any) -> None:
        if self.supports_get_result:
            from nsq.contrib.django.results.models import StoredResult

            StoredResult.objects.using(self.nsq.database).filter(pk=result.id).delete()

    def save_result(self, result: Any) -> None:
        if not self.supports_get_result:
            return
        try:
            self._write_result(result)
        except (OperationalError, InterfaceError):
            if connections[self.nsq.database].in_atomic_block:  # where nothing more can be written
                raise
            # The database may have ended this connection while the task ran.
            close_old_connections()
            self._write_result(result)

    def _write_result(self, result: Any) -> None:
        from nsq.contrib.django.results.models import StoredResult

        rows, columns = StoredResult.objects.using(self.nsq.database), StoredResult.columns_of(result)
        if not rows.filter(pk=result.id).update(**columns):
            # The row was rolled back, or its transaction has not ended: then this waits for its end.
            rows.update_or_create(pk=result.id, defaults=columns)

    def get_result(self, result_id: str) -> Any:
        if not self.supports_get_result:
            return super().get_result(result_id)
        from nsq.contrib.django.results.models import StoredResult

        try:
            row = StoredResult.objects.using(self.nsq.database).get(pk=result_id)
        except StoredResult.DoesNotExist:
            raise TaskResultDoesNotExist(result_id) from None
        task = self.find_task(row.task, row.backend, row.queue_name, row.run_after)
        return row.to_result(new_result(task, row.backend, row.id, row.args, row.kwargs, row.enqueued_at))

    # Running

    def handle(self, message: Message) -> None:
        """Run the task of a message. Returns when the message is done; raises when it must come again, or
        GiveUp.
        """
        try:
            result = self.decode(message.body)
        except Exception as error:
            raise GiveUp(f"no task that can run here: {error!r}") from error
        if seconds_until(result.task.run_after) > 0:
            self.send(result.task, message.body)
            return
        if self.supports_get_result:
            try:
                stored = self.get_result(result.id)
            except TaskResultDoesNotExist:
                log.info("the task %s runs before its transaction commits, or after a rollback", result.id)
            else:
                if stored.is_finished:
                    log.info("the task %s has run before: %s", result.id, stored.status)
                    return
                result = stored
            result.worker_ids.append(worker_id())
        else:
            # How often nsqd has sent it is all that is known of earlier workers.
            result.worker_ids.extend([worker_id()] * message.attempts)
        self.execute(result)

    def decode(self, body: bytes) -> Any:
        """Return the result of the task in a body. Raises whatever is wrong with it."""
        read = json.loads(body)
        if not isinstance(read["args"], list) or not isinstance(read["kwargs"], dict):
            raise ValueError(
                f"args is {read['args']!r} and kwargs {read['kwargs']!r}; they must be [] and {{}}"
            )
        run_after = read["run_after"] and datetime.fromisoformat(read["run_after"])
        task = self.find_task(read["task"], read["backend"], read["queue"], run_after)
        enqueued_at = datetime.fromisoformat(read["enqueued_at"])
        return new_result(task, read["backend"], read["id"], read["args"], read["kwargs"], enqueued_at)

    def find_task(self, path: str, backend: str, queue: str, run_after: datetime | None) -> Any:
        """Import a task. Raises ImportError if it is gone, InvalidTask if it or its queue is not allowed."""
        self.check_module(path)
        found = import_string(path)
        if not isinstance(found, Task):
            raise ImportError(f"{path} is no task")
        return found.using(backend=backend, queue_name=queue, run_after=run_after)

    def check_module(self, path: str) -> None:
        """Raise InvalidTask for a task of a module that a message must not have imported."""
        module = path.rpartition(".")[0]
        packages = [*(app.name for app in apps.get_app_configs()), *self.nsq.modules]
        if not any(module == each or module.startswith(f"{each}.") for each in packages):
            raise InvalidTask(
                f"{path} is in no package of INSTALLED_APPS: to allow it, name its module in "
                f"OPTIONS['MODULES'] of TASKS[{self.alias!r}]"
            )

    def execute(self, result: Any) -> None:
        now = timezone.now()
        put(
            result,
            status=TaskResultStatus.RUNNING,
            started_at=result.started_at or now,
            last_attempted_at=now,
        )
        self.save_result(result)
        task_started.send(type(self), task_result=result)
        context = [TaskContext(task_result=result)] if result.task.takes_context else []
        try:
            value = normalize_json(result.task.call(*context, *result.args, **result.kwargs))
        except BaseException as error:
            name = f"{type(error).__module__}.{type(error).__qualname__}"
            text = "".join(format_exception(error))
            result.errors.append(TaskError(exception_class_path=name, traceback=text))
            # Within this block: Django's receiver of the signal logs the exception.
            self.finish(result, TaskResultStatus.FAILED)
        else:
            put(result, _return_value=value)
            self.finish(result, TaskResultStatus.SUCCESSFUL)

    def finish(self, result: Any, status: Any) -> None:
        put(result, status=status, finished_at=timezone.now())
        self.save_result(result)
        task_finished.send(type(self), task_result=result)


def handle(alias: str, message: Message) -> None:
    """Run the task of a message with this thread's backend."""
    task_backends[alias].handle(message)


def worker_id() -> str:
    return f"{platform.node()[:40]}:{os.getpid()}"


def seconds_until(moment: datetime | None) -> float:
    if moment is None:
        return 0.0
    now = timezone.now() if timezone.is_aware(moment) else datetime.now()
    return (moment - now).total_seconds()


def put(result: Any, **fields: Any) -> None:
    """Set fields of a result, which is frozen."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)


def new_result(task: Any, alias: str, result_id: str, args: Any, kwargs: Any, enqueued_at: datetime) -> Any:
    """Make the result of a task that waits. Raises TypeError for arguments that JSON has not."""
    return TaskResult(
        task=task,
        id=result_id,
        status=TaskResultStatus.READY,
        enqueued_at=enqueued_at,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=[],
    )


# The body of a message


def encode(result: Any) -> bytes:
    task = result.task
    body = {
        "id": result.id,
        "task": task.module_path,
        "backend": result.backend,
        "queue": task.queue_name,
        "args": result.args,
        "kwargs": result.kwargs,
        "enqueued_at": result.enqueued_at.isoformat(),
        "run_after": None if task.run_after is None else task.run_after.isoformat(),
    }
    return json.dumps(body, separators=(",", ":")).encode()
