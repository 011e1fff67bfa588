"""A transport that notes which commands a consumer sends, over any other transport."""

from __future__ import annotations

import threading
from collections import defaultdict

from nsq.transport import Stream, Transport
from nsq.transport.base import WrappedStream
from nsq.wire.commands import MAGIC_V2, CommandParser, Limits

PATIENCE = 60.0
_UNNOTED = (b"IDENTIFY", b"AUTH", b"SUB", b"NOP")


class Wire:
    """Notes commands by the nsqd's address: ``["RDY 5", "FIN", "REQ 0", "CLS"]``, without ids of messages.

    Of RDYs that repeat the last one, for servers that count RDY down, it notes the first.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._changed = threading.Condition()
        self._commands: defaultdict[str, list[str]] = defaultdict(list)
        self._expected: defaultdict[str, int] = defaultdict(int)

    def connect(self, address: str, *, timeout: float) -> Stream:
        return _Noting(self._transport.connect(address, timeout=timeout), self)

    def note(self, address: str, command: str) -> None:
        with self._changed:
            noted = self._commands[address]
            rdys = [each for each in noted if each.startswith("RDY")]
            if not (command.startswith("RDY") and rdys[-1:] == [command]):
                noted.append(command)
                self._changed.notify_all()

    def expect(self, address: str, *commands: str) -> None:
        """Wait for exactly these commands, after those expected before."""
        with self._changed:
            begin, end = self._expected[address], self._expected[address] + len(commands)
            wanted = list(commands)

            def decided() -> bool:
                got = self._commands[address][begin:end]
                return len(got) == len(wanted) or got != wanted[: len(got)]

            self._changed.wait_for(decided, PATIENCE)
            assert self._commands[address][begin:end] == wanted
            self._expected[address] = end

    def rest(self, address: str) -> list[str]:
        """Return the commands that were not expected yet."""
        with self._changed:
            return self._commands[address][self._expected[address] :]


class _Noting(WrappedStream):
    def __init__(self, stream: Stream, wire: Wire) -> None:
        super().__init__(stream)
        self._wire = wire
        self._parser = CommandParser(Limits())
        self._magic = len(MAGIC_V2)

    def write(self, data: bytes, timeout: float) -> None:
        super().write(data, timeout)
        commands = self._parser.feed(data[self._magic :])
        self._magic = 0
        while commands or self._parser.stopped:
            for name, params, body in commands:
                words = [name, *(params[1:] if name == b"REQ" else params if name == b"RDY" else ())]
                times = len(body or ()) if name == b"FIN" and not params else name not in _UNNOTED
                for _ in range(times):
                    self._wire.note(self.peer, b" ".join(words).decode())
            commands = self._parser.feed(b"") if self._parser.stopped else []
