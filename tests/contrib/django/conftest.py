"""A real Django project, in this process and in others.

In this process its database is in memory and belongs to one thread. Other processes get a file, or
PostgreSQL.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
import pytest

from nsq.testing import Nsqd
from nsq.testing.plugin import nsqd, nsqd_factory
from tests.integration.consuming import until

__all__ = ["nsqd", "nsqd_factory"]

ROOT = Path(__file__).resolve().parents[3]
PROJECT = Path(__file__).resolve().parent / "project"

sys.path.insert(0, str(PROJECT))
# Read here and now: other tests of this process, and what they start, are no part of the project.
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()


@pytest.fixture
def database() -> Iterator[None]:
    """The tables of the project, empty."""
    from django.core.management import call_command
    from django.db import connections

    call_command("migrate", verbosity=0)
    call_command("flush", verbosity=0, interactive=False)
    yield
    connections.close_all()


@pytest.fixture
def settings_nsq(nsqd: Nsqd) -> Iterator[None]:
    """The project of this process publishes to the test's nsqd."""
    from django.test import override_settings

    with override_settings(NSQ={"NSQD": nsqd.tcp_address}):
        yield


@pytest.fixture
def outbox(database: None) -> Iterator[Any]:
    """The messages that the project of this process has published, to memory."""
    from django.test import override_settings

    from nsq.contrib.django import locmem

    with override_settings(NSQ={"BACKEND": "nsq.contrib.django.locmem"}):
        locmem.outbox.clear()
        yield locmem.outbox


class Site:
    """The project in processes of its own."""

    def __init__(self, directory: Path, nsqd: Nsqd | None) -> None:
        self.directory = directory
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{PROJECT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "SHOP_SQLITE": str(directory / "shop.sqlite3"),
            "SHOP_NSQD": "127.0.0.1:1" if nsqd is None else nsqd.tcp_address,
            "SHOP_FILES": str(directory),
        }
        self.log = directory / "log"

    def manage(self, *arguments: str, status: int = 0, python: tuple[str, ...] = ()) -> str:
        """Run ``manage.py`` to its end; return its output."""
        done = subprocess.run(
            [sys.executable, *python, str(PROJECT / "manage.py"), *arguments],
            cwd=PROJECT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    @contextmanager
    def running(self, *command: str, status: int | None = 0) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program in the block, then end it by SIGTERM and compare its status."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=PROJECT, env=self.environment, stdout=log, stderr=log
            )
        try:
            yield process
            process.terminate()
            ended = process.wait(100)
        except BaseException:
            process.kill()
            process.wait()
            print(self.said())
            raise
        assert status is None or ended == status, self.said()

    def add_app(self, name: str, handlers: str) -> None:
        """Add an app with this text as its nsq_handlers.py, or change that."""
        app = self.directory / name
        if not app.exists():
            app.mkdir()
            (app / "__init__.py").touch()
            self.environment["SHOP_APPS"] = name
            self.environment["PYTHONPATH"] += f":{self.directory}"
        (app / "nsq_handlers.py").write_text(handlers)

    def query(self, sql: str) -> list[Any]:
        """Return the rows of a query in the site's SQLite database."""
        connection = sqlite3.connect(self.environment["SHOP_SQLITE"], timeout=30)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def billed(self) -> list[str]:
        return sorted(body for (body,) in self.query("select body from shop_billed"))

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def until_said(self, text: str) -> None:
        until(f"the log has {text!r}", lambda: text in self.said())


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with the project's tables."""
    site = Site(tmp_path_factory.mktemp("tables"), None)
    site.manage("migrate", "--verbosity=0")
    return Path(site.environment["SHOP_SQLITE"])


@pytest.fixture
def site(tmp_path: Path, nsqd: Nsqd, tables: Path) -> Site:
    site = Site(tmp_path, nsqd)
    shutil.copy(tables, site.environment["SHOP_SQLITE"])
    return site


def bodies(nsqd: Nsqd, topic: str, count: int) -> list[Any]:
    """The bodies of the next messages of a topic, sorted."""
    import nsq

    found: list[bytes] = []
    consumer = nsq.Consumer(topic, "test", nsqd=nsqd.tcp_address)
    consumer.add_handler(lambda message: found.append(message.body))
    with consumer:
        until(f"{count} messages of {topic} are there: {found}", lambda: len(found) >= count)
    return sorted(found)
