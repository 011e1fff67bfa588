"""NSQ for Python: a client of plain threads.

    consumer = nsq.Consumer("orders", "billing", nsqlookupd="127.0.0.1:4161")
    consumer.add_handler(bill)
    consumer.run()

    with nsq.Producer("127.0.0.1:4150") as producer:
        producer.publish("orders", b"hello")

This module has only the public names: the client, its reports, and every error it raises. All but the errors
are loaded at first use, so that importing the package is cheap.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsq.errors import AlreadyResponded as AlreadyResponded
from nsq.errors import ApiError as ApiError
from nsq.errors import ApiRefused as ApiRefused
from nsq.errors import AuthDisabled as AuthDisabled
from nsq.errors import AuthFailed as AuthFailed
from nsq.errors import AuthFirst as AuthFirst
from nsq.errors import AuthServerError as AuthServerError
from nsq.errors import BadBody as BadBody
from nsq.errors import BadChannel as BadChannel
from nsq.errors import BadExt as BadExt
from nsq.errors import BadMessage as BadMessage
from nsq.errors import BadPartition as BadPartition
from nsq.errors import BadTopic as BadTopic
from nsq.errors import ChannelNotRegistered as ChannelNotRegistered
from nsq.errors import Closed as Closed
from nsq.errors import ConfigError as ConfigError
from nsq.errors import ConnectionFailed as ConnectionFailed
from nsq.errors import ConnectionLost as ConnectionLost
from nsq.errors import CreateTopicFailed as CreateTopicFailed
from nsq.errors import DialFailed as DialFailed
from nsq.errors import DpubFailed as DpubFailed
from nsq.errors import ExtendForbidden as ExtendForbidden
from nsq.errors import ExtendNeeded as ExtendNeeded
from nsq.errors import ExtNotSupported as ExtNotSupported
from nsq.errors import FinFailed as FinFailed
from nsq.errors import Forked as Forked
from nsq.errors import FrameError as FrameError
from nsq.errors import HandshakeFailed as HandshakeFailed
from nsq.errors import IdentifyFailed as IdentifyFailed
from nsq.errors import InvalidCommand as InvalidCommand
from nsq.errors import InvalidHeader as InvalidHeader
from nsq.errors import InvalidMessage as InvalidMessage
from nsq.errors import InvalidName as InvalidName
from nsq.errors import InvalidTraceId as InvalidTraceId
from nsq.errors import LayerError as LayerError
from nsq.errors import MpubFailed as MpubFailed
from nsq.errors import NotLeader as NotLeader
from nsq.errors import NotNsqd as NotNsqd
from nsq.errors import NotWritable as NotWritable
from nsq.errors import NsqError as NsqError
from nsq.errors import OrderIsMust as OrderIsMust
from nsq.errors import PubFailed as PubFailed
from nsq.errors import PublishFailed as PublishFailed
from nsq.errors import PublishUncertain as PublishUncertain
from nsq.errors import QueueFull as QueueFull
from nsq.errors import ReqFailed as ReqFailed
from nsq.errors import ServerError as ServerError
from nsq.errors import SubFailed as SubFailed
from nsq.errors import TagNotSupported as TagNotSupported
from nsq.errors import TooMuchWaiting as TooMuchWaiting
from nsq.errors import TopicNotExist as TopicNotExist
from nsq.errors import TouchFailed as TouchFailed
from nsq.errors import Unanswered as Unanswered
from nsq.errors import Unauthorized as Unauthorized
from nsq.errors import UsageError as UsageError
from nsq.errors import WireError as WireError

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nsq.config import Config as Config
    from nsq.consumer.consumer import Consumer as Consumer
    from nsq.consumer.dead_letters import DeadLetterFile as DeadLetterFile
    from nsq.consumer.dead_letters import DeadLetterTopic as DeadLetterTopic
    from nsq.consumer.decisions import GiveUp as GiveUp
    from nsq.consumer.decisions import Requeue as Requeue
    from nsq.consumer.reports import ConsumerHooks as ConsumerHooks
    from nsq.consumer.reports import StopReport as StopReport
    from nsq.message import Message as Message
    from nsq.partitioned.lanes import Decision as Decision
    from nsq.partitioned.lanes import Stuck as Stuck
    from nsq.producer.producer import Producer as Producer
    from nsq.producer.reports import Acknowledged as Acknowledged
    from nsq.producer.reports import CloseReport as CloseReport
    from nsq.producer.reports import Failed as Failed
    from nsq.producer.reports import FlushReport as FlushReport
    from nsq.wire.frames import Published as Published

_ERRORS = [name for name, value in globals().items() if isinstance(value, type)]

#: The modules of the names that are loaded at first use.
_HOME = {
    "Config": "nsq.config",
    "Consumer": "nsq.consumer.consumer",
    "DeadLetterFile": "nsq.consumer.dead_letters",
    "DeadLetterTopic": "nsq.consumer.dead_letters",
    "GiveUp": "nsq.consumer.decisions",
    "Requeue": "nsq.consumer.decisions",
    "ConsumerHooks": "nsq.consumer.reports",
    "StopReport": "nsq.consumer.reports",
    "Message": "nsq.message",
    "Decision": "nsq.partitioned.lanes",
    "Stuck": "nsq.partitioned.lanes",
    "Producer": "nsq.producer.producer",
    "Acknowledged": "nsq.producer.reports",
    "CloseReport": "nsq.producer.reports",
    "Failed": "nsq.producer.reports",
    "FlushReport": "nsq.producer.reports",
    "Published": "nsq.wire.frames",
}

__all__ = ["__version__", *_ERRORS, *_HOME]

# pynsq and nsq-py have this file, and this package has not.
if os.path.exists(os.path.join(os.path.dirname(__file__), "reader.py")):
    from nsq.other_clients import warn_about_replaced_client

    warn_about_replaced_client()


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise _unknown(name)
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def _unknown(name: str) -> Exception:
    """Return the error for an unknown attribute; for a name of another client's module it names ours."""
    import sys

    from nsq.other_clients import NAMES

    here = NAMES.get(name)
    text = f"module 'nsq' has no attribute {name!r}" + (f": {here}" if here else "")
    # ``from nsq import Reader`` asks through importlib, which replaces an AttributeError by its own error.
    asker = sys._getframe(2).f_globals.get("__name__")
    importing = asker in ("importlib._bootstrap", "_frozen_importlib")
    return ImportError(text, name="nsq") if here and importing else AttributeError(text)


def __dir__() -> list[str]:
    return sorted(__all__)
