"""Layers on top of each other."""

from __future__ import annotations

from nsq.wire.layers.base import Layer


class Stack:
    """An ordered pile of layers, the wire side first; itself a layer, and the identity while empty."""

    def __init__(self, *layers: Layer) -> None:
        # Replaced, never changed: the other thread sees the pile before a push or after it.
        self._layers: tuple[Layer, ...] = layers

    def push(self, layer: Layer) -> None:
        """Puts a layer on the plain side.

        A peer may speak through the new layer at once, so bytes of it may already have come out of this stack
        behind the answer that announced it. Unwrap these with the new layer itself, then push it.
        """
        self._layers = (*self._layers, layer)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self._layers

    @property
    def more(self) -> bool:
        return any(layer.more for layer in self._layers)

    @property
    def has_pending(self) -> bool:
        return any(layer.has_pending for layer in self._layers)

    @property
    def peer_closed(self) -> bool:
        return any(layer.peer_closed for layer in self._layers)

    def wrap(self, data: bytes) -> bytes:
        for layer in reversed(self._layers):
            data = layer.wrap(data)
        return data

    def unwrap(self, data: bytes) -> bytes:
        if not self._layers:
            return data
        plain = self._lift(data)
        while not plain and self.more:
            plain = self._lift(b"")
        return plain

    def _lift(self, data: bytes) -> bytes:
        """One pass from the wire up; without input it starts at the highest layer that withholds something.

        Those below wait until the ones above are empty, which is what bounds the memory of the whole stack.
        """
        layers = self._layers
        start = 0
        if not data:
            start = max((place for place, layer in enumerate(layers) if layer.more), default=0)
        for layer in layers[start:]:
            data = layer.unwrap(data)
        return data

    def pending(self) -> bytes:
        data = b""
        for layer in reversed(self._layers):
            own = layer.pending()
            data = own + layer.wrap(data) if data else own
        return data

    def close(self) -> bytes:
        data = b""
        for layer in reversed(self._layers):
            carried = layer.wrap(data) if data else b""
            data = carried + layer.close()
        return data
