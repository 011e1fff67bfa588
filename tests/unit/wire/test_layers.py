from __future__ import annotations

import ssl
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from queue import SimpleQueue

import pytest
import snappy
import trustme
from hypothesis import given
from hypothesis import strategies as st

from nsq.errors import ConfigError, LayerError
from nsq.wire.layers import MAX_OUTPUT, Deflate, Layer, Snappy, Stack, Tls

OK_FRAME = bytes.fromhex("00000006000000004f4b")
RECORDED_DEFLATE = bytes.fromhex("6260606063606060f0f706000000ffff000000ffff")
RECORDED_SNAPPY = bytes.fromhex("ff060000734e61507059010e000026982bcf00000006000000004f4b")
IDENTIFIER, OK_CHUNK = RECORDED_SNAPPY[:10], RECORDED_SNAPPY[10:]
HOST = "nsqd.example"


def chunk(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(3, "little") + body


def pieces(wire: bytes, sizes: list[int]) -> Iterator[bytes]:
    offset = 0
    for size in cycle(sizes):
        if offset >= len(wire):
            return
        yield wire[offset : offset + size]
        offset += size


def drained(layer: Layer, data: bytes) -> bytes:
    """One delivery, unwrapped the way callers must."""
    plain = [layer.unwrap(data)]
    while layer.more:
        plain.append(layer.unwrap(b""))
    return b"".join(plain)


def received(layer: Layer, wire: bytes, sizes: list[int]) -> bytes:
    return b"".join(drained(layer, piece) for piece in pieces(wire, sizes))


def shake(client: Layer, server: Layer) -> None:
    while client.has_pending or server.has_pending:
        assert drained(server, client.pending()) == b""
        assert drained(client, server.pending()) == b""


@contextmanager
def peak_memory_below(limit: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


class Authority:
    """Certificates of one CA and contexts that use them."""

    def __init__(self) -> None:
        self.ca = trustme.CA()
        self._server = self.ca.issue_cert(HOST, common_name="the nsqd")
        self._client = self.ca.issue_cert("client.example", common_name="orders")

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.configure_cert(context)
        return context

    def client(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.ca.configure_trust(context)
        return context

    def client_with_certificate(self) -> ssl.SSLContext:
        context = self.client()
        self._client.configure_cert(context)
        return context


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority()


def tls_ends(
    authority: Authority,
    *,
    client: ssl.SSLContext | None = None,
    server: ssl.SSLContext | None = None,
    max_output: int = MAX_OUTPUT,
) -> tuple[Tls, Tls]:
    """A client and a server before their handshake."""
    return (
        Tls(client or authority.client(), server_side=False, server_hostname=HOST, max_output=max_output),
        Tls(server or authority.server(), server_side=True, server_hostname=None, max_output=max_output),
    )


def tls_pair(authority: Authority, max_output: int = MAX_OUTPUT) -> tuple[Tls, Tls]:
    client, server = tls_ends(authority, max_output=max_output)
    shake(client, server)
    return client, server


Ends = Callable[[Authority], tuple[Layer, Layer]]


def tls_under(make: Callable[[], Layer]) -> Ends:
    def ends(authority: Authority) -> tuple[Layer, Layer]:
        client, server = tls_pair(authority, max_output=16384)
        return Stack(client, make()), Stack(server, make())

    return ends


def twice(make: Callable[[], Layer]) -> Ends:
    return lambda authority: (make(), make())


ENDS: dict[str, Ends] = {
    "nothing": twice(Stack),
    "deflate": twice(Deflate),
    "deflate, 7 bytes a call": twice(lambda: Deflate(level=1, max_output=7)),
    "snappy": twice(lambda: Snappy(max_output=65536)),
    "tls": lambda authority: tls_pair(authority, max_output=16384),
    "tls, snappy": tls_under(Snappy),
    "tls, deflate": tls_under(lambda: Deflate(max_output=1000)),
    "deflate, deflate": twice(lambda: Stack(Deflate(max_output=3), Deflate(max_output=5))),
}
every_ends = pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
payloads = st.lists(
    st.one_of(
        st.binary(max_size=300),
        st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=30), st.integers(0, 200)),
        st.sampled_from([b"", b"\n", bytes(70_000), bytes(range(256)) * 300]),
    ),
    max_size=6,
)
piece_sizes = st.lists(st.sampled_from([1, 2, 3, 7, 100, 4096, 1 << 20]) | st.integers(1, 500), min_size=1)


class TestRoundTrip:
    @every_ends
    @given(sent=payloads, answered=payloads, sizes=piece_sizes)
    def test_any_payloads_arrive_however_the_wire_cuts_them(
        self, authority: Authority, ends: Ends, sent: list[bytes], answered: list[bytes], sizes: list[int]
    ) -> None:
        # Short pieces of long streams only cost time.
        sizes = [max(size, sum(map(len, sent + answered)) // 500, 1) for size in sizes]
        left, right = ends(authority)
        for source, target, messages in ((left, right, sent), (right, left, answered)):
            wire = b"".join(source.wrap(message) for message in messages)
            assert received(target, wire, sizes) == b"".join(messages)

    @every_ends
    def test_the_peer_can_decode_after_each_wrap(self, authority: Authority, ends: Ends) -> None:
        left, right = ends(authority)
        for message in (b"PUB orders\n", b"x", bytes(100_000), b"NOP\n"):
            assert drained(right, left.wrap(message)) == message
            assert drained(left, right.wrap(message)) == message

    @pytest.mark.parametrize("name", ["snappy", "tls", "tls, snappy", "tls, deflate"])
    @given(data=st.data())
    def test_a_damaged_byte_never_becomes_wrong_data(
        self, authority: Authority, name: str, data: st.DataObject
    ) -> None:
        message = data.draw(st.binary(min_size=1, max_size=200))
        left, right = ENDS[name](authority)
        wire = bytearray(left.wrap(message))
        place = data.draw(st.integers(0, len(wire) - 1))
        wire[place] ^= data.draw(st.integers(1, 255))
        try:
            plain = drained(right, bytes(wire))
        except LayerError:
            return
        # A damaged length asks for more, a chunk damaged into a skippable one is skipped.
        assert plain in (b"", message)

    @given(message=st.binary(min_size=1), data=st.data())
    def test_damaged_deflate_raises_nothing_but_our_error(self, message: bytes, data: st.DataObject) -> None:
        wire = bytearray(Deflate().wrap(message))
        wire[data.draw(st.integers(0, len(wire) - 1))] ^= data.draw(st.integers(1, 255))
        with suppress(LayerError):
            drained(Deflate(max_output=50), bytes(wire))

    @pytest.mark.parametrize("make", [Deflate, Snappy])
    @given(noise=st.binary(max_size=300), sizes=piece_sizes)
    def test_noise_raises_nothing_but_our_error(
        self, make: Callable[[], Layer], noise: bytes, sizes: list[int]
    ) -> None:
        with suppress(LayerError):
            received(make(), noise, sizes)


class TestDeflate:
    def test_a_recorded_deflate_stream_with_two_flushes_is_decoded(self) -> None:
        assert Deflate().unwrap(RECORDED_DEFLATE) == OK_FRAME
        assert received(Deflate(), RECORDED_DEFLATE, [1]) == OK_FRAME

    def test_deflate_writes_a_raw_stream_that_ends_in_a_sync_flush(self) -> None:
        wire = Deflate(level=9).wrap(OK_FRAME)
        assert wire.endswith(b"\x00\x00\xff\xff")
        assert zlib.decompressobj(-15).decompress(wire) == OK_FRAME

    def test_a_final_block_closes_the_peer_s_direction(self) -> None:
        deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
        layer = Deflate()
        assert layer.unwrap(deflater.compress(OK_FRAME) + deflater.flush()) == OK_FRAME
        assert layer.peer_closed
        assert layer.unwrap(b"") == b""
        assert layer.wrap(b"still ours to speak")

    @pytest.mark.parametrize("together", [True, False])
    def test_bytes_after_the_final_block_are_an_error(self, together: bool) -> None:
        deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
        wire = deflater.compress(OK_FRAME) + deflater.flush()
        layer = Deflate()
        assert layer.unwrap(wire + b"junk" if together else wire) == OK_FRAME
        with pytest.raises(LayerError, match="4 bytes follow the final block"):
            layer.unwrap(b"" if together else b"junk")

    def test_output_that_only_zlib_still_holds_is_announced(self) -> None:
        wire = Deflate().wrap(bytes(1000) + b"abc" * 300)
        for cut in range(len(wire)):
            layer = Deflate(max_output=7)
            assert drained(layer, wire[:cut]) == Deflate().unwrap(wire[:cut])
            assert layer.unwrap(b"") == b""

    def test_once_broken_it_stays_broken(self) -> None:
        layer = Deflate()
        with pytest.raises(LayerError, match=r"^deflate: .*corrupt: .*invalid block type") as first:
            layer.unwrap(b"\xff" * 10)
        for use in (layer.wrap, layer.unwrap):
            with pytest.raises(LayerError) as again:
                use(RECORDED_DEFLATE)
            assert str(again.value) == str(first.value)

    @pytest.mark.parametrize("level", [0, 10, -1])
    def test_an_impossible_level_is_refused(self, level: int) -> None:
        with pytest.raises(ConfigError, match=f"level is {level}, must be from 1 to 9"):
            Deflate(level=level)


def masked(checksum: int) -> bytes:
    return ((((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


class TestSnappy:
    def test_a_recorded_snappy_stream_is_decoded_wherever_it_is_cut(self) -> None:
        for cut in range(1, len(RECORDED_SNAPPY)):
            layer = Snappy()
            assert layer.unwrap(RECORDED_SNAPPY[:cut]) == b""
            assert not layer.more
            assert layer.unwrap(RECORDED_SNAPPY[cut:]) == OK_FRAME

    def test_the_snappy_identifier_may_come_alone_and_again(self) -> None:
        layer = Snappy()
        assert layer.unwrap(IDENTIFIER) == b""
        assert layer.unwrap(OK_CHUNK + IDENTIFIER + IDENTIFIER + OK_CHUNK) == OK_FRAME * 2
        assert layer.unwrap(IDENTIFIER) == b""

    def test_snappy_writes_one_identifier_and_other_decoders_read_it(self) -> None:
        layer = Snappy()
        first, second = layer.wrap(OK_FRAME), layer.wrap(b"abc" * 100_000)
        assert first == RECORDED_SNAPPY
        assert not second.startswith(IDENTIFIER)
        assert snappy.StreamDecompressor().decompress(first + second) == OK_FRAME + b"abc" * 100_000

    @pytest.mark.parametrize("kind", [0x80, 0xC3, 0xFD, 0xFE])
    @pytest.mark.parametrize("size", [0, 1, 70_000])
    def test_padding_and_skippable_chunks_are_skipped(self, kind: int, size: int) -> None:
        wire = IDENTIFIER + chunk(kind, b"?" * size) + OK_CHUNK + chunk(kind, b"?" * size) + OK_CHUNK
        assert Snappy().unwrap(wire) == OK_FRAME * 2
        assert received(Snappy(), wire, [501, 1, 2]) == OK_FRAME * 2

    def test_the_longest_padding_is_never_stored(self) -> None:
        layer, piece = Snappy(), bytes(65536)
        layer.unwrap(IDENTIFIER + b"\xfe\xff\xff\xff")
        with peak_memory_below(4 * len(piece)):
            for _ in range(255):
                assert layer.unwrap(piece) == b""
        assert layer.unwrap(bytes(65535) + OK_CHUNK) == OK_FRAME

    @pytest.mark.parametrize("empty", [chunk(0x01, masked(0)), chunk(0x00, masked(0) + b"\x00")])
    def test_an_empty_chunk_hides_nothing_behind_it(self, empty: bytes) -> None:
        assert Snappy().unwrap(IDENTIFIER + empty) == b""
        assert Snappy().unwrap(IDENTIFIER + empty + OK_CHUNK) == OK_FRAME

    @pytest.mark.parametrize(
        ("wire", "reason"),
        [
            (OK_CHUNK, "begins with a chunk 0x01"),
            (b"HTTP/1.1 400 Bad Request", "begins with a chunk 0x48"),
            (chunk(0xFE, b""), "begins with a chunk 0xfe"),
            (chunk(0xFF, b"sNaPpy"), "identifier is damaged"),
            (b"\xff\x07\x00\x00", "0xff cannot be 7 bytes long"),
            (IDENTIFIER + chunk(0xFF, b"snappy"), "identifier is damaged"),
            (IDENTIFIER + b"\x02\x01\x00\x00", "0x02 is reserved"),
            (IDENTIFIER + b"\x7f\x00\x00\x00", "0x7f is reserved"),
            (IDENTIFIER + b"\x01\x03\x00\x00", "0x01 cannot be 3 bytes long"),
            (IDENTIFIER + b"\x01\x05\x00\x01", "0x01 cannot be 65541 bytes long"),
            (IDENTIFIER + b"\x00\x04\x00\x00", "0x00 cannot be 4 bytes long"),
            (IDENTIFIER + b"\x00\xff\xff\xff", "0x00 cannot be 16777215 bytes long"),
            (IDENTIFIER + chunk(0x00, b"crc." + b"\x80" * 9), "no valid size"),
            (IDENTIFIER + chunk(0x00, b"crc." + b"\x80"), "no valid size"),
            (IDENTIFIER + chunk(0x00, b"crc." + snappy.compress(bytes(65537))), "announces 65537 bytes"),
            (IDENTIFIER + chunk(0x00, b"crc." + b"\x05\x00a"), "a chunk is corrupt"),
            (IDENTIFIER + OK_CHUNK[:-1] + b"k", "a chunk is corrupt: .*(checksum|crc)"),
            (IDENTIFIER + chunk(0x01, b"crc."), "a chunk is corrupt: .*(checksum|crc)"),
        ],
    )
    def test_a_chunk_that_the_format_forbids_is_an_error(self, wire: bytes, reason: str) -> None:
        layer = Snappy()
        with pytest.raises(LayerError, match=f"^snappy: .*{reason}") as first:
            layer.unwrap(wire)
        for use in (layer.wrap, layer.unwrap):
            with pytest.raises(LayerError) as again:
                use(RECORDED_SNAPPY)
            assert str(again.value) == str(first.value)


@pytest.mark.parametrize("make", [Deflate, Snappy])
def test_wrapping_nothing_gives_nothing(make: Callable[[], Layer]) -> None:
    layer = make()
    assert (layer.wrap(b""), layer.pending(), layer.close(), layer.has_pending) == (b"", b"", b"", False)


@pytest.mark.parametrize(
    ("bomb", "layer"),
    [
        (Deflate(level=9), Deflate()),
        (Snappy(), Snappy()),
        (Stack(Deflate(level=9), Deflate(level=9)), Stack(Deflate(), Deflate())),
    ],
    ids=["deflate", "snappy", "deflate under deflate"],
)
def test_a_bomb_comes_out_in_bounded_pieces(bomb: Layer, layer: Layer) -> None:
    size, total, longest = 30_000_000, 0, 0
    wire = bomb.wrap(bytes(size))
    with peak_memory_below(10 * MAX_OUTPUT):
        plain = layer.unwrap(wire)
        while plain or layer.more:
            longest, total = max(longest, len(plain)), total + len(plain)
            plain = layer.unwrap(b"")
    assert (total, longest) == (size, MAX_OUTPUT)


class TestTlsHandshake:
    def test_the_client_speaks_first(self, authority: Authority) -> None:
        client, server = tls_ends(authority)
        assert (client.has_pending, server.has_pending) == (True, False)
        hello = client.pending()
        assert hello[0] == 0x16
        assert (client.pending(), client.has_pending) == (b"", False)
        assert (client.handshake_done, client.version, client.cipher) == (False, None, None)
        assert (client.peer_certificate, client.peer_common_name, client.selected_alpn) == (None, "", None)

    def test_wrap_carries_what_was_pending_first(self, authority: Authority) -> None:
        client, server = tls_ends(authority)
        server.unwrap(client.pending())
        client.unwrap(server.pending())
        assert (client.has_pending, server.has_pending) == (True, False)
        assert server.unwrap(client.wrap(b"IDENTIFY")) == b"IDENTIFY"
        assert (client.has_pending, server.has_pending) == (False, True)  # the server's session tickets
        assert client.unwrap(server.wrap(b"OK")) == b"OK"
        assert (server.has_pending, server.pending()) == (False, b"")

    def test_wrap_before_the_handshake_is_refused_and_harmless(self, authority: Authority) -> None:
        client, server = tls_ends(authority)
        with pytest.raises(LayerError, match="handshake is not done; 6 bytes cannot"):
            client.wrap(b"secret")
        shake(client, server)
        assert server.unwrap(client.wrap(b"secret")) == b"secret"

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    def test_version_cipher_and_certificate_are_known_after_the_handshake(
        self, authority: Authority, version: ssl.TLSVersion
    ) -> None:
        client_context, server_context = authority.client_with_certificate(), authority.server()
        authority.ca.configure_trust(server_context)
        server_context.verify_mode = ssl.CERT_REQUIRED
        client_context.maximum_version = version
        for context in (client_context, server_context):
            context.set_alpn_protocols(["nsq"])
        client, server = tls_ends(authority, client=client_context, server=server_context)
        shake(client, server)
        assert client.version == server.version == version.name.replace("_", ".")
        assert client.cipher == server.cipher
        assert client.cipher
        assert client.selected_alpn == server.selected_alpn == "nsq"
        assert (client.peer_common_name, server.peer_common_name) == ("the nsqd", "orders")
        assert server.peer_certificate is not None
        assert ("DNS", "client.example") in server.peer_certificate["subjectAltName"]


class TestTlsRefusals:
    def refused(self, client: Tls, server: Tls, reason: str) -> None:
        """The client refuses the server, and its alert reaches it."""
        server.unwrap(client.pending())
        with pytest.raises(LayerError, match=f"^tls: handshake failed: .*{reason}") as refusal:
            client.unwrap(server.pending())
        assert "_ssl.c" not in str(refusal.value)
        with pytest.raises(LayerError) as again:
            client.unwrap(b"")
        assert str(again.value) == str(refusal.value)
        with pytest.raises(LayerError):
            client.wrap(b"secret")
        assert client.has_pending
        with pytest.raises(LayerError, match=r"(?i)alert"):
            server.unwrap(client.pending())

    @pytest.mark.parametrize(
        ("trusted", "host", "reason"),
        [
            (False, HOST, "certificate verify failed: unable to get local issuer"),
            (True, "other.example", "certificate verify failed: Hostname mismatch.*other.example"),
        ],
        ids=["an unknown authority", "another host"],
    )
    def test_a_certificate_that_proves_nothing_is_refused(
        self, authority: Authority, trusted: bool, host: str, reason: str
    ) -> None:
        context = (authority if trusted else Authority()).client()
        _, server = tls_ends(authority)
        self.refused(Tls(context, server_side=False, server_hostname=host), server, reason)

    def test_a_damaged_record_is_an_error(self, authority: Authority) -> None:
        client, server = tls_pair(authority)
        wire = bytearray(server.wrap(b"message"))
        wire[-1] ^= 1
        with pytest.raises(LayerError, match=r"^tls: read failed: .*(bad record mac|record layer failure)"):
            client.unwrap(bytes(wire))

    @pytest.mark.parametrize(
        ("side", "hostname", "reason"),
        [
            ("client", None, "checks host names, so server_hostname must be given"),
            ("client", "", "checks host names, so server_hostname must be given"),
            ("client", ".example", r"server_hostname='\.example' is unusable"),
            ("server", HOST, "is unusable: .*PROTOCOL_TLS_SERVER context$"),
        ],
    )
    def test_a_name_or_context_that_cannot_be_used_is_refused(
        self, authority: Authority, side: str, hostname: str | None, reason: str
    ) -> None:
        with pytest.raises(ConfigError, match=reason):
            Tls(getattr(authority, side)(), server_side=False, server_hostname=hostname)

    @given(damage=st.tuples(st.integers(0, 2), st.integers(0, 5000), st.integers(1, 255)))
    def test_a_damaged_handshake_raises_nothing_but_our_error(
        self, authority: Authority, damage: tuple[int, int, int]
    ) -> None:
        client, server = tls_ends(authority)
        damaged_flight, place, flipped = damage
        for flight, (source, target) in enumerate([(client, server), (server, client), (client, server)]):
            wire = bytearray(source.pending())
            if flight == damaged_flight and wire:
                wire[place % len(wire)] ^= flipped
            try:
                assert target.unwrap(bytes(wire)) == b""
            except LayerError:
                return


class TestTlsStream:
    def test_long_messages_come_out_in_bounded_pieces(self, authority: Authority) -> None:
        client, server = tls_pair(authority)
        message = bytes(range(256)) * 20_000
        plain = [client.unwrap(server.wrap(message))]
        while client.more:
            plain.append(client.unwrap(b""))
        assert max(map(len, plain)) <= MAX_OUTPUT
        assert len(plain) > 4
        assert b"".join(plain) == message

    def test_a_close_notify_is_seen_and_an_end_without_it_is_not(self, authority: Authority) -> None:
        client, server = tls_pair(authority)
        wire, goodbye = server.wrap(b"last words"), server.close()
        assert client.unwrap(wire) == b"last words"
        assert (client.peer_closed, client.more) == (False, False)
        assert client.unwrap(goodbye + b"what follows is ignored") == b""
        assert (client.peer_closed, client.more) == (True, False)
        assert client.unwrap(b"and this") == b""

    def test_the_other_direction_outlives_a_close(self, authority: Authority) -> None:
        client, server = tls_pair(authority)
        assert drained(server, client.close()) == b""
        assert server.peer_closed
        assert client.unwrap(server.wrap(b"CLOSE_WAIT")) == b"CLOSE_WAIT"

    def test_closing_leaves_unread_input_readable(self, authority: Authority) -> None:
        client, server = tls_pair(authority, max_output=16384)
        message = bytes(range(256)) * 200
        wire = server.wrap(message)
        plain = client.unwrap(wire[:40_000])
        assert client.more
        assert client.close()
        plain += drained(client, b"")
        assert plain + drained(client, wire[40_000:]) == message

    def test_close_speaks_once_and_ends_wrapping(self, authority: Authority) -> None:
        client, _ = tls_pair(authority)
        assert client.close()
        assert client.close() == b""
        with pytest.raises(LayerError, match="is closed; 4 bytes cannot be wrapped"):
            client.wrap(b"late")

    def test_reader_and_writer_threads_share_each_end(self, authority: Authority) -> None:
        messages = [b"%d:" % number + bytes(number * 379 % 50_000) for number in range(1500)]
        ends = [Stack(layer) for layer in tls_ends(authority)]
        shake(*ends)
        pipes: list[SimpleQueue[bytes]] = [SimpleQueue(), SimpleQueue()]
        arrived = [bytearray(), bytearray()]

        def write(place: int) -> None:
            for message in messages:
                pipes[place].put(ends[place].wrap(message))
            pipes[place].put(ends[place].close())
            pipes[place].put(b"")

        def read(place: int) -> None:
            while wire := pipes[1 - place].get():
                arrived[place] += drained(ends[place], wire)

        jobs = [(job, place) for place in (0, 1) for job in (read, write)]
        threads = [threading.Thread(target=job, args=(place,), daemon=True) for job, place in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(200)
        assert not any(thread.is_alive() for thread in threads)
        assert arrived == [b"".join(messages)] * 2
        assert all(end.peer_closed for end in ends)


class TestStack:
    def test_an_empty_stack_returns_the_same_object(self) -> None:
        stack, data = Stack(), b"  V2"
        assert stack.wrap(data) is data
        assert stack.unwrap(data) is data
        assert (stack.more, stack.has_pending, stack.peer_closed) == (False, False, False)
        assert (stack.pending(), stack.close(), stack.layers) == (b"", b"", ())

    def test_the_first_layer_is_next_to_the_wire(self) -> None:
        wire = Stack(Snappy(), Deflate()).wrap(OK_FRAME)
        assert wire.startswith(IDENTIFIER)
        assert Deflate().unwrap(Snappy().unwrap(wire)) == OK_FRAME

    def test_an_upgrade_may_be_announced_and_used_in_one_chunk(self, authority: Authority) -> None:
        ends = tls_pair(authority)
        client, server = map(Stack, ends)
        wire = server.wrap(OK_FRAME)
        server.push(Snappy())
        wire += server.wrap(OK_FRAME)

        plain = client.unwrap(wire)
        announcement, early = plain[: len(OK_FRAME)], plain[len(OK_FRAME) :]
        assert announcement == OK_FRAME
        upgrade = Snappy()
        assert upgrade.unwrap(early) == OK_FRAME
        client.push(upgrade)
        assert client.layers == (ends[0], upgrade)
        assert client.unwrap(server.wrap(b"message")) == b"message"
        assert server.unwrap(client.wrap(b"FIN")) == b"FIN"

    def test_a_pushed_layer_brings_what_it_withholds(self) -> None:
        early = Deflate(max_output=4)
        assert early.unwrap(Deflate().wrap(b"abcdef")) == b"abcd"
        stack = Stack()
        stack.push(early)
        assert stack.more
        assert stack.unwrap(b"") == b"ef"

    def test_an_upper_layer_s_own_bytes_pass_through_those_below(self, authority: Authority) -> None:
        client, server = (Stack(Snappy(), layer) for layer in tls_ends(authority))
        assert client.has_pending
        shake(client, server)
        assert drained(server, client.wrap(b"PUB")) == b"PUB"
        goodbye = client.close()
        assert snappy.StreamDecompressor().decompress(IDENTIFIER + goodbye)
        assert drained(server, goodbye) == b""
        assert server.peer_closed

    def test_an_answer_is_empty_only_when_input_is_missing(self) -> None:
        source = Stack(Deflate(), Deflate())
        target = Stack(Deflate(max_output=1), Deflate(max_output=1))
        wire = source.wrap(b"abc")
        assert [target.unwrap(wire), target.unwrap(b""), target.unwrap(b"")] == [b"a", b"b", b"c"]
        assert target.unwrap(b"") == b""
        assert not target.more

    def test_lower_layers_wait_until_those_above_are_empty(self) -> None:
        class Witness(Deflate):
            fed, fed_too_early = 0, 0

            def unwrap(self, data: bytes) -> bytes:
                self.fed += bool(data)
                self.fed_too_early += bool(data) and self.more
                return super().unwrap(data)

        message = bytes(5000) + bytes(range(256))
        witness = Witness(max_output=10)
        stack = Stack(Deflate(max_output=20), witness)
        assert drained(stack, Stack(Deflate(), Deflate()).wrap(message)) == message
        assert witness.fed > 10
        assert witness.fed_too_early == 0

    def test_a_broken_layer_breaks_the_stack(self, authority: Authority) -> None:
        client, server = tls_pair(authority)
        stack = Stack(client, Snappy())
        with pytest.raises(LayerError, match=r"^snappy: ") as first:
            stack.unwrap(server.wrap(b"not snappy"))
        with pytest.raises(LayerError) as again:
            stack.wrap(b"FIN")
        assert str(again.value) == str(first.value)
        drained(server, stack.close())
        assert server.peer_closed
