"""System checks: ``manage.py check`` and the start of a server report settings that would fail later."""

from __future__ import annotations

import traceback
from importlib import import_module
from typing import Any

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's name
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from nsq import NsqError
from nsq.contrib.django.conf import NSQD_BACKEND, read_settings
from nsq.contrib.django.handlers import Declared, declared
from nsq.contrib.django.publishing import current_settings


def check_settings(**_: Any) -> list[CheckMessage]:
    try:
        read = read_settings()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="nsq.E001")]
    try:
        backend = import_module(read.backend)
    except ImportError as error:
        return [
            Error(f"NSQ['BACKEND'] is {read.backend!r}, which cannot be imported: {error}", id="nsq.E002")
        ]
    lacks = [name for name in ("publish", "multi_publish") if not callable(getattr(backend, name, None))]
    if lacks:
        return [
            Error(f"NSQ['BACKEND'] is {read.backend!r}, which has no {' and no '.join(lacks)}", id="nsq.E002")
        ]
    return []


def check_consumers(**_: Any) -> list[CheckMessage]:
    """Import the modules ``nsq_handlers`` and make each consumer, without connecting it."""
    if check_settings():
        return []
    try:
        found = declared()
    except Exception as error:
        text = "".join(traceback.format_exception(error)).rstrip()
        return [Error(f"the project's consumers cannot be loaded:\n{text}", id="nsq.E003")]
    if current_settings().backend != NSQD_BACKEND:
        return []
    messages: list[CheckMessage] = []
    seen: dict[tuple[str, str], Declared] = {}
    for each in found:
        try:
            each.make()
        except (NsqError, TypeError) as error:
            messages.append(Error(f"the consumer {each}: {error}", id="nsq.E004"))
        first = seen.setdefault((each.topic, each.channel), each)
        if first is not each:
            messages.append(
                Error(
                    f"the consumers {first} and {each} share a channel: each message reaches one of them",
                    hint="Give each a channel of its own.",
                    id="nsq.E005",
                )
            )
    return messages or (_check_databases(found) if found else [])


def _check_databases(found: list[Declared]) -> list[CheckMessage]:
    messages: list[CheckMessage] = []
    threads = max(each.threads for each in found)
    for alias in connections:
        database = connections.settings[alias]
        pool = database["OPTIONS"].get("pool") if database["ENGINE"].endswith("postgresql") else None
        if pool:
            # psycopg_pool's defaults: min_size is 4, and max_size is min_size.
            given = pool if isinstance(pool, dict) else {}
            size = given.get("max_size") or given.get("min_size", 4)
            if size < threads:
                messages.append(
                    Warning(
                        f"the pool of the database {alias!r} has {size} connections, and a consumer has "
                        f"{threads} threads: some of them wait for a connection",
                        hint="Raise max_size in OPTIONS['pool'], or lower threads.",
                        id="nsq.W002",
                    )
                )
        elif database["CONN_MAX_AGE"] == 0 and database["ENGINE"] != "django.db.backends.dummy":
            messages.append(
                Warning(
                    f"CONN_MAX_AGE of the database {alias!r} is 0: a handler opens a connection for each "
                    "message, which can be 8 times slower",
                    hint="Set CONN_MAX_AGE to seconds, such as 60.",
                    id="nsq.W001",
                )
            )
    return messages
