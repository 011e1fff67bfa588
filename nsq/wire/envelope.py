"""CloudEvents 1.0 in structured JSON: headers and a body in the body of one NSQ message.

    {"specversion":"1.0","id":…,"source":…,"type":…,"time":…, headers…, "data":…}

A body that is valid JSON stands in ``data`` as it is; other bodies stand in ``data_base64``.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from nsq.errors import InvalidMessage

#: Of the specification: names that an envelope must have, and those that are no headers here.
REQUIRED = ("specversion", "id", "source", "type")
_DATA = ("data", "data_base64", "datacontenttype")
_HEADER_NAME = re.compile(r"[a-z0-9]{1,20}").fullmatch
_JSON = "application/json"


class Envelope(NamedTuple):
    """``attributes`` are the headers as the envelope has them, among them id, source, type and time.

    ``body`` is the data: unchanged where it was bytes, else as compact JSON.
    """

    attributes: dict[str, str]
    body: bytes
    content_type: str = ""


def wrap(
    body: bytes, attributes: Mapping[str, str], *, is_json: bool = False, content_type: str = ""
) -> bytes:
    """Return the body in an envelope. ``attributes`` must include id, source and type.

    ``is_json`` says that the body is valid JSON, which is not checked.
    """
    for name in REQUIRED[1:]:
        if not attributes.get(name):
            raise InvalidMessage(f"the envelope lacks {name!r}, which CloudEvents requires")
    for name, value in attributes.items():
        if not _HEADER_NAME(name) or name in _DATA or name == "specversion":
            raise InvalidMessage(f"{name!r} is not a valid header name: use 1 to 20 of a-z and 0-9")
        if not isinstance(value, str):
            raise InvalidMessage(f"the header {name!r} is {value!r}, must be a str")
    head = {"specversion": "1.0", **attributes}
    content_type = content_type or (_JSON if is_json else "")
    if content_type:
        head["datacontenttype"] = content_type
    begin = json.dumps(head, separators=(",", ":")).encode()[:-1]
    if is_json:
        return b'%b,"data":%b}' % (begin, body)
    return b'%b,"data_base64":"%b"}' % (begin, base64.b64encode(body))


def unwrap(data: bytes) -> Envelope | None:
    """Return the contents of the envelope; None for a message without one, such as plain JSON."""
    if data[:1] != b"{" or b'"specversion"' not in data:
        return None
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(event.get(name), str) and event[name] for name in REQUIRED):
        return None
    if event["specversion"] != "1.0":
        return None
    attributes = {name: _text(value) for name, value in event.items() if name not in _DATA}
    content_type = event.get("datacontenttype")
    content_type = content_type if isinstance(content_type, str) else ""
    if "data_base64" in event:
        try:
            body = base64.b64decode(event["data_base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            return None
        return Envelope(attributes, body, content_type)
    if "data" not in event:
        return Envelope(attributes, b"", content_type)
    content = event["data"]
    if isinstance(content, str) and content_type and not _is_json(content_type):
        return Envelope(attributes, content.encode("utf-8", "surrogatepass"), content_type)
    body = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return Envelope(attributes, body, content_type or _JSON)


# Dead letters.

#: The type of the envelope of a dead letter, whose headers say why the message was given up.
DEAD_LETTER = "nsq.deadletter"
_BODY_BEGINS = b',"data_base64":"'


def dead_letter_in(data: bytes) -> Envelope | None:
    """Return the contents of the envelope of a dead letter; None for any other message. ``data`` may be only
    the beginning of the message: then so is the body.
    """
    head, mark, rest = data.partition(_BODY_BEGINS)
    if not mark or not data.startswith(b"{") or DEAD_LETTER.encode() not in head:
        return None
    encoded = rest.partition(b'"')[0]
    whole = b'%b,"data_base64":"%b"}' % (head, encoded[: len(encoded) // 4 * 4])
    envelope = unwrap(whole)
    return envelope if envelope is not None and envelope.attributes["type"] == DEAD_LETTER else None


def without_reason(data: bytes) -> bytes:
    """Return the message that became a dead letter; ``data`` itself if that is no dead letter's envelope."""
    envelope = dead_letter_in(data)
    return data if envelope is None else envelope.body


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind.endswith(("/json", "+json"))


def _text(value: object) -> str:
    """Return an attribute as CloudEvents writes it in text: true, 12, or the string itself."""
    return value if isinstance(value, str) else json.dumps(value)
