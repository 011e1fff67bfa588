"""A listener that is closed while connections arrive."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import pytest

from nsq.daemons.serve.listen import TcpAddress, listen, parse_address
from tests.integration.patience import PATIENCE


@pytest.mark.parametrize("rounds", range(5))
def test_closing_a_listener_loses_no_accepted_connection(rounds: int) -> None:
    """The listener closes at any step of asyncio's."""

    async def scenario() -> None:
        made: list[asyncio.BaseTransport] = []

        class Noted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(transport)

        listener = await listen(Noted, parse_address("127.0.0.1:0"))
        address = listener.address
        assert isinstance(address, TcpAddress)
        with socket.create_connection((address.host, address.port), PATIENCE) as client:
            for _ in range(rounds):
                await asyncio.sleep(0)
            await listener.close()
            for transport in made:
                transport.close()
            await asyncio.sleep(0)
            client.settimeout(PATIENCE)
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""

    asyncio.run(scenario())
