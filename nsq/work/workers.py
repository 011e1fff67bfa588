"""What a worker of ``nsq work`` does: it runs the consumers until SIGTERM, or until it has reached a limit.

Once a second each worker writes a report into its slot of shared memory, which the health page shows.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from nsq import Consumer
from nsq.errors import ConfigError
from nsq.flags import check, duration, flag
from nsq.log import Logger
from nsq.threads.signals import SignalWatch
from nsq.work.listening import HttpServer, listen_address
from nsq.work.stopping import stop_all

log = Logger("nsq.work")

#: Seconds between two reports of a worker, and between two checks of children and files by the supervisor.
STEP = 1.0
#: Seconds for a new worker to connect before the old one is stopped all the same.
_CONNECT = 10.0
#: Seconds without a report after which a worker counts as stuck.
_STALE = 15.0
_SLOT = 16 * 1024
_HEAD = struct.Struct(">II")


@dataclass(frozen=True, kw_only=True)
class WorkFlags:
    processes: int = flag(lambda: processors(), "number of processes", low=1, high=1000)
    threads: int = flag(
        0,
        "threads of each handler that was added without a number (0: as in the program)",
        low=0,
        high=10_000,
    )
    timeout: float = duration(30.0, "time to finish messages in work at the end", low=0.0, high=86400.0)
    max_messages: int = flag(
        0, "number of messages after which a process is replaced (0 for no limit)", low=0, high=2**63 - 1
    )
    max_memory: int = flag(
        0, "MiB of memory above which a process is replaced (0 for no limit)", low=0, high=2**31
    )
    reload: bool = flag(False, "replace the processes when a file of the program changes (for development)")
    health_address: str = flag("", "host:port of an HTTP page with the health of all processes")

    def __post_init__(self) -> None:
        check(self)
        if self.health_address:
            listen_address(self.health_address)


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Reports


class Slots:
    """Memory shared with children. One process at a time writes each slot.

    It is that of a file without a name, which a child also inherits when it executes its program again.
    """

    def __init__(self, count: int, descriptor: int | None = None) -> None:
        """Take over the file with this descriptor, or make one."""
        if descriptor is None:
            with tempfile.TemporaryFile() as file:
                file.write(bytes(count * _SLOT))  # on a full disk this fails, not a later write to a page
                file.flush()
                descriptor = os.dup(file.fileno())
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, count * _SLOT)
        self.count = count

    def close(self) -> None:
        self._memory.close()
        os.close(self.descriptor)

    def write(self, slot: int, report: dict[str, Any]) -> None:
        """Write a report. Consumers that do not fit are left out, healthy ones first."""
        consumers = report["consumers"]
        while len(data := json.dumps({**report, "consumers": consumers}).encode()) > _SLOT - _HEAD.size:
            consumers = sorted(consumers, key=lambda each: each["ok"])[: len(consumers) // 2]
        self._memory[slot * _SLOT : slot * _SLOT + _HEAD.size + len(data)] = (
            _HEAD.pack(len(data), zlib.crc32(data)) + data
        )

    def clear(self, slot: int) -> None:
        self._memory[slot * _SLOT : slot * _SLOT + _HEAD.size] = bytes(_HEAD.size)

    def read(self, slot: int) -> dict[str, Any]:
        """Return a report; empty if none was written, or if one is being written."""
        start = slot * _SLOT
        length, check = _HEAD.unpack_from(self._memory, start)
        data = self._memory[start + _HEAD.size : start + _HEAD.size + min(length, _SLOT)]
        if not length or zlib.crc32(data) != check:
            return {}
        report: dict[str, Any] = json.loads(data)
        return report


# A worker


def run_worker(
    options: WorkFlags, consumers: list[Consumer], slots: Slots, slot: int, supervisor: int
) -> str:
    """Run until SIGTERM or a limit; return the reason."""
    # The supervisor sends SIGTERM for a stop, and SIGUSR1 to end it at once.
    with SignalWatch(signal.SIGUSR1) as watch:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # again, because the watch has set a handler for it
        log.info("consuming %s", ", ".join(f"{each.topic}/{each.channel}" for each in consumers))
        for consumer in consumers:
            if options.threads:
                consumer.set_threads(options.threads)
            if (rate := consumer.config.rate) and slot == 0:
                text = "%s/%s: rate=%g in each of %d processes: %g in all"
                names, many = (consumer.topic, consumer.channel), options.processes
                log.info(text, *names, rate, many, rate * many)
            consumer.start()
        reason = "" if _wait_until_connected(consumers, watch) else "it was asked to"
        slots.write(slot, _report(consumers))
        if os.getppid() == supervisor:
            with suppress(ProcessLookupError):
                os.kill(supervisor, signal.SIGUSR1)
        while not reason:
            if watch.wait(STEP) is not None:
                reason = "it was asked to"
            elif os.getppid() != supervisor:
                reason = "its supervisor is gone"
            else:
                report = _report(consumers)
                slots.write(slot, report)
                reason = _limit_reached(options, report)
        stop_all(consumers, watch, options.timeout)
    return reason


def _wait_until_connected(consumers: list[Consumer], watch: SignalWatch) -> bool:
    """Wait until all are connected, or for so long that the old process need not wait any more. Return False
    after a signal.
    """
    deadline = time.monotonic() + _CONNECT
    for consumer in consumers:
        while (left := deadline - time.monotonic()) > 0 and not consumer.wait_until_connected(
            min(STEP, left)
        ):
            if watch.wait(0.1) is not None:  # seconds: a consumer that was stopped does not wait
                return False
    return True


def _report(consumers: Sequence[Consumer]) -> dict[str, Any]:
    several = []
    for consumer in consumers:
        stats, health = consumer.stats(), consumer.health()
        several.append(
            {
                "topic": consumer.topic,
                "channel": consumer.channel,
                "ok": health.ok or health.paused or health.backoff_level > 0,
                "summary": health.summary[:500],
                "finished": stats.finished,
                "requeued": stats.requeued,
                "in_flight": stats.in_flight,
            }
        )
    return {"pid": os.getpid(), "at": time.time(), "memory": memory_used(), "consumers": several}


def memory_used() -> int:
    """Return the resident memory of this process in bytes."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return peak_memory()
    return pages * resource.getpagesize()


def peak_memory() -> int:
    """Return the most resident memory that this process has used, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _limit_reached(options: WorkFlags, report: dict[str, Any]) -> str:
    answered = sum(each["finished"] + each["requeued"] for each in report["consumers"])
    if 0 < options.max_messages <= answered:
        return f"it has answered {answered} messages"
    if 0 < options.max_memory < report["memory"] / 2**20:
        return f"it uses {report['memory'] // 2**20} MiB"
    return ""


# The health page


def health_of(slots: Slots, processes: int, now: float) -> tuple[bool, dict[str, Any]]:
    """Return whether all workers are healthy, and their reports."""
    reports = [each for each in map(slots.read, range(slots.count)) if each]
    for each in reports:
        each["ok"] = now - each["at"] < _STALE and all(consumer["ok"] for consumer in each["consumers"])
    ok = sum(each["ok"] for each in reports) >= processes
    return ok, {"ok": ok, "wanted": processes, "processes": reports}


def health_server(options: WorkFlags, slots: Slots) -> HttpServer:
    class Page(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            ok, page = health_of(slots, options.processes, time.time())
            body = json.dumps(page, indent=2).encode() + b"\n"
            self.send_response(200 if ok else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    supervisor = os.getpid()

    class HealthServer(HttpServer):
        def service_actions(self) -> None:
            if os.getppid() != supervisor:  # the supervisor was killed, and a new one may need the port
                os._exit(1)

    try:
        return HealthServer(options.health_address, Page)
    except OSError as error:
        raise ConfigError(f"--health-address {options.health_address}: {error}") from None
