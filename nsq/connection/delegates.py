"""Who is told what happens on a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nsq.errors import NsqError, ServerError
from nsq.message import Message

if TYPE_CHECKING:
    from nsq.connection.conn import Conn


class ConnDelegate(Protocol):
    """All but the last two are called by the connection's read loop, or by a thread that reads in its place:
    they must neither block nor raise.
    """

    def on_messages(self, conn: Conn, messages: list[Message]) -> None:
        """They are in flight now."""

    def on_response(self, conn: Conn, data: bytes) -> None:
        """An answer to a command other than a heartbeat or CLOSE_WAIT."""

    def on_error(self, conn: Conn, error: ServerError) -> None:
        """An error frame. A fatal one is followed by ``on_close``."""

    def on_heartbeat(self, conn: Conn) -> None: ...

    def on_close(self, conn: Conn, cause: NsqError | None) -> None:
        """Once, when the connection is gone; None when it was closed as asked. Both loops have ended,
        or end.
        """

    def on_finished(self, conn: Conn, message: Message) -> None:
        """By whoever answers a message: it is out of flight, its FIN is about to be sent."""

    def on_requeued(self, conn: Conn, message: Message, backoff: bool) -> None:
        """Likewise, its REQ."""
