"""NSQ in Django: an app with the label ``nsq``.

    INSTALLED_APPS = [..., "nsq.contrib.django"]
    NSQ = {"NSQD": ["10.0.0.2:4150"]}

    from nsq.contrib.django import publish, publish_on_commit

Names are loaded at first use: Django imports this package before its apps are ready.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nsq.errors import how_to_install

try:
    import django as _django  # noqa: F401 - only to name the extra
except ModuleNotFoundError as error:
    if error.name != "django":
        raise
    raise ModuleNotFoundError(
        f"nsq.contrib.django needs Django: {how_to_install('django')}", name="django"
    ) from None

if TYPE_CHECKING:
    from nsq.contrib.django.handlers import consumer as consumer
    from nsq.contrib.django.handlers import consumers as consumers
    from nsq.contrib.django.handlers import setup as setup
    from nsq.contrib.django.publishing import multi_publish as multi_publish
    from nsq.contrib.django.publishing import publish as publish
    from nsq.contrib.django.publishing import publish_on_commit as publish_on_commit
    from nsq.contrib.django.tasks import NsqBackend as NsqBackend

#: Where each public name is defined.
_HOME = {
    "publish": "publishing",
    "multi_publish": "publishing",
    "publish_on_commit": "publishing",
    "consumer": "handlers",
    "consumers": "handlers",
    "setup": "handlers",
    "NsqBackend": "tasks",
}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
