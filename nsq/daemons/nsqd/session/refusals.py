"""How a command is refused: with an error frame that ends the connection, or one that does not."""

from __future__ import annotations


class Refused(Exception):
    """Answered with ``code text``; the connection is closed behind it."""

    fatal = True

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code} {text}")

    def __bytes__(self) -> bytes:
        return str(self).encode("utf-8", "surrogateescape")


class Failed(Refused):
    """The command failed; the client may go on."""

    fatal = False


def readable(raw: bytes) -> str:
    """As text that turns back into the same bytes."""
    return raw.decode("utf-8", "surrogateescape")
