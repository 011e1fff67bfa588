"""A PostgreSQL of the test's own, from the system's packages."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.consuming import until

#: In CI a missing PostgreSQL is an error.
REQUIRED = "NSQ_REQUIRE_POSTGRES"


def programs() -> Path | None:
    """The directory of PostgreSQL's programs; Debian has them outside of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    on_path = shutil.which("initdb")
    return found[0].parent if found else Path(on_path).parent if on_path else None


class Postgres:
    """A server that only listens on a Unix socket in ``directory``, as the user postgres and without
    passwords.
    """

    def __init__(self, home: Path, directory: Path) -> None:
        self.directory = directory
        self._home = home
        # It refuses to run as root.
        self._as = {"user": "postgres"} if os.getuid() == 0 else {}
        if self._as:
            shutil.chown(directory, "postgres")
        self._data = directory / "data"
        self._run("initdb", "-A", "trust", "-U", "postgres", "--no-sync", "-D", str(self._data))
        self._process: subprocess.Popen[bytes] | None = None

    def _run(self, program: str, *arguments: str) -> None:
        command = [self._home / program, *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=200, cwd="/", **self._as)

    def start(self) -> None:
        options = [f"-cunix_socket_directories={self.directory}", "-clisten_addresses=", "-cfsync=off"]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._home / "postgres", "-D", self._data, *options],
                stdout=log,
                stderr=log,
                cwd="/",
                **self._as,
            )
        until("PostgreSQL answers", self._answers)

    def _answers(self) -> bool:
        with suppress(Exception):
            return bool(self.query("select 1"))
        return False

    def query(self, sql: str) -> list[Any]:
        import psycopg

        with psycopg.connect(host=str(self.directory), user="postgres", autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def stop(self) -> None:
        """End it at once, and with it every connection."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def sessions(self) -> int:
        """Count the connections of others."""
        found = self.query(
            "select count(*) from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> pg_backend_pid()"
        )
        count: int = found[0][0]
        return count


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    home = programs()
    lacks = "PostgreSQL's programs are not installed" if home is None else ""
    if importlib.util.find_spec("psycopg") is None:
        lacks = lacks or "psycopg is not installed"
    if lacks:
        if os.environ.get(REQUIRED):
            pytest.fail(f"{lacks}, and {REQUIRED} is set")
        pytest.skip(f"not run: {lacks}")
    assert home is not None
    directory = Path(tempfile.mkdtemp(prefix="nsq-postgres-"))
    server = Postgres(home, directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)
