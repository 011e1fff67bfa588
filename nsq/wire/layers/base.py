"""What every layer is: the contract is the package's docstring."""

from __future__ import annotations

from typing import Protocol

from nsq.errors import ConfigError, LayerError

MAX_OUTPUT = 1 << 20
"""What one ``unwrap`` returns at most, unless a layer is told otherwise."""


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


def bounded(name: str, max_output: int, least: int) -> int:
    if max_output < least:
        raise ConfigError(f"{name}: max_output is {max_output}, must be at least {least} bytes")
    return max_output
