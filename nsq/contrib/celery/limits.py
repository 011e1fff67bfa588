"""Compares the time limits of tasks with what nsqd allows, when a worker begins to consume."""

from __future__ import annotations

import sys

from celery import current_app

from nsq.errors import ConfigError
from nsq.log import Logger

log = Logger("nsq.celery")


def check_time_limits(longest: float) -> None:
    """Say how long a task may take whose message is acknowledged at its end, and refuse longer time limits.

    ``longest`` is the time in seconds that nsqd allows for one delivery. Does nothing but in a worker.
    """
    if "celery.worker.consumer.consumer" not in sys.modules:
        return
    late = [task for task in current_app.tasks.values() if task.acks_late]
    for task in late:
        limit = task.time_limit or current_app.conf.task_time_limit
        if limit and limit > longest:
            raise ConfigError(
                f"task {task.name} has acks_late and a time_limit of {limit:g} s, but after {longest:g} s "
                "nsqd gives it to another worker: raise nsqd's --max-msg-timeout, or lower the limit"
            )
    if late:
        log.info(
            "acks_late: a task may take %g s from its delivery to its end (nsqd's --max-msg-timeout), then "
            "another worker may get it too",
            longest,
        )
