"""The interface of a layer, and a stack of layers. The package's docstring has the rules for using them."""

from __future__ import annotations

from typing import Protocol

from nsq.errors import LayerError

MAX_OUTPUT = 1 << 20
"""The default of ``max_output``. A whole block of snappy and a whole TLS record must fit into it."""


class Layer(Protocol):
    """One transformation of a connection's bytes."""

    @property
    def more(self) -> bool:
        """Whether ``unwrap(b"")`` may yield more without new input."""

    @property
    def has_pending(self) -> bool:
        """Whether the sender should call ``pending`` and send what it returns."""

    @property
    def peer_closed(self) -> bool:
        """Whether the peer has ended its stream. If the connection ends without that, the stream was cut off.
        Snappy has no mark for it.
        """

    def wrap(self, data: bytes) -> bytes:
        """Encode and flush: the peer can decode everything given so far. Includes what was pending."""

    def unwrap(self, data: bytes) -> bytes:
        """Decode; empty until a whole block or record has arrived."""

    def pending(self) -> bytes:
        """Bytes that the layer itself has to send: a TLS handshake, a key update, an alert."""

    def close(self) -> bytes:
        """The last bytes to send."""


class Stack:
    """Layers on top of each other, the wire side first; itself a layer. An empty stack changes nothing."""

    def __init__(self, *layers: Layer) -> None:
        # Replaced, never changed: the other thread sees the layers before a push or after it.
        self.layers: tuple[Layer, ...] = layers

    def push(self, layer: Layer) -> None:
        """Add a layer on the plain side.

        A peer may use the new layer at once. So this stack may already have returned bytes of the new layer,
        behind the reply that announced it. Unwrap these with the new layer itself, then push it.
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
        """Pass bytes through the layers once. Without input, start at the highest layer that keeps something.

        The layers below it wait until it is empty, which bounds the memory of the whole stack.
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
    """A layer that repeats its first error at every later use."""

    _name = "layer"
    _failure: str | None = None

    def refuse_if_broken(self) -> None:
        if self._failure is not None:
            raise LayerError(self._failure)

    def broken(self, reason: str) -> LayerError:
        self._failure = f"{self._name}: {reason}"
        return LayerError(self._failure)
