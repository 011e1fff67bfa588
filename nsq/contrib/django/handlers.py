"""``@consumer``: the consumers that a project declares in the module ``nsq_handlers`` of each of its apps.

    @consumer("orders", "billing", threads=4, dead_letters="orders.dead")
    def bill(message):
        Order.objects.filter(pk=int(message.body)).update(billed=True)

The decorator returns the function unchanged. ``manage.py nsq_consume`` imports the modules and runs it in
threads that look after Django's database connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import django
from django.apps import apps
from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from nsq import Consumer, UsageError
from nsq.contrib.django.connections import close_before_fork, closing_connections, with_connections
from nsq.contrib.django.publishing import current_settings
from nsq.work import before_fork

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declared:
    """A consumer as it was declared. ``label`` is that of its app, ``name`` the handler's."""

    topic: str
    channel: str
    handler: Callable[..., Any]
    label: str
    name: str
    threads: int
    options: dict[str, Any]
    #: None, or the size of a batch and the seconds to wait for it.
    batch: tuple[int, float] | None = None
    no_backoff: tuple[type[BaseException], ...] = ()

    def __str__(self) -> str:
        return f"{self.label}.{self.name} ({self.topic}/{self.channel})"

    def matches(self, name: str) -> bool:
        return name in (self.label, f"{self.label}.{self.name}", f"{self.topic}/{self.channel}")

    def make(self) -> Consumer:
        read = current_settings()
        addresses = {"nsqd": read.nsqd, "nsqlookupd": read.nsqlookupd}
        common = {"config": read.config, "transport": read.transport}
        options: dict[str, Any] = {**common, **addresses, **self.options}
        options["at_thread_end"] = closing_connections(options.get("at_thread_end"))
        made = Consumer(self.topic, self.channel, threads=self.threads, **options)
        handler = with_connections(self.handler)
        if self.batch is None:
            return made.add_handler(handler, no_backoff=self.no_backoff)
        size, wait = self.batch
        return made.add_batch_handler(handler, size, wait, threads=self.threads, no_backoff=self.no_backoff)


_declared: list[Declared] = []


def consumer(
    topic: str,
    channel: str,
    *,
    threads: int = 1,
    batch: int | None = None,
    wait: float = 1.0,
    no_backoff: tuple[type[BaseException], ...] = (),
    **options: Any,
) -> Callable[[F], F]:
    """Declare a function as the handler of a channel.

    It is called as ``handler(message)`` in ``threads`` threads of each process, or with ``batch=100`` as
    ``handler(messages)`` with up to 100 messages that came within ``wait`` seconds. Other options are those
    of ``nsq.Consumer``; addresses are those of the setting NSQ unless given.
    """

    def declare(handler: F) -> F:
        module, name = handler.__module__, getattr(handler, "__qualname__", repr(handler))
        config = apps.get_containing_app_config(module)
        label = config.label if config is not None else module
        _declared.append(
            Declared(
                topic=topic,
                channel=channel,
                handler=handler,
                label=label,
                name=name,
                threads=threads,
                options=options,
                batch=None if batch is None else (batch, wait),
                no_backoff=no_backoff,
            )
        )
        return handler

    return declare


def declared() -> list[Declared]:
    """Import the module ``nsq_handlers`` of every app that has one; return what they declare."""
    autodiscover_modules("nsq_handlers")
    return [*_declared, *_tasks()]


def _tasks() -> list[Declared]:
    """Return a consumer for each queue of each NsqBackend in the setting TASKS."""
    if not hasattr(settings, "TASKS") or django.VERSION < (6,):
        return []
    from django.tasks import task_backends

    from nsq.contrib.django import tasks

    return [
        Declared(
            topic=backend.topic_of(queue),
            channel=backend.nsq.channel,
            handler=partial(tasks.handle, backend.alias),
            label="django.tasks",  # no app can have this label
            name=queue,
            threads=backend.nsq.threads,
            options={
                "auto_touch": True,
                "dead_letters": backend.nsq.dead_letters,
                "dead_letter_reasons": backend.nsq.dead_letter_reasons,
            },
        )
        for backend in task_backends.all()
        if isinstance(backend, tasks.NsqBackend)
        for queue in sorted(backend.queues)
    ]


def chosen(names: Iterable[str]) -> list[Declared]:
    """Return the declared consumers with these names, by default all.

    A name is an app's label, ``label.handler`` or ``topic/channel``.
    """
    names = list(names)
    known = declared()
    for name in names:
        if not any(each.matches(name) for each in known):
            raise UsageError(
                f"no consumer is called {name}; declared are: {', '.join(map(str, known)) or 'none'}"
            )
    found = [each for each in known if not names or any(map(each.matches, names))]
    if not found:
        raise UsageError("no app has a module nsq_handlers with a function below @consumer")
    return found


# For ``nsq work --setup=nsq.contrib.django:setup nsq.contrib.django:consumers``.


def setup() -> None:
    """Set Django up, for the project that DJANGO_SETTINGS_MODULE names."""
    django.setup()
    before_fork(close_before_fork)


def consumers() -> list[Consumer]:
    """Make all consumers of the project."""
    return [each.make() for each in chosen(())]
