"""Finds the environments of other clients, or says why a test cannot run.

They are put there by .ci/environment.py, one environment each: pynsq's module is called ``nsq`` like ours.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest
from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".venv" / "interop"
CLIENTS = ("pynsq", "gnsq", "ansq", "asyncnsq")


def pin(client: str) -> Requirement:
    """The first requirement: the client itself."""
    lines = (HERE / "requirements" / f"{client}.txt").read_text().splitlines()
    return Requirement(next(line for line in lines if line and not line.startswith("#")))


class Hindrance(NamedTuple):
    """Why a client cannot be driven."""

    reason: str
    excused: bool


def hindrance(client: str) -> Hindrance | None:
    """Return why a client cannot run; excused only if its pins say that it does not exist for the Python of
    its environment.
    """
    if (failed := ENVIRONMENTS / f"{client}.failed").is_file():
        return Hindrance(failed.read_text(), excused=False)
    stamp = ENVIRONMENTS / client / "installed"
    if not stamp.is_file():
        reason = f"{client} is not installed: run 'make test', or 'python .ci/environment.py interop'"
        return Hindrance(reason, excused=False)
    marker, version = pin(client).marker, ".".join(stamp.read_text().split(".")[:2])
    if marker is not None and not marker.evaluate({"python_version": version}):
        reason = f"{client} cannot be had for Python {version}: requirements/{client}.txt says {marker}"
        return Hindrance(reason, excused=True)
    return None


def refuse(client: str) -> NoReturn:
    """Skip the test if that is allowed, else fail it."""
    found = hindrance(client)
    if found is not None and found.excused:
        pytest.skip(found.reason)
    pytest.fail(found.reason if found else f"{client} has no driver", pytrace=False)


def command_of(client: str) -> list[str]:
    """Return a driver's command, which ignores PYTHONPATH and user packages: our nsq may be there."""
    return [
        str(ENVIRONMENTS / client / "bin" / "python"),
        "-E",
        "-s",
        "-B",
        str(HERE / "clients" / f"{client}_driver.py"),
    ]


def start(client: str, directory: Path, stderr: Path) -> subprocess.Popen[bytes]:
    with stderr.open("wb") as errors:
        return subprocess.Popen(
            command_of(client),
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
        )
