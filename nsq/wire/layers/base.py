"""The base of every layer, and a stack of them. The package's docstring holds the contract."""

from __future__ import annotations

from typing import Protocol

from nsq.errors import LayerError

MAX_OUTPUT = 1 << 20
"""The most that one ``unwrap`` returns, unless a layer is told otherwise; a block or record must fit in."""


class Layer(Protocol):
    """One transformation of a connection's bytes; the module's docstring has the contract."""

    @property
    def more(self) -> bool:
        """Whether ``unwrap(b"")`` may yield more without new input."""

    @property
    def has_pending(self) -> bool:
        """Whether the sender should call ``pending`` and send what it returns."""

    @property
    def peer_closed(self) -> bool:
        """Whether the peer ended its direction properly. An end of file without it is a truncated stream."""

    def wrap(self, data: bytes) -> bytes:
        """Plain to wire, flushed: the peer can decode everything given so far. Includes what was pending."""

    def unwrap(self, data: bytes) -> bytes:
        """Wire to plain; empty when a whole unit has not arrived yet."""

    def pending(self) -> bytes:
        """Bytes the layer itself wants sent (a TLS handshake, a key update, an alert)."""

    def close(self) -> bytes:
        """The last bytes to send; nothing can be wrapped afterwards, but reading goes on."""


class Stack:
    """An ordered pile of layers, the wire side first; itself a layer, and the identity while empty."""

    def __init__(self, *layers: Layer) -> None:
        # Replaced, never changed: the other thread sees the pile before a push or after it.
        self.layers: tuple[Layer, ...] = layers

    def push(self, layer: Layer) -> None:
        """Puts a layer on the plain side.

        A peer may speak through the new layer at once, so bytes of it may already have come out of this stack
        behind the answer that announced it. Unwrap these with the new layer itself, then push it.
        """
        self.layers = (*self.layers, layer)

    @property
    def more(self) -> bool:
        return any(layer.more for layer in self.layers)

    @property
    def has_pending(self) -> bool:
        return any(layer.has_pending for layer in self.layers)

    @property
    def peer_closed(self) -> bool:
        return any(layer.peer_closed for layer in self.layers)

    def wrap(self, data: bytes) -> bytes:
        for layer in reversed(self.layers):
            data = layer.wrap(data)
        return data

    def unwrap(self, data: bytes) -> bytes:
        if not self.layers:
            return data
        plain = self._lift(data)
        while not plain and self.more:
            plain = self._lift(b"")
        return plain

    def _lift(self, data: bytes) -> bytes:
        """One pass from the wire up; without input it starts at the highest layer that withholds something.

        Those below wait until the ones above are empty, which is what bounds the memory of the whole stack.
        """
        layers = self.layers
        start = 0
        if not data:
            start = max((place for place, layer in enumerate(layers) if layer.more), default=0)
        for layer in layers[start:]:
            data = layer.unwrap(data)
        return data

    def pending(self) -> bytes:
        data = b""
        for layer in reversed(self.layers):
            own = layer.pending()
            data = own + layer.wrap(data) if data else own
        return data

    def close(self) -> bytes:
        data = b""
        for layer in reversed(self.layers):
            carried = layer.wrap(data) if data else b""
            data = carried + layer.close()
        return data


class Breakable:
    """A layer that, once it has failed, fails every further use with the same words."""

    _name = "layer"
    _failure: str | None = None

    def refuse_if_broken(self) -> None:
        if self._failure is not None:
            raise LayerError(self._failure)

    def broken(self, reason: str) -> LayerError:
        self._failure = f"{self._name}: {reason}"
        return LayerError(self._failure)
