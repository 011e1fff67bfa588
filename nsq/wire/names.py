"""Topic and channel names: the rule that both ends of the wire apply.

Imports nothing of the package but its errors.
"""

from __future__ import annotations

import functools
import re

from nsq.errors import InvalidName

RULE = "1 to 64 characters of a-z A-Z 0-9 . _ - with at most one suffix #ephemeral"
EPHEMERAL = "#ephemeral"

# Two alternatives instead of a length check: the limit of 64 includes the suffix. fullmatch: "$" allows "\n".
_PATTERN = r"[.a-zA-Z0-9_-]{1,64}|[.a-zA-Z0-9_-]{1,54}#ephemeral"
_text_match = re.compile(_PATTERN).fullmatch
_bytes_match = re.compile(_PATTERN.encode()).fullmatch
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f"}
_ESCAPES |= {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}


def valid_topic(name: str | bytes) -> bool:
    """Whether an nsqd accepts this name for a topic or a channel: the rule is the same."""
    if isinstance(name, str):
        return _text_match(name) is not None
    return _bytes_match(name) is not None


valid_channel = valid_topic


def is_ephemeral(name: str | bytes) -> bool:
    """Whether nsqd deletes the topic or channel after its last user and never writes it to disk."""
    if isinstance(name, str):
        return name.endswith(EPHEMERAL)
    return name.endswith(b"#ephemeral")


def quoted(name: bytes) -> str:
    """Quote a name as nsqd does in its errors: one line of text, whatever the bytes are."""
    return '"' + "".join(map(_escaped, name.decode("utf-8", "surrogateescape"))) + '"'


def _escaped(char: str) -> str:
    code = ord(char)
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def check_topic(name: str | bytes) -> str:
    """Return the name as an exact ``str``, or raise InvalidName, which says what is wrong."""
    return _check_topic(name) if type(name) is str else _check("topic", name)


@functools.lru_cache(maxsize=1024)
def _check_topic(name: str) -> str:
    """Check a topic with a cache of valid names: this runs for every publish."""
    return _check("topic", name)


def check_channel(name: str | bytes) -> str:
    """Return the name as an exact ``str``, or raise InvalidName, which says what is wrong."""
    return _check("channel", name)


def _check(kind: str, name: object) -> str:
    if not isinstance(name, (str, bytes)):
        raise InvalidName(f"{kind} name must be str, not {type(name).__name__} ({name!r})")
    if valid_topic(name):
        # Not str(name), which is "Topic.ORDERS" for a member of ``class Topic(str, Enum)``.
        return str.__str__(name) if isinstance(name, str) else bytes.decode(name, "ascii")
    raise InvalidName(f"{kind} name {_shown(name)} {_what_is_wrong(name)}; a name is {RULE}")


def _shown(name: str | bytes) -> str:
    shown = repr(name)
    return shown if len(shown) <= 100 else f"{shown[:100]}…"


def _what_is_wrong(name: str | bytes) -> str:
    text = name if isinstance(name, str) else name.decode("latin-1")
    if not text:
        return "is empty"
    stem = text.removesuffix(EPHEMERAL)
    if not stem:
        return "has nothing before its suffix"
    wrong = next((char for char in stem if _text_match(char) is None), None)
    if wrong is not None:
        return f"contains {wrong!r}"
    return f"has {len(text)} characters"
