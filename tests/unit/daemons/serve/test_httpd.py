"""The internals of aiohttp that ``httpd`` relies on are as its docstring says."""

from __future__ import annotations

import ast
import asyncio
import inspect
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from aiohttp import streams, web, web_protocol

from nsq.daemons.serve.httpd import PIECE, _Connection, _Response, _Server
from nsq.daemons.serve.routes import Reply

HANDLER, SERVER = web.RequestHandler, web.Server


def test_a_connection_takes_the_arguments_that_the_server_gives() -> None:
    given = {"loop", "logger", "access_log", "keepalive_timeout", "lingering_time", "auto_decompress"}
    given |= {"read_bufsize", "max_line_size", "max_field_size", "max_headers"}
    assert given <= set(inspect.signature(HANDLER.__init__).parameters)


def test_overridden_methods_have_the_parameters_of_their_bases() -> None:
    for ours, base, names in (
        (_Connection, HANDLER, ("data_received", "start", "handle_error")),
        (_Server, SERVER, ("connection_made", "connection_lost", "__call__")),
        (_Response, web.StreamResponse, ("prepare", "write_eof", "force_close")),
    ):
        for name in names:
            assert [*inspect.signature(getattr(ours, name)).parameters] == [
                *inspect.signature(getattr(base, name)).parameters
            ], name


def test_a_connection_adds_each_head_to_messages_and_counts_it() -> None:
    assert {"_messages", "_request_count"} <= set(HANDLER.__slots__)
    source = inspect.getsource(HANDLER.data_received)
    assert "self._request_count += 1" in source
    assert "self._messages.append((msg, payload))" in source


def test_a_connection_uses_no_other_names_of_a_response() -> None:
    tree = ast.parse(inspect.getsource(web_protocol))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "resp"
    }
    assert used == {"prepare", "write_eof", "keep_alive", "force_close"}
    assert used <= set(vars(_Response))


def test_a_body_can_be_read_without_waiting_and_its_buffer_be_changed() -> None:
    assert isinstance(streams.EMPTY_PAYLOAD, streams.StreamReader)
    names = {"read_nowait", "readany", "is_eof", "set_read_chunk_size"}
    assert all(hasattr(streams.EMPTY_PAYLOAD, name) for name in names)


@pytest.mark.parametrize(("size", "waits"), [(100, 1), (3 * PIECE, 4)])
def test_a_reader_that_is_slow_has_its_time_for_each_piece_of_a_long_reply(size: int, waits: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    transport, drain = Mock(is_closing=lambda: False, get_write_buffer_size=lambda: 2**20), AsyncMock()
    request: Any = Mock(method="GET", keep_alive=True, transport=transport, writer=Mock(drain=drain))
    asyncio.run(_Response(Reply(body), marked=False, last=False).prepare(request))
    written = b"".join(call.args[0] for call in transport.write.call_args_list)
    assert written.endswith(b"\r\n\r\n" + body)
    assert (drain.await_count, transport.write.call_count) == (waits, waits)
