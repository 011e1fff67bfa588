"""Registers the URL schemes with kombu. kombu imports this module when an application imports celery.

An error here would break ``from celery import Celery`` in the whole environment, so this imports
nothing but kombu's table.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

_TRANSPORT = "nsq.contrib.celery.transport:Transport"

TRANSPORT_ALIASES.update(dict.fromkeys(("nsq", "nsqs", "nsq+lookupd", "nsqs+lookupd"), _TRANSPORT))

#: kombu has no entry point for transports, but one for serializers: an encoder, a decoder, a content type.
SERIALIZER = (None, None, "application/x-nsq")
