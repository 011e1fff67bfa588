"""Tasks; they need Django 6."""

from __future__ import annotations

from typing import Any

from django.tasks import TaskContext, task

from shop.models import Billed


@task
def add(first: int, second: int) -> int:
    Billed.objects.create(body=f"{first} + {second}", process=0)
    return first + second


@task
async def multiply(first: int, second: int) -> int:
    return first * second


@task(takes_context=True)
def attempts(context: TaskContext) -> int:
    return context.attempt


@task
def fail() -> None:
    raise ValueError("it fails")


@task
def leave() -> None:
    raise SystemExit(3)


@task
def bad_result() -> Any:
    return object()


@task(backend="committed", queue_name="mails")
def mail(to: str) -> None:
    Billed.objects.create(body=f"mail to {to}", process=0)


@task
def lose_the_connection() -> None:
    """End this thread's session from outside, as a database or a firewall does with one that is idle."""
    from django.db import connection

    assert connection.connection is not None
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("select pg_terminate_backend(%s)", [connection.connection.info.backend_pid])
    other.close()
