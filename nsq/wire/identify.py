"""The JSON bodies of IDENTIFY and AUTH and of their replies.

Times are milliseconds here, as on the wire; outside this package they are seconds. Decoding is as strict as
nsqd's: a field of the wrong type makes the whole body invalid, an unknown field is ignored, a missing one has
its default, capitals in keys do not matter, and null is an empty object. Pure bytes; imports only errors.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, Self

from nsq.errors import WireError

#: A part of the version of every nsqd of a partitioned NSQ.
PARTITIONED_VERSION = "-HA."

_INT64 = range(-(2**63), 2**63)


class BadJson(WireError):
    """A body that is not the expected JSON object."""


@dataclass(frozen=True, kw_only=True)
class JsonBody:
    """A JSON object with one typed field per attribute, in the order of the wire."""

    def encode(self, more: Mapping[str, object] = MappingProxyType({})) -> bytes:
        """Encode the fields, and ``more`` that only some peers know."""
        return json.dumps({**asdict(self), **more}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, body: bytes) -> Self:
        types = {field.name: field.type for field in fields(cls)}
        values = values_of(_json_object(body), types)
        for name, value in values.items():
            if type(value).__name__ != types[name] or (type(value) is int and value not in _INT64):
                raise BadJson(f"{name} is {value!r:.100}, not of type {types[name]}")
        return cls(**values)


def values_of(document: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the values of these fields of a JSON object, as Go's decoder assigns them: a key may differ from
    its field in capitals, the last key of a field wins, and null counts as missing.
    """
    by_lower = {name.lower(): name for name in names}
    values = {}
    for key, value in document.items():
        name = key if key in names else by_lower.get(key.lower())
        if name is not None and value is not None:
            values[name] = value
    return values


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        # Text that is not UTF-8 may be an odd host name, which is no reason to refuse a client.
        values = json.loads(body.decode("utf-8", "replace"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadJson(f"not JSON: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise BadJson(f"a JSON {type(values).__name__}, not an object")
    return values


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} has no place in JSON")


@dataclass(frozen=True, kw_only=True)
class IdentifyRequest(JsonBody):
    """A client's identity and requests. 0 asks for nsqd's default, -1 turns a feature off."""

    client_id: str = ""
    hostname: str = ""
    short_id: str = ""  # older clients' name for client_id
    long_id: str = ""  # older clients' name for hostname
    user_agent: str = ""
    feature_negotiation: bool = False
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    snappy: bool = False
    sample_rate: int = 0
    msg_timeout: int = 0
    topology_region: str = ""
    topology_zone: str = ""


@dataclass(frozen=True, kw_only=True)
class IdentifyReply(JsonBody):
    """nsqd's answer to a client that asks for feature negotiation."""

    max_rdy_count: int = 2500
    version: str = ""
    max_msg_timeout: int = 0
    msg_timeout: int = 0
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    max_deflate_level: int = 0
    snappy: bool = False
    sample_rate: int = 0
    auth_required: bool = False
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    topology_region: str = ""
    topology_zone: str = ""
    exiting_not_stored: bool = False
    """Whether an error that says "exiting" means that no message of the command is stored."""
    draining: bool = False
    """Whether it takes no publishes because it will stop soon."""

    @property
    def partitioned(self) -> bool:
        """Whether the nsqd belongs to a partitioned NSQ."""
        return PARTITIONED_VERSION in self.version


@dataclass(frozen=True, kw_only=True)
class AuthReply(JsonBody):
    """The client's identity according to nsqd's auth server, and the number of its permissions."""

    identity: str = ""
    identity_url: str = ""
    permission_count: int = 0
