"""NSQ for Python: a client of plain threads.

    consumer = nsq.Consumer("orders", "billing", nsqlookupd="127.0.0.1:4161")
    consumer.add_handler(bill)
    consumer.run()

    with nsq.Producer("127.0.0.1:4150") as producer:
        producer.publish("orders", b"hello")

Here are the public names and nothing else. Each loads what it needs when it is first used, so that importing
the package costs next to nothing; every error is in ``nsq.errors`` as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nsq.config import Config as Config
    from nsq.consumer.consumer import Consumer as Consumer
    from nsq.consumer.deadletters import DeadLetterFile as DeadLetterFile
    from nsq.consumer.deadletters import DeadLetterTopic as DeadLetterTopic
    from nsq.consumer.hooks import ConsumerHooks as ConsumerHooks
    from nsq.consumer.outcomes import Requeue as Requeue
    from nsq.errors import AlreadyResponded as AlreadyResponded
    from nsq.errors import Closed as Closed
    from nsq.errors import ConfigError as ConfigError
    from nsq.errors import ConnectionFailed as ConnectionFailed
    from nsq.errors import Forked as Forked
    from nsq.errors import InvalidMessage as InvalidMessage
    from nsq.errors import InvalidName as InvalidName
    from nsq.errors import NsqError as NsqError
    from nsq.errors import PublishFailed as PublishFailed
    from nsq.errors import PublishUncertain as PublishUncertain
    from nsq.errors import QueueFull as QueueFull
    from nsq.errors import ServerError as ServerError
    from nsq.message import Message as Message
    from nsq.producer.producer import Producer as Producer

_HOME = {
    "Config": "nsq.config",
    "Consumer": "nsq.consumer.consumer",
    "ConsumerHooks": "nsq.consumer.hooks",
    "DeadLetterFile": "nsq.consumer.deadletters",
    "DeadLetterTopic": "nsq.consumer.deadletters",
    "Message": "nsq.message",
    "Producer": "nsq.producer.producer",
    "Requeue": "nsq.consumer.outcomes",
    "AlreadyResponded": "nsq.errors",
    "Closed": "nsq.errors",
    "ConfigError": "nsq.errors",
    "ConnectionFailed": "nsq.errors",
    "Forked": "nsq.errors",
    "InvalidMessage": "nsq.errors",
    "InvalidName": "nsq.errors",
    "NsqError": "nsq.errors",
    "PublishFailed": "nsq.errors",
    "PublishUncertain": "nsq.errors",
    "QueueFull": "nsq.errors",
    "ServerError": "nsq.errors",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'nsq' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
