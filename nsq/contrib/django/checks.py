"""System checks: what would fail later is reported by ``manage.py check`` and at the start of a server."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured

from nsq.contrib.django.conf import read_settings


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
