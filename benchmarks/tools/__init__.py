"""The command-line tools, each compared with a minimal program that handles the same messages.

A tool runs as its own process against our nsqds. Its rate is computed from nsqd's statistics, from the first
finished message to the last, so that its start does not count.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.comparison import Bar, Comparison, Figure, Measure
from benchmarks.daemon import servers
from benchmarks.processes import ROOT, Broken, Server, drive, serving
from nsq.http.nsqd import NsqdApi

TOPIC, CHANNEL = "bench", "tool"
SIZE, IN_FLIGHT = 200, 2500
ROUNDS = 5
_MESSAGES, _LINES, _COMPUTED = 200_000, 1_000_000, 20_000
_PATIENCE = 120.0
_LOOK = 0.005

_NOTHING = "a consumer that does nothing"
_RATE = Figure("", "msg/s")


class Setting(NamedTuple):
    """The source of a tool's messages, and where it may publish and write files."""

    source: Server
    target: Server
    directory: str

    @property
    def nsqd(self) -> str:
        return f"127.0.0.1:{self.source.port}"


#: Makes the command line of the program that drains the channel.
Tool = Callable[[Setting], Sequence[str]]

_NOTHING_PROGRAM = """\
import nsq
from nsq.gc_settings import tune_gc
tune_gc()
consumer = nsq.Consumer("{topic}", "{channel}", nsqd="{nsqd}", max_in_flight={in_flight})
consumer.add_handler(lambda message: None).run()
"""
_COMPUTING_PROGRAM = """\
import nsq

def compute(message):
    sum(number * number for number in range(5000))

consumer = nsq.Consumer("{topic}", "{channel}", nsqd="{nsqd}", max_in_flight=100)
consumer.add_handler(compute)
"""


def comparisons() -> Sequence[Comparison]:
    return [_draining(), _lines(), _computing()]


def _draining() -> Comparison:
    contenders = {_NOTHING: _drain(_nothing), "nsq_to_file": _drain(_to_file), "nsq_to_nsq": _drain(_to_nsq)}
    return Comparison(
        name=f"tools, {IN_FLIGHT:,} in flight",
        figures=(_RATE,),
        contenders=contenders,
        bars=[Bar(tool, _NOTHING, 0.5) for tool in ("nsq_to_file", "nsq_to_nsq")],
        rounds=ROUNDS,
    )


def _computing() -> Comparison:
    def work(processes: int) -> Tool:
        def command(setting: Setting) -> Sequence[str]:
            Path(setting.directory, "computing.py").write_text(_program(_COMPUTING_PROGRAM, setting))
            return _module("nsq", "work", "computing:consumer", f"--processes={processes}")

        return command

    return Comparison(
        name="nsq work, a handler that computes",
        figures=(_RATE,),
        contenders={
            "1 process": _drain(work(1), _COMPUTED),
            "2 processes": _drain(work(2), _COMPUTED),
        },
        bars=[Bar("2 processes", "1 process", 1.8)],
        rounds=ROUNDS,
    )


def _nothing(setting: Setting) -> Sequence[str]:
    return [sys.executable, "-c", _program(_NOTHING_PROGRAM, setting)]


def _program(text: str, setting: Setting) -> str:
    return text.format(topic=TOPIC, channel=CHANNEL, nsqd=setting.nsqd, in_flight=IN_FLIGHT)


def _to_file(setting: Setting) -> Sequence[str]:
    return _module("nsq.tools.nsq_to_file", *_flags(setting), f"--output-dir={setting.directory}")


def _to_nsq(setting: Setting) -> Sequence[str]:
    destination = f"--destination-nsqd-tcp-address=127.0.0.1:{setting.target.port}"
    return _module("nsq.tools.nsq_to_nsq", *_flags(setting), destination, "--status-every=0")


def _flags(setting: Setting) -> Sequence[str]:
    return [
        f"--topic={TOPIC}",
        f"--channel={CHANNEL}",
        f"--nsqd-tcp-address={setting.nsqd}",
        f"--max-in-flight={IN_FLIGHT}",
    ]


def _module(name: str, *arguments: str) -> Sequence[str]:
    return [sys.executable, "-m", name, *arguments]


def _drain(tool: Tool, count: int = _MESSAGES) -> Measure:
    def measure(scale: float) -> Sequence[float]:
        with (
            serving(servers.nsqd()) as source,
            serving(servers.nsqd()) as target,
            tempfile.TemporaryDirectory(prefix="bench-") as directory,
        ):
            return [_rate(tool, Setting(source, target, directory), round(count * scale))]

    return measure


def _rate(tool: Tool, setting: Setting, count: int) -> float:
    api = NsqdApi(f"127.0.0.1:{setting.source.http_port}")
    api.create_topic(TOPIC)
    api.create_channel(TOPIC, CHANNEL)
    drive("fill", setting.source.port, count, SIZE, 100)
    _until(lambda: _left(api) == count)
    with _running(tool(setting), setting.directory):
        _until(lambda: _left(api) < count)
        began, first = time.monotonic(), _left(api)
        _until(lambda: _left(api) <= IN_FLIGHT)
        return (first - _left(api)) / (time.monotonic() - began)


def _left(api: NsqdApi) -> int:
    (channel,) = api.stats(TOPIC, CHANNEL, include_clients=False)["topics"][0]["channels"]
    return channel["depth"] + channel["in_flight_count"]


@contextmanager
def _running(command: Sequence[str], directory: str) -> Iterator[None]:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        command, cwd=directory, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise Broken(f"a tool was not done within {_PATIENCE:g} s")
        time.sleep(_LOOK)


# Publishing


def _lines() -> Comparison:
    return Comparison(
        name="to_nsq, short lines",
        figures=(_RATE,),
        contenders={"to_nsq": _to_nsq_rate, "multi_publish": _multi_publish_rate},
        bars=[Bar("to_nsq", "multi_publish", 0.5)],
        rounds=ROUNDS,
    )


def _to_nsq_rate(scale: float) -> Sequence[float]:
    """Return the rate that the tool itself reports, which leaves out its start."""
    count = round(_LINES * scale)
    with serving(servers.nsqd()) as server, tempfile.TemporaryFile() as lines:
        lines.write(b"".join(b"line %07d\n" % number for number in range(count)))
        lines.seek(0)
        command = _module(
            "nsq.tools.to_nsq", f"--topic={TOPIC}", f"--nsqd-tcp-address=127.0.0.1:{server.port}"
        )
        done = subprocess.run(command, cwd=ROOT, stdin=lines, capture_output=True, text=True, check=False)
        found = re.search(rf"published {count} messages .* \((\d+)/s\)", done.stderr)
        if found is None:
            raise Broken(f"to_nsq failed: {done.stderr[-500:]}")
        return [float(found[1])]


def _multi_publish_rate(scale: float) -> Sequence[float]:
    with serving(servers.nsqd()) as server:
        return drive("publish", server.port, "mpub", round(_LINES * scale), 12, 1000)
