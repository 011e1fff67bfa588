"""A minimal nsqlookupd on asyncio: ``bare_nsqlookupd.py PORT``.

It stores the names of topics and answers OK. It has no peers, channels, checks or HTTP.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

OK = b"\0\0\0\x02OK"


class Bare(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.introduced = False
        self.held = b""
        self.topics: dict[bytes, None] = {}

    def data_received(self, data: bytes) -> None:
        if not self.introduced:  # the magic and IDENTIFY arrive in one chunk
            self.introduced = True
            self.transport.write(OK)
            return
        *lines, self.held = (self.held + data).split(b"\n")
        for line in lines:
            self.topics[line.split(b" ")[1]] = None
        self.transport.write(OK * len(lines))


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main(int(sys.argv[1])))
    else:
        uvloop.run(main(int(sys.argv[1])))
