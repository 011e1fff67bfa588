"""The parties: our client, other clients if installed, bare programs, and the firehose."""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import trustme

from benchmarks.comparison import Measure
from benchmarks.processes import ROOT, Command, Place, Server, numbers_of, serving

OURS, LIMIT, BARE = "nsq", "bare socket", "bare program"
PEERS = ("gnsq", "pynsq")

SIZE = 200

#: Programs of this package; the others are in benchmarks/peers.
_DRIVERS = {OURS: "client", LIMIT: "bare", BARE: "bare_program"}

_ENVIRONMENTS = ROOT / ".venv" / "interop"

#: Runs the named load with these arguments and ``port``, and returns its numbers.
Drive = Callable[..., Sequence[float]]


def missing(peers: Sequence[str]) -> dict[str, str]:
    """Return the clients that are not installed, and what to do."""
    return {
        peer: f"{peer} is not installed: run 'python .ci/environment.py interop'"
        for peer in peers
        if not _interpreter(peer).is_file()
    }


def driver_of(party: str) -> Drive:
    if party in _DRIVERS:
        argv = [sys.executable, "-m", f"benchmarks.drivers.{_DRIVERS[party]}"]
    else:
        # PYTHONPATH and user packages must not import our nsq.
        program = ROOT / "benchmarks" / "peers" / f"{party}_peer.py"
        argv = [str(_interpreter(party)), "-E", "-s", "-B", str(program)]

    def drive(load: str, **arguments: object) -> Sequence[float]:
        return numbers_of([*argv, load, json.dumps(arguments)])

    return drive


def _interpreter(peer: str) -> Path:
    """Return the path where .ci/environment.py installs it."""
    return _ENVIRONMENTS / peer / "bin" / "python"


def under(command: Command, load: Callable[[Server, float], Sequence[float]]) -> Measure:
    """Run the load with the party and a new server."""

    def measure(scale: float) -> Sequence[float]:
        with serving(command) as server:
            return load(server, scale)

    return measure


def firehose(*options: str, size: int = SIZE) -> Command:
    def command(place: Place) -> Sequence[str]:
        program = [sys.executable, "-m", "benchmarks.servers.firehose", str(place.port)]
        return [*program, f"--size={size}", *options]

    return command


def firehose_with_tls() -> Command:
    return firehose("--certificate", *_certificate())


class _Kept(NamedTuple):
    directory: tempfile.TemporaryDirectory[str]
    files: tuple[str, str]


def _certificate() -> tuple[str, str]:
    """Return certificate chain and key of a server on 127.0.0.1."""
    return _made_certificate().files


@functools.cache
def _made_certificate() -> _Kept:
    kept = tempfile.TemporaryDirectory(prefix="bench-")
    chain, key = Path(kept.name, "chain.pem"), Path(kept.name, "key.pem")
    leaf = trustme.CA().issue_cert("127.0.0.1")
    chain.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(str(key))
    return _Kept(kept, (str(chain), str(key)))


def present(contenders: Mapping[str, Measure], absent: Mapping[str, str]) -> dict[str, Measure]:
    return {party: measure for party, measure in contenders.items() if party not in absent}
