"""Makes the repository's ``.venv`` and installs the project into it, with one of the ``EXTRAS``:
``environment.py dev``.

``environment.py django6`` makes a second environment, ``.venv/django6``, for the tests with Django 6.

``environment.py interop`` installs other clients, which tests/interop drives. Each gets an environment of its
own below ``.venv/interop``, because the module of one is called ``nsq`` too. If one cannot be installed, the
others still are; its tests then fail with the stored error line.

The Makefile runs this when needed, with the Python that the environment will have. It prints its steps,
and errors; pip's output goes to ``.venv/install.log``. Uses the standard library only.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "install.log"
TEMPORARY = VENV / "tmp"
OWNER = VENV / "made-for"
"""Holds the path the environment was made for, so that a copied or moved tree does not use the old code."""

EXTRAS = {
    "run": "server",
    "test": "test",
    "dev": "dev",
    "spark": "dev,spark-test",
    "docs": "docs",
    "all": "dev,spark-test,browser-test,docs",
}
CONTENTS = {
    "run": "what the daemons need",
    "test": "what the tests without daemons need, about 200 MB",
    "dev": "what tests and checks need, about 350 MB",
    "spark": "pyspark, pyarrow and deltalake, about 1 GB: this takes minutes",
    "docs": "sphinx, and what the reference describes",
    "all": "what all tests need, about 1.5 GB: this takes minutes",
}
INCLUDES = {
    "test": ("run",),
    "dev": ("test", "run"),
    "spark": ("dev", "test", "run"),
    "all": ("docs", "spark", "dev", "test", "run"),
}
"""What another kind has installed too, so that it is not installed again."""
# Put the tree's directory on sys.path: Spark lists the modules there to find format("nsq"), and does not see
# setuptools' usual import hook.
EDITABLE = [PYTHON, "-m", "pip", "install", "--config-settings", "editable_mode=compat", "--editable"]
INTEROP = "interop"
DJANGO_6 = "django6"
CLIENTS = VENV / INTEROP
PINS = ROOT / "tests" / "interop" / "requirements"
TAIL = 20
WIDTH = 200
SILENCE = 8.0
"""Seconds between two lines that say what a step is doing."""


class SetupError(Exception):
    """Says in a line what is wrong and what to do."""


def clean_environment() -> dict[str, str]:
    """Return the caller's environment without variables that redirect pip or Python."""
    strays = {"PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT"}
    kept = {name: value for name, value in os.environ.items() if name not in strays}
    if not kept.get("HOME"):
        # An empty HOME would put pip's cache into /; without one it asks the user database.
        kept.pop("HOME", None)
    return kept | {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def logged(*command: str | Path) -> bool:
    TEMPORARY.mkdir(exist_ok=True)
    with LOG.open("ab") as log:
        log.write(f"\n$ {' '.join(map(str, command))}\n".encode())
        log.flush()
        return succeeds(command, log)


def succeeds(command: Sequence[str | Path], output: IO[bytes] | int = subprocess.DEVNULL) -> bool:
    began = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=ROOT,
        # A killed pip leaves temporary files; keep them out of the shared directory.
        env=clean_environment() | {"TMPDIR": str(TEMPORARY)},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    ) as process:
        while True:
            try:
                return process.wait(SILENCE) == 0
            except subprocess.TimeoutExpired:
                say(f"  {time.monotonic() - began:.0f} s: {last_step()}")


def log_tail() -> str:
    # pip lists all versions in one line.
    return "\n".join(line[:WIDTH] for line in LOG.read_text(errors="replace").splitlines()[-TAIL:])


def last_step() -> str:
    if not LOG.exists():
        return ""
    lines = LOG.read_text(errors="replace").splitlines()
    return next((line.strip()[:76] for line in reversed(lines) if not line.startswith("WARNING")), "")


def works() -> bool:
    """Whether the environment was made for this tree and its Python still runs."""
    if not OWNER.is_file() or OWNER.read_text() != str(ROOT):
        return False
    try:
        return succeeds([PYTHON, "-I", "-c", "import pip"])
    except OSError:
        return False


def made_since(began: int, stamp: Path) -> bool:
    return stamp.exists() and stamp.stat().st_mtime_ns >= began


def say(step: str) -> None:
    print(f"  {step}", flush=True)


def make() -> None:
    say("making the virtual environment")
    if VENV.exists():
        succeeds(["rm", "-rf", VENV])
    VENV.mkdir()
    tool = "venv" if importlib.util.find_spec("ensurepip") else "virtualenv"
    if not logged(sys.executable, "-m", tool, VENV):
        raise SetupError(
            f"{log_tail()}\n{sys.executable} could not make .venv: see .venv/install.log, its end is above"
        )
    OWNER.write_text(str(ROOT))


def install(kind: str) -> None:
    say(f"installing {CONTENTS[kind]}")
    extra = EXTRAS[kind]
    if logged(*EDITABLE, f".[{extra}]"):
        return
    raise SetupError(
        f"{log_tail()}\npip could not install .[{extra}]: see .venv/install.log, its end is above"
    )


def install_clients() -> bool:
    """Install other clients; return whether all succeeded. A later run tries the failed ones again."""
    CLIENTS.mkdir(exist_ok=True)
    failures = [pins for pins in sorted(PINS.glob("*.txt")) if not install_client(pins)]
    return not failures


def install_client(pins: Path) -> bool:
    home, failure = CLIENTS / pins.stem, CLIENTS / f"{pins.stem}.failed"
    python, version = python_for(pins)
    stamp, wanted = home / "installed", f"{version}\n{pins.read_text()}"
    if stamp.is_file() and stamp.read_text() == wanted:
        return True
    if home.exists():
        shutil.rmtree(home)
    failure.unlink(missing_ok=True)
    say(f"installing {pins.stem}, another client, which the tests run")
    if make_bare(home, python) and logged(
        PYTHON, "-m", "pip", "--python", home / "bin" / "python", "install", "--requirement", pins
    ):
        stamp.write_text(wanted)
        return True
    line = f"{pins.stem} could not be installed: its tests will fail; {LOG.relative_to(ROOT)} says why"
    print(line, file=sys.stderr)
    failure.write_text(line)
    return False


def python_for(pins: Path) -> tuple[str, str]:
    """Return the Python of a client's environment, and its version: another one if the first requirement has
    a marker for a newer Python, and there is one. Else pip leaves that requirement out, and its tests are
    skipped.
    """
    least = re.search(r"^[^#].*; *python_version >= '3\.([0-9]+)'", pins.read_text(), re.MULTILINE)
    python = newer_python(int(least[1])) if least else None
    if python is None:
        return sys.executable, sys.version
    return python, printed(python, "-c", "import sys; print(sys.version)")


def newer_python(minor: int) -> str | None:
    """Return a Python 3.``minor`` or newer: ours or another one; None if there is none."""
    found = printed(ROOT / ".ci" / "python", "--another")
    enough = f"import sys; sys.exit(sys.version_info < (3, {minor}))"
    return next((each for each in (sys.executable, found) if each and succeeds([each, "-c", enough])), None)


def printed(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def install_django_6() -> bool:
    """Make an environment with Django 6, of a Python 3.12 or newer if there is one; return whether all is
    well. Without such a Python its tests are skipped.
    """
    python = newer_python(12)
    if python is None:
        print("no Python 3.12 or newer was found: the tests with Django 6 are skipped", file=sys.stderr)
        return False
    home = VENV / DJANGO_6
    if home.exists():
        shutil.rmtree(home)
    pip = [home / "bin" / "python", "-m", "pip", "install", "--editable", ".[test]", "Django>=6,<7"]
    if logged(python, "-m", "venv", home) and logged(*pip) and install_django_tests(home):
        return True
    raise SetupError(f"{log_tail()}\nDjango 6 could not be installed: see .venv/install.log")


def install_django_tests(home: Path) -> bool:
    """Put Django's own tests, which only its sdist has, below ``home``."""
    read = [home / "bin" / "python", "-c", "import django; print(django.__version__)"]
    version = printed(*read)
    download = ["download", "--no-deps", "--no-binary", "django", "--dest", home, f"django=={version}"]
    if not logged(home / "bin" / "python", "-m", "pip", *download):
        return False
    (sdist,) = home.glob("django-*.tar.gz")
    with tarfile.open(sdist) as archive:
        wanted = [each for each in archive if each.name.split("/")[1:3] == ["tests", "tasks"]]
        archive.extractall(home / "sdist", wanted, filter="data")
    return True


def make_bare(home: Path, python: str) -> bool:
    """Make an environment without pip, which would take seconds to install."""
    if importlib.util.find_spec("venv"):
        return logged(python, "-m", "venv", "--without-pip", home)
    return logged(python, "-m", "virtualenv", home)


def take(file: IO[bytes]) -> None:
    """Lock a file, and say so while another process has it."""
    began = said = time.monotonic()
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() - said >= SILENCE:
                said = time.monotonic()
                say(f"{said - began:.0f} s: another make is setting up .venv")
            time.sleep(0.2)


def set_up(kind: str) -> None:
    stamp = VENV / f"installed-{kind}"
    began = time.time_ns()
    # One at a time: `make -j`, or a second make in another terminal, may run this too. The lock is on this
    # file, so it leaves nothing behind, and the kernel releases it.
    with Path(__file__).open("rb") as own:
        take(own)
        whole = works()
        if whole and made_since(began, stamp):
            return  # the process we waited for did it
        version = ".".join(map(str, sys.version_info[:3]))
        print(f"setting up .venv for '{kind}' with Python {version}; this is done once", flush=True)
        if not whole:
            make()
        if kind == DJANGO_6:
            if not install_django_6():
                return
        elif kind == INTEROP:
            stamp.unlink(missing_ok=True)
            if not install_clients():
                return
        else:
            install(kind)
        for each in (kind, *INCLUDES.get(kind, ())):
            (VENV / f"installed-{each}").touch()
        shutil.rmtree(TEMPORARY, ignore_errors=True)


def main(arguments: list[str]) -> int:
    kinds = [*EXTRAS, INTEROP, DJANGO_6]
    if len(arguments) != 1 or arguments[0] not in kinds:
        print(f"usage: environment.py {'|'.join(kinds)}", file=sys.stderr)
        return 2
    # So that pip ends with us; the terminal sends it Ctrl-C too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        set_up(arguments[0])
    except KeyboardInterrupt:
        print("interrupted: the next make continues from here", file=sys.stderr)
        return 130
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
