"""The result of a task, as ``django.tasks`` describes it, in a row."""

from __future__ import annotations

from typing import Any

from django.db import models


class StoredResult(models.Model):
    id = models.CharField(max_length=64, primary_key=True)
    task = models.CharField(max_length=500)
    backend = models.CharField(max_length=100)
    queue_name = models.CharField(max_length=100)
    args = models.JSONField()
    kwargs = models.JSONField()
    run_after = models.DateTimeField(null=True)
    status = models.CharField(max_length=10)
    enqueued_at = models.DateTimeField(db_index=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    last_attempted_at = models.DateTimeField(null=True)
    return_value = models.JSONField(null=True)
    errors = models.JSONField()
    worker_ids = models.JSONField()

    def __str__(self) -> str:
        return f"{self.task} {self.id}: {self.status}"

    @staticmethod
    def columns_of(result: Any) -> dict[str, Any]:
        """Return the values of a row for a TaskResult."""
        task = result.task
        same = ("id", "backend", "args", "kwargs", "enqueued_at", "started_at", "finished_at")
        return {
            **{name: getattr(result, name) for name in (*same, "last_attempted_at", "worker_ids")},
            "task": task.module_path,
            "queue_name": task.queue_name,
            "run_after": task.run_after,
            "status": str(result.status),
            "return_value": result._return_value,
            "errors": [[each.exception_class_path, each.traceback] for each in result.errors],
        }

    def to_result(self, result: Any) -> Any:
        """Fill a new TaskResult with what the row says of its runs."""
        from django.tasks import TaskResultStatus
        from django.tasks.base import TaskError

        for name in ("started_at", "finished_at", "last_attempted_at"):
            object.__setattr__(result, name, getattr(self, name))
        object.__setattr__(result, "status", TaskResultStatus(self.status))
        object.__setattr__(result, "_return_value", self.return_value)
        result.worker_ids.extend(self.worker_ids)
        result.errors.extend(
            [TaskError(exception_class_path=name, traceback=text) for name, text in self.errors]
        )
        return result
