"""The order of imports between the parts of nsq, read from the syntax trees, with lazy imports."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.programs import run_python

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "nsq"

# Imports run one way. A part (a module or a folder directly below nsq/) may import itself and what stands on
# a line above its own; parts on one line do not import each other. PUBLIC is nsq/__init__.py: its __version__
# is there for everybody, its other names only for the parts below it.
PUBLIC = "nsq"
ORDER = [
    ["errors", "fsync", "gc_settings", "other_clients", "pauses", "rate"],
    ["log", "tables"],
    ["options", "findings"],
    ["config", "message"],
    ["wire"],
    ["threads"],
    ["transport", "flags"],
    ["http"],
    ["connection"],
    ["discovery"],
    ["producer"],
    ["consumer"],
    ["partitioned"],
    [PUBLIC],
    ["work"],
    ["aio", "tools", "spark", "contrib", "daemons", "testing"],
    ["__main__"],
]

# Narrower or wider than the order above.
MAY_IMPORT_ONLY = {
    "daemons": {"errors", "fsync", "gc_settings", "pauses", "threads", "options", "wire", "http", "flags"}
}
MAY_IMPORT_ANYTHING = {"testing"}
#: They choose what they need for the cluster that they meet. A consumer's types name ``OnStuck``.
MAY_IMPORT_PARTITIONED = {"producer/producer.py", "consumer/consumer.py"}
#: The one module of the daemons that uses the client, and its redrive.
MAY_IMPORT_THE_CLIENT = {"daemons/nsqadmin/live.py"}

# Parts of one folder that are programs of their own and do not import each other.
STRANGERS = {"daemons": {"nsqd", "nsqlookupd", "nsqadmin"}}

# A module from outside, and where alone it may be imported: folders end with a slash.
ONLY_IN = {
    "socket": ["transport/", "daemons/", "testing/"],
    "asyncio": ["aio.py", "contrib/", "daemons/", "testing/"],
    "_xxsubinterpreters": ["threads/waiters.py"],  # private in Python 3.11, renamed later
    "ssl": ["wire/layers/tls.py", "options.py", "config.py", "transport/", "http/", "daemons/", "testing/"],
    "aiohttp": ["daemons/"],
    "uvloop": ["daemons/"],
    "snappy": ["wire/"],
    "certifi": ["config.py", "transport/", "daemons/"],
    "pyspark": ["spark/"],
    "pyarrow": ["spark/"],
    "pandas": ["spark/"],
    "matplotlib": ["spark/"],
    "deltalake": ["spark/"],
    "prometheus_client": ["contrib/prometheus.py"],
    "opentelemetry": ["contrib/opentelemetry.py"],
    "msgspec": ["contrib/codecs.py"],
    "pydantic": ["contrib/codecs.py"],
    "obstore": ["spark/"],
    "django": ["contrib/"],
    "celery": ["contrib/celery/"],
    "kombu": ["contrib/celery/"],
    "asgiref": ["contrib/django/"],
    "psycopg": ["contrib/once.py"],
    "sqlalchemy": ["contrib/once.py", "contrib/outbox.py"],
    "pytest": ["testing/"],
    "eventlet": ["threads/waiters.py"],
}

# Bytes in, bytes out: time, chance and the world come to these as arguments or not at all.
NEVER_IN = {
    "wire/": ["socket", "select", "selectors", "asyncio", "time", "random", "logging", "os", "subprocess"],
}

# What says nothing about its content is no name.
NO_NAMES = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}

# What `import nsq` must not load.
NOT_LOADED = ["asyncio", "aiohttp", "uvloop", "pyspark", "pyarrow", "django", "celery", "kombu"]


OF_SPARK = ["pyspark", "pyarrow", "pandas"]


RANK = {part: rank for rank, line in enumerate(ORDER) for part in line}


#: Every module, as a path below nsq/.
SOURCES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def part_of(path: str) -> str:
    """``wire/frames.py`` belongs to wire, ``errors.py`` to errors, ``__init__.py`` is PUBLIC."""
    head = path.split("/")[0].removesuffix(".py")
    return PUBLIC if head == "__init__" else head


def imported(path: str, source: str) -> Iterator[str]:
    """Every dotted name a module imports, relative ones made absolute, ``from a import b`` as ``a.b``."""
    package = ["nsq", *path.split("/")[:-1]]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package[: len(package) - level + 1] if level else []
                prefix = ".".join([*base, *([module] if module else [])])
                yield from (f"{prefix}.{name.name}" for name in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def lies_in(path: str, place: str) -> bool:
    return path.startswith(place) if place.endswith("/") else path == place


def violations(path: str, source: str) -> list[str]:
    found: list[str] = []
    for name in imported(path, source):
        words = name.split(".")
        broken = broken_inside(path, words[1:]) if words[0] == "nsq" else broken_outside(path, words[0])
        if broken:
            found.append(f"nsq/{path} imports {name}: {broken}")
    return found


def broken_outside(path: str, module: str) -> str | None:
    for place, modules in NEVER_IN.items():
        if lies_in(path, place) and module in modules:
            return f"{place} does without {module}"
    if module in ONLY_IN:
        places = ONLY_IN[module]
        allowed = any(lies_in(path, place) for place in places)
        return None if allowed else f"{module} belongs to {', '.join(places)}"
    return None if module in sys.stdlib_module_names else f"{module} is no dependency of this package"


def broken_inside(path: str, words: list[str]) -> str | None:
    """``words`` are the names behind ``nsq.``."""
    here = part_of(path)
    there = words[0] if words and words[0] in PARTS else PUBLIC
    if here not in RANK or there not in RANK:
        return f"{here if here not in RANK else there} has no place in ORDER"
    if words == ["__version__"]:
        return None
    if here == there:
        return broken_among_strangers(path, words)
    if here in MAY_IMPORT_ANYTHING:
        return None
    if here in MAY_IMPORT_ONLY and not (path in MAY_IMPORT_THE_CLIENT and there in (PUBLIC, "work")):
        allowed = MAY_IMPORT_ONLY[here]
        return None if there in allowed else f"{here} may import only {', '.join(sorted(allowed))}"
    if there == "partitioned" and path in MAY_IMPORT_PARTITIONED:
        return None
    return None if RANK[there] < RANK[here] else f"{there} does not stand above {here}"


def broken_among_strangers(path: str, words: list[str]) -> str | None:
    folder, *below = path.split("/")
    strangers = STRANGERS.get(folder, set())
    program = below[0] if below else ""
    other = words[1] if len(words) > 1 else ""
    if other in strangers and other != program:
        return f"{other} is a program of its own"
    return None


PARTS = set(RANK) | {part_of(path) for path in SOURCES}


def test_imports_keep_to_the_order() -> None:
    texts = {path: (PACKAGE / path).read_text(encoding="utf-8") for path in SOURCES}
    assert [each for path, text in texts.items() for each in violations(path, text)] == []


#: What the rules above forbid, and what they allow: a module, and what it might say.
BROKEN = [
    ("errors.py", "from nsq import wire"),
    ("wire/frames.py", "from nsq.transport import tcp"),
    ("wire/frames.py", "from ..daemons.nsqd import main"),
    ("wire/frames.py", "from .. import http"),
    ("wire/frames.py", "import time"),
    ("wire/frames.py", "import ssl"),
    ("transport/dialing.py", "import nsq.http.calls"),
    ("http/sending.py", "import asyncio"),
    ("consumer/flow.py", "import nsq"),
    ("producer/flow.py", "from nsq.consumer import Consumer"),
    ("consumer/flow.py", "def later():\n    import socket"),
    ("consumer/flow.py", "import importlib\nimportlib.import_module('aiohttp')"),
    ("consumer/flow.py", "if TYPE_CHECKING:\n    from nsq.partitioned import Partition"),
    ("consumer/flow.py", "import requests"),
    ("daemons/nsqd/daemon.py", "from nsq import config"),
    ("daemons/nsqd/daemon.py", "from nsq import Consumer"),
    ("daemons/nsqd/daemon.py", "from ..nsqlookupd import registry"),
    ("daemons/nsqd/daemon.py", "from nsq.testing import leaks"),
    ("daemons/nsqadmin/api.py", "import nsq"),
    ("daemons/nsqadmin/live.py", "from nsq.consumer import consumer"),
    ("daemons/serve/httpd.py", "from ..nsqd.core.topic import Topic"),
    ("tools/nsq_tail.py", "from nsq.spark import source"),
    ("tools/nsq_tail.py", "from nsq.contrib.celery import names"),
    ("work/workers.py", "import kombu"),
    ("consumer/consumer.py", "from nsq import aio"),
    ("tools/nsq_tail.py", "from nsq.aio import Consumer"),
    ("testing/daemon.py", "import aiohttp"),
    ("unheard_of.py", "from nsq import errors"),
    ("__init__.py", "from nsq.testing import leaks"),
]
KEPT = [
    ("wire/layers/tls.py", "import ssl, snappy, struct"),
    (
        "wire/frames.py",
        "from nsq.errors import NsqError\nfrom . import names\nfrom nsq import __version__",
    ),
    ("daemons/serve/http_client.py", "import asyncio\nfrom nsq.http.message import Url"),
    ("consumer/consumer.py", "from nsq.connection.conn import Conn\nfrom .flow import Flow"),
    ("producer/producer.py", "def later():\n    from nsq.partitioned.routing import Router"),
    (
        "daemons/nsqd/daemon.py",
        "import aiohttp\nfrom nsq import __version__, flags\nfrom ..process import run",
    ),
    ("tools/nsq_tail.py", "from nsq import Consumer, flags"),
    ("tools/work.py", "from nsq.work.binding import Binding"),
    ("work/workers.py", "from nsq.producer.producer import Producer"),
    ("contrib/celery/transport.py", "import kombu, nsq\nfrom nsq.wire.names import check_topic"),
    ("daemons/nsqadmin/live.py", "from nsq import Consumer"),
    ("testing/daemon.py", "import asyncio\nfrom nsq.daemons.nsqd import main\nfrom nsq import Consumer"),
    ("__init__.py", "from nsq.consumer import Consumer\nfrom .errors import NsqError"),
]


def test_a_broken_rule_is_seen_and_a_kept_one_left_alone() -> None:
    assert [row for row in BROKEN if len(violations(*row)) != 1] == []
    assert [row for row in KEPT if violations(*row)] == []


def test_names_say_something() -> None:
    named = {word.removesuffix(".py") for path in SOURCES for word in path.split("/")}
    assert named & NO_NAMES == set()


def test_a_consumer_loads_the_producer_for_dead_letters_alone() -> None:
    program = """
import nsq, sys
nsq.Consumer("orders", "billing", nsqd="127.0.0.1:4150")
print("nsq.producer" in sys.modules)
nsq.Consumer("orders", "billing", nsqd="127.0.0.1:4150", dead_letters="orders.dead")
print("nsq.producer" in sys.modules)
"""
    done = run_python("-c", program)
    assert (done.stdout.split(), done.stderr) == (["False", "True"], "")


@pytest.mark.parametrize(
    ("use", "heavy"),
    [
        ("import nsq", NOT_LOADED),
        (
            "from nsq.config import Config; Config(max_in_flight=3, msg_timeout=60)",
            ["ssl", "certifi", "socket", "asyncio", "logging"],
        ),
        ("import nsq.http.nsqd, nsq.http.nsqlookupd", ["certifi", "asyncio", "http.client"]),
        ("import nsq.testing", ["aiohttp", "asyncio", "pytest"]),
        # What plans and receives, which would need seconds for these.
        ("import nsq.spark.rows, nsq.spark.wal.names, pyspark_nsq, pyspark_nsq_stats", OF_SPARK),
        ("import nsq.spark.options, nsq.spark.source.options, nsq.spark.lookups", OF_SPARK),
        (
            "from nsq.spark.cli import main; assert main(['--version']) == main(['archive', '-h']) == 0",
            OF_SPARK,
        ),
    ],
    ids=["nsq", "config", "http", "testing", "spark formats", "spark options", "nsq-spark"],
)
def test_what_is_imported_loads_nothing_heavy_and_starts_no_thread(use: str, heavy: list[str]) -> None:
    program = f"""
{use}
import sys, threading
print(sorted(set({heavy!r}) & set(sys.modules)), threading.active_count())
"""
    done = run_python("-c", program)
    assert (done.stdout.splitlines()[-1:], done.stderr) == (["[] 1"], "")
