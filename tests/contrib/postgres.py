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


ASKING = "asking"
SESSIONS = (
    "select count(*) from pg_stat_activity"
    f" where backend_type = 'client backend' and application_name <> '{ASKING}'"
)


def programs() -> Path | None:
    """The directory of PostgreSQL's programs; Debian has them outside of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    on_path = shutil.which("initdb")
    return found[0].parent if found else Path(on_path).parent if on_path else None


def own_user(directory: Path) -> dict[str, Any]:
    """Return how to start a program as PostgreSQL's user, who then owns the directory: it refuses to run as
    root.
    """
    if os.getuid() != 0:
        return {}
    shutil.chown(directory, "postgres")
    return {"user": "postgres"}


def run(*command: str, **options: Any) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=200, cwd="/", **options)


class Postgres:
    """A server that only listens on a Unix socket in ``directory``, as the user postgres and without
    passwords.
    """

    def __init__(self, home: Path, template: Path, directory: Path) -> None:
        self.directory = directory
        self._home = home
        self._data = directory / "data"
        run("cp", "-a", str(template), str(self._data))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = [f"-cunix_socket_directories={self.directory}", "-clisten_addresses=", "-cfsync=off"]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._home / "postgres", "-D", self._data, *options],
                stdout=log,
                stderr=log,
                cwd="/",
                **own_user(directory=self.directory),
            )
        until("PostgreSQL answers", self._answers)

    def _answers(self) -> bool:
        with suppress(Exception):
            return bool(self.query("select 1"))
        return False

    def query(self, sql: str) -> list[Any]:
        import psycopg

        with psycopg.connect(
            host=str(self.directory), user="postgres", application_name=ASKING, autocommit=True
        ) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def stop(self) -> None:
        """End it at once, and with it every connection."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def sessions(self) -> int:
        """Count the connections of others, but not our own earlier ones, which may take a while to end."""
        count: int = self.query(SESSIONS)[0][0]
        return count


@pytest.fixture(scope="session")
def postgres_template() -> Iterator[tuple[Path, Path]]:
    """PostgreSQL's programs, and the data of a new server."""
    home = programs()
    lacks = "PostgreSQL's programs are not installed" if home is None else ""
    if importlib.util.find_spec("psycopg") is None:
        lacks = lacks or "psycopg is not installed"
    if lacks:
        if os.environ.get(REQUIRED):
            pytest.fail(f"{lacks}, and {REQUIRED} is set")
        pytest.skip(f"not run: {lacks}")
    assert home is not None
    with tempfile.TemporaryDirectory(prefix="nsq-postgres-") as name:
        data = Path(name) / "data"
        command = [str(home / "initdb"), "-A", "trust", "-U", "postgres", "--no-sync", "-D", str(data)]
        run(*command, **own_user(Path(name)))
        yield home, data


@pytest.fixture
def postgres(postgres_template: tuple[Path, Path]) -> Iterator[Postgres]:
    with tempfile.TemporaryDirectory(prefix="nsq-postgres-") as name:
        server = Postgres(*postgres_template, Path(name))
        try:
            server.start()
            yield server
        finally:
            server.stop()
