"""The commands of the V2 protocol: an encoder for each, and nsqd's parser.

Encoders trust their arguments: the code that takes names and sizes from a user checks them. The parser
trusts nothing. Pure bytes; imports only errors and names.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from nsq.wire.names import quoted, valid_topic

MAGIC_V2 = b"  V2"
T = TypeVar("T")

NOP = b"NOP\n"
CLS = b"CLS\n"

#: nsqd reads a command line through a buffer of this size and hangs up on longer ones.
MAX_LINE = 16 * 1024

#: FINs with ids as every nsqd makes them. Lines with other bytes are split in the general way.
_FINS = re.compile(rb"(?:FIN [0-9A-Za-z]{16}\n)+")
_SIZE = struct.Struct(">i")
#: Memory of a bytes object and its place in a list, in addition to its data and the four bytes of its size.
_BODY_OVERHEAD = 40
#: An MPUB with more messages than this is kept as bytes until it is complete.
_MAX_LIST = 2000


def identify(body: bytes) -> bytes:
    return b"IDENTIFY\n" + _SIZE.pack(len(body)) + body


def auth(secret: bytes) -> bytes:
    return b"AUTH\n" + _SIZE.pack(len(secret)) + secret


def sub(topic: str, channel: str) -> bytes:
    return f"SUB {topic} {channel}\n".encode()


def rdy(count: int) -> bytes:
    return b"RDY %d\n" % count


def fin(message_id: bytes) -> bytes:
    return b"FIN " + message_id + b"\n"


def fins(message_ids: Iterable[bytes]) -> bytes:
    """Encode FINs, for at least one message."""
    return b"FIN " + b"\nFIN ".join(message_ids) + b"\n"


def req(message_id: bytes, delay_ms: int) -> bytes:
    return b"REQ %s %d\n" % (message_id, delay_ms)


def touch(message_id: bytes) -> bytes:
    return b"TOUCH " + message_id + b"\n"


def pub(topic: str, body: bytes) -> bytes:
    return _pub_line(topic) + _SIZE.pack(len(body)) + body


@functools.lru_cache(maxsize=4096)
def _pub_line(topic: str) -> bytes:
    return b"PUB %s\n" % topic.encode()


def dpub(topic: str, defer_ms: int, body: bytes) -> bytes:
    return b"DPUB %s %d\n%s%s" % (topic.encode(), defer_ms, _SIZE.pack(len(body)), body)


def mpub(topic: str, bodies: Iterable[bytes]) -> bytes:
    return pack_bodies(bodies, b"MPUB %s\n" % topic.encode())


def pack_bodies(bodies: Iterable[bytes], line: bytes = b"") -> bytes:
    """Encode messages as the body of MPUB or HTTP's binary /mpub: a count, then each with its size. With a
    command's line, put that and the size of all in front.
    """
    bodies = list(bodies)
    sizes = list(map(len, bodies))
    count = _SIZE.pack(len(bodies))
    if line:
        count = line + _SIZE.pack(4 + 4 * len(bodies) + sum(sizes)) + count
    parts = [count] * (2 * len(bodies) + 1)
    parts[1::2] = map(_SIZE.pack, sizes)
    parts[2::2] = bodies
    return b"".join(parts)  # one copy of all bytes


def batches(
    items: Iterable[T], size_of: Callable[[T], int], most: int = 10_000, most_bytes: int = 512 * 1024
) -> Iterator[list[T]]:
    """Yield the items in order, in lists of as many as one MPUB should carry. An item larger than
    ``most_bytes`` goes alone.
    """
    batch: list[T] = []
    total = _SIZE.size
    for item in items:
        size = size_of(item) + _SIZE.size
        if batch and (total + size > most_bytes or len(batch) == most):
            yield batch
            batch, total = [], _SIZE.size
        batch.append(item)
        total += size
    if batch:
        yield batch


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of the parser."""

    max_msg_size: int = 1024 * 1024
    max_body_size: int = 5 * 1024 * 1024
    max_defer_ms: int = 3_600_000

    @property
    def max_batch(self) -> int:
        """The most messages in a body: each takes a size and at least one byte."""
        return (self.max_body_size - 4) // 5


@dataclass(frozen=True)
class BadCommand:
    """The error of a command: code and text of the error frame that answers it."""

    code: bytes
    text: bytes

    def __bytes__(self) -> bytes:
        return self.code + b" " + self.text


class PackedBodies:
    """The messages of an MPUB as they came: each with its size, which has been checked.

    As a list, a million small messages take ten times as much memory.
    """

    def __init__(self, data: bytes, count: int) -> None:
        self._data = data
        self._count = count
        self._positions = {0: 0}  # where messages begin, by their index

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> list[bytes]:
        """Return the messages of a slice that begins where an earlier one began or ended."""
        data, unpack, position = self._data, _SIZE.unpack_from, self._positions[part.start]
        first, bodies = position, list[bytes]()
        for _ in range(min(part.stop, self._count) - part.start):
            start = position + 4
            position = start + unpack(data, position)[0]
            bodies.append(data[start:position])
        self._positions = {part.start: first, part.start + len(bodies): position}
        return bodies


#: verb, parameters, body. A body is bytes; MPUB's is the list of its messages, or they are packed; most
#: commands have none. FINs that follow each other can be one command without parameters, whose body is the
#: list of their ids.
Command = tuple[bytes, list[bytes], bytes | list[bytes] | PackedBodies | None]


class _Rejected(Exception):
    def __init__(self, code: bytes, text: bytes) -> None:
        super().__init__(code, text)
        self.reason = BadCommand(code, text)


class _Incomplete(Exception):
    """More bytes are needed; ``total`` counts from the first byte of the command."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.total = total


class CommandParser:
    """Cuts a client's byte stream into commands: ``feed`` returns the commands that are now complete.

    PUBs to one topic share their list of parameters, so that callers recognize a run of them by identity.

    Parsing stops at an IDENTIFY, because the bytes after it may be encrypted or compressed. ``stopped`` is
    true then: ``feed(b"")`` goes on, or ``take_rest()`` returns the bytes for a new layer. The first
    malformed command ends the stream: ``error`` has the reason, and applies after the returned commands.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held = bytearray()  # the beginning of an unfinished command
        self._needed = 0  # do not parse again with fewer bytes than this
        self._rest = b""  # the chunk that held an IDENTIFY; the bytes after it begin at ``_start``
        self._start = 0
        self._mpub: _PartialMpub | None = None
        self._pub_line = b""
        self._pub_params: list[bytes] = []
        self._dpub_head = b""
        self.error: BadCommand | None = None
        self.stopped = False
        #: The memory that the beginning of an unfinished command takes.
        self.held = 0

    def feed(self, data: bytes) -> list[Command]:
        if self.error is not None:
            return []
        self.stopped = False
        start, self._start = self._start, 0
        if self._rest:
            data, self._rest = (self._rest + data if data else self._rest), b""
        elif self._held:
            if len(self._held) + len(data) < self._needed:
                self._held += data
                self.held += len(data)
                return []
            data = b"".join((self._held, data))
            self._held = bytearray()
        commands: list[Command] = []
        used = self._cut(data, start, commands)
        if self.stopped:
            # Do not cut the rest off: in a chunk full of IDENTIFYs each would copy all bytes after it.
            self._rest, self._start = data, used
        elif used < len(data) and self.error is None:
            self._held += data[used:] if used else data
        self.held = len(self._held) + len(self._rest) - self._start
        if self._mpub is not None:
            self.held += self._mpub.held
        return commands

    def take_rest(self) -> bytes:
        rest = self._rest[self._start :] if self._rest else bytes(self._held)
        self._held = bytearray()
        self._rest = b""
        self._start = self._needed = self.held = 0
        self.stopped = False
        return rest

    def _cut(self, data: bytes, position: int, commands: list[Command]) -> int:
        """Append every complete command of ``data`` from ``position`` on; return where they end."""
        try:
            if self._mpub is not None:
                command, position = self._mpub.resume(data, position)
                self._mpub = None
                commands.append(command)
            while True:
                position = self._cut_runs(data, position, commands)
                if position == len(data):
                    self._needed = 0
                    return position
                newline = data.find(b"\n", position)
                if (newline if newline >= 0 else len(data)) - position > MAX_LINE:
                    raise _Rejected(b"E_INVALID", b"command line too long")
                if newline < 0:
                    self._needed = 0
                    return position
                line = data[position : newline - 1 if data[newline - 1 : newline] == b"\r" else newline]
                params = line.split(b" ")
                verb = params.pop(0)
                parse_body = _BODIES.get(verb)
                if parse_body is None:
                    position = newline + 1
                    commands.append((verb, params, None))
                    continue
                command, position = parse_body(self, params, data, position, newline + 1)
                commands.append(command)
                if verb == b"IDENTIFY":
                    self.stopped = True
                    self._needed = 0
                    return position
        except _Incomplete as more:
            self._needed = more.total
            # A partial MPUB keeps the messages it has read: we hold the bytes from its next message on.
            return self._mpub.position if self._mpub is not None else position
        except _Rejected as rejected:
            self.error = rejected.reason
            return len(data)

    def _cut_runs(self, data: bytes, position: int, commands: list[Command]) -> int:
        """Cut FINs, and PUBs and DPUBs to the topic of the last one, which are nearly all traffic.

        Leaves unusual commands to the general way, which takes three times as long.
        """
        if self._dpub_head and data.startswith(self._dpub_head, position):
            return self._cut_dpubs(data, position, commands)
        if data.startswith(b"FIN ", position):
            run = _FINS.match(data, position)
            if run is not None:
                ids = data[position + 4 : run.end() - 1].split(b"\nFIN ")
                commands.append((b"FIN", [], ids))
                position = run.end()
            return position
        line = self._pub_line
        if not line or not data.startswith(line, position):
            return position
        # The first PUB with this line has split it and checked the topic.
        params, limit, end = self._pub_params, self._limits.max_msg_size, len(data)
        unpack, append, head = _SIZE.unpack_from, commands.append, len(line) + 4
        while (start := position + head) <= end and data.startswith(line, position):
            (size,) = unpack(data, start - 4)
            stop = start + size
            if not 0 < size <= limit or stop > end:
                break
            append((b"PUB", params, data[start:stop]))
            position = stop
        return position

    def _cut_dpubs(self, data: bytes, position: int, commands: list[Command]) -> int:
        head, limit, longest = self._dpub_head, self._limits.max_msg_size, self._limits.max_defer_ms
        topic = head[5:-1]
        while data.startswith(head, position):
            line = position + len(head)
            newline = data.find(b"\n", line, line + 19)
            delay, start = data[line:newline], newline + 5
            if newline < 0 or start > len(data) or not delay.isdigit() or int(delay) > longest:
                break
            (size,) = _SIZE.unpack_from(data, newline + 1)
            stop = start + size
            if not 0 < size <= limit or stop > len(data):
                break
            commands.append((b"DPUB", [topic, delay], data[start:stop]))
            position = stop
        return position

    def _identify(self, params: list[bytes], data: bytes, start: int, position: int) -> tuple[Command, int]:
        body, position = self._sized(b"IDENTIFY", data, start, position)
        return (b"IDENTIFY", params, body), position

    def _auth(self, params: list[bytes], data: bytes, start: int, position: int) -> tuple[Command, int]:
        if params:
            raise _Rejected(b"E_INVALID", b"AUTH invalid number of parameters")
        body, position = self._sized(b"AUTH", data, start, position)
        return (b"AUTH", params, body), position

    def _pub(self, params: list[bytes], data: bytes, start: int, position: int) -> tuple[Command, int]:
        if not params:
            raise _Rejected(b"E_INVALID", b"PUB insufficient number of parameters")
        _require_topic(b"PUB", params[0])
        body, stop = self._sized(b"PUB", data, start, position, message=True)
        self._pub_line, self._pub_params = data[start:position], params
        return (b"PUB", params, body), stop

    def _dpub(self, params: list[bytes], data: bytes, start: int, position: int) -> tuple[Command, int]:
        if len(params) < 2:
            raise _Rejected(b"E_INVALID", b"DPUB insufficient number of parameters")
        _require_topic(b"DPUB", params[0])
        # An empty number is 0, as in Go's nsqd.
        delay, limit = params[1] or b"0", self._limits.max_defer_ms
        if not delay.isdigit():
            raise _Rejected(b"E_INVALID", b"DPUB could not parse timeout " + delay)
        if len(delay) > 18 or int(delay) > limit:
            raise _Rejected(b"E_INVALID", b"DPUB timeout %s out of range 0-%d" % (delay, limit))
        body, position = self._sized(b"DPUB", data, start, position, message=True)
        self._dpub_head = b"DPUB %s " % params[0]
        return (b"DPUB", params, body), position

    def _mpub_body(self, params: list[bytes], data: bytes, start: int, position: int) -> tuple[Command, int]:
        if not params:
            raise _Rejected(b"E_INVALID", b"MPUB insufficient number of parameters")
        # This one answer of nsqd has the code twice; clients may compare the whole text.
        _require_topic(b"E_BAD_TOPIC MPUB", params[0])
        limit = self._limits.max_body_size
        if len(data) < position + 4:
            raise _Incomplete(position + 4 - start)
        (size,) = _SIZE.unpack_from(data, position)
        if not 0 < size <= limit:
            raise _bad_size(b"MPUB", size, limit, message=False)
        if len(data) < position + 8:
            raise _Incomplete(position + 8 - start)
        (count,) = _SIZE.unpack_from(data, position + 4)
        if not 0 < count <= self._limits.max_batch:
            raise _Rejected(b"E_BAD_BODY", b"MPUB invalid message count %d" % count)
        self._mpub = _PartialMpub(params, count, size - 4, self._limits.max_msg_size)
        command, position = self._mpub.resume(data, position + 8)
        self._mpub = None
        return command, position

    def _sized(
        self, verb: bytes, data: bytes, start: int, position: int, *, message: bool = False
    ) -> tuple[bytes, int]:
        """Return the body, or the message, whose size is at ``position``, and the position of its end."""
        if len(data) < position + 4:
            raise _Incomplete(position + 4 - start)
        (size,) = _SIZE.unpack_from(data, position)
        limit = self._limits.max_msg_size if message else self._limits.max_body_size
        if not 0 < size <= limit:
            raise _bad_size(verb, size, limit, message=message)
        stop = position + 4 + size
        if len(data) < stop:
            raise _Incomplete(stop - start)
        return data[position + 4 : stop], stop


def _bad_size(verb: bytes, size: int, limit: int, *, message: bool) -> _Rejected:
    code, what = (b"E_BAD_MESSAGE", b"message") if message else (b"E_BAD_BODY", b"body")
    if size > limit:
        return _Rejected(code, b"%s %s too big %d > %d" % (verb, what, size, limit))
    what = b"message body" if message else what
    return _Rejected(code, b"%s invalid %s size %d" % (verb, what, size))


class _PartialMpub:
    """An MPUB, parsed message by message as nsqd does: a bad size is an error before the rest arrives.

    If it has very many messages and arrives in pieces, those that were checked are kept as bytes.
    """

    def __init__(self, params: list[bytes], count: int, budget: int, max_msg_size: int) -> None:
        self.position = 0
        self._params = params
        self._count = count
        self._size = self._budget = budget
        self._max_msg_size = max_msg_size
        self._bodies: list[bytes] = []
        self._checked = bytearray()  # instead of ``_bodies``
        self._checked_count = 0

    @property
    def held(self) -> int:
        return self._size - self._budget + _BODY_OVERHEAD * len(self._bodies)

    def resume(self, data: bytes, position: int) -> tuple[Command, int]:
        begin, bodies, limit = position, self._bodies, self._max_msg_size
        unpack, append = _SIZE.unpack_from, bodies.append
        last = position + self._budget
        most = min(last, len(data))
        needed = 4
        try:
            # As few steps as possible: this loop is most of the cost of a message in an MPUB.
            for _ in range(self._count - self._checked_count - len(bodies)):
                (size,) = unpack(data, position)
                start = position + 4
                stop = start + size
                if stop > most or not 0 < size <= limit:
                    if stop > last or not 0 < size <= limit:
                        raise self._rejection(size, self._checked_count + len(bodies))
                    needed = 4 + size
                    break
                append(data[start:stop])
                position = stop
            else:
                if self._checked_count:
                    packed = PackedBodies(bytes(self._checked + data[begin:position]), self._count)
                    return (b"MPUB", self._params, packed), position
                return (b"MPUB", self._params, bodies), position
        except struct.error:
            pass  # the size is incomplete
        self.position, self._budget = position, last - position
        if self._count > _MAX_LIST:
            self._checked += data[begin:position]
            self._checked_count += len(bodies)
            self._bodies = []
        raise _Incomplete(needed)

    def _rejection(self, size: int, number: int) -> _Rejected:
        if size <= 0:
            text = b"MPUB invalid message(%d) body size %d" % (number, size)
            return _Rejected(b"E_BAD_MESSAGE", text)
        if size > self._max_msg_size:
            return _bad_size(b"MPUB", size, self._max_msg_size, message=True)
        # Go's nsqd waits for ever here; messages beyond the declared body would take unbounded memory.
        return _Rejected(b"E_BAD_BODY", b"MPUB messages exceed the declared body size")


_BODIES = {
    b"IDENTIFY": CommandParser._identify,
    b"AUTH": CommandParser._auth,
    b"PUB": CommandParser._pub,
    b"DPUB": CommandParser._dpub,
    b"MPUB": CommandParser._mpub_body,
}


def deferred_run(commands: list[Command], position: int, end: int) -> list[tuple[float, Any]]:
    """Return the delays and bodies of consecutive DPUBs to one topic, from ``position`` on. One without a
    delay goes alone.
    """
    run: list[tuple[float, Any]] = []
    topic = commands[position][1][0]
    for index in range(position, end):
        verb, params, body = commands[index]
        if verb != b"DPUB" or params[0] != topic:
            break
        delay = int(params[1] or b"0")
        if not delay and run:
            break
        run.append((delay / 1000, body))
        if not delay:
            break
    return run


def _require_topic(verb: bytes, topic: bytes) -> None:
    if not valid_topic(topic):
        raise _Rejected(b"E_BAD_TOPIC", b"%s topic name %s is not valid" % (verb, quoted(topic).encode()))


def unpack_bodies(data: bytes, limits: Limits) -> list[bytes]:
    """Return the messages of HTTP's binary /mpub, whose body is that of MPUB. Raises ``BadBodies`` with the
    code that nsqd answers.
    """
    if len(data) < 4:
        raise BadBodies("BAD_BODY")
    (count,) = _SIZE.unpack_from(data)
    if not 0 < count <= limits.max_batch:
        raise BadBodies("BAD_BODY")
    try:
        (_, _, bodies), _ = _PartialMpub([], count, len(data) - 4, limits.max_msg_size).resume(data, 4)
    except (_Rejected, _Incomplete):
        raise BadBodies("BAD_MESSAGE") from None
    assert isinstance(bodies, list)
    return bodies


class BadBodies(ValueError):
    """A binary batch that cannot be decoded; ``code`` is nsqd's error code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code
