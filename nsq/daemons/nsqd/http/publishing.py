"""/pub and /mpub."""

from __future__ import annotations

from nsq.daemons.nsqd.core.backlog import StorageFailed
from nsq.daemons.nsqd.http.context import Context, topic_name
from nsq.daemons.routes import OK, HttpError, Reply, Request, read_body
from nsq.wire.commands import BadBodies, Limits, unpack_bodies

#: What counts as "no" in binary=; anything else, an unknown word or none included, counts as yes.
_NOT_BINARY = ("false", "0")


class Publishing:
    def __init__(self, context: Context) -> None:
        self._options = context.options
        self._broker = context.broker
        self._storage = context.storage
        self._limits = Limits(
            max_msg_size=context.options.max_msg_size, max_body_size=context.options.max_body_size
        )

    async def pub(self, request: Request) -> Reply:
        body = await read_body(request, self._options.max_msg_size, "MSG_TOO_BIG")
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        name = topic_name(request)
        delay = self._defer(request)
        try:
            if delay:
                self._broker.publish_deferred(name, body, delay)
            else:
                self._broker.publish(name, [body])
            await self._lasting()
        except StorageFailed:
            raise HttpError(503, "PUB_FAILED") from None
        return OK

    async def _lasting(self) -> None:
        if self._storage.waits is not None:
            await self._storage.waits.lasting()

    def _defer(self, request: Request) -> float:
        text = request.args.get("defer")
        if text is None:
            return 0.0
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise HttpError(400, "INVALID_DEFER")
        if int(text) > round(self._options.max_req_timeout * 1000):
            raise HttpError(400, "INVALID_DEFER")
        return int(text) / 1000

    async def mpub(self, request: Request) -> Reply:
        if int(request.headers.get("Content-Length") or 0) > self._options.max_body_size:
            raise HttpError(413, "BODY_TOO_BIG")
        name = topic_name(request)
        body = await read_body(request, self._options.max_body_size, "BODY_TOO_BIG")
        if request.args.get("binary", "false") in _NOT_BINARY:
            bodies = self._lines(body)
        else:
            bodies = self._binary(body)
        if bodies:
            try:
                self._broker.publish(name, bodies)
                await self._lasting()
            except StorageFailed:
                raise HttpError(503, "MPUB_FAILED") from None
        return OK

    def _lines(self, body: bytes) -> list[bytes]:
        lines = [line for line in body.split(b"\n") if line]
        if any(len(line) > self._options.max_msg_size for line in lines):
            raise HttpError(413, "MSG_TOO_BIG")
        return lines

    def _binary(self, body: bytes) -> list[bytes]:
        try:
            return unpack_bodies(body, self._limits)
        except BadBodies as error:
            raise HttpError(413, error.code) from None
