"""Everything that a release needs, step by step, up to its tag. `make release NSQ_URL=…` calls it.

    NSQ_URL   the repository's address, which goes into the metadata and README; needed
    TAG       v and the version: sets this tag in the end. Without it this is a dry run: it goes through all
              steps, and says at which ones a release would stop
    CHECKS    for a dry run: a command in place of .ci/run

Run it with the Python of ``.venv``. Uses the standard library only.
"""

from __future__ import annotations

import datetime
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import environment
import packages
from packages import Wrong
from tree import ROOT

DIST = ROOT / "dist"
# All but those for developing, which name exact tools. The tests need what is in `test`.
EXTRAS = ["test", "spark", "s3", "chart", "delta"]
# The tests of what uses other packages.
LOWEST_TESTS = ["tests/unit/wire", "tests/unit/daemons", "tests/unit/spark", "tests/contrib"]
# Packages of different age warn of each other.
OLD_AND_NEW = ["-W", "ignore::DeprecationWarning"]
URL, TAG, CHECKS = (os.environ.get(name, "") for name in ("NSQ_URL", "TAG", "CHECKS"))


def main() -> int:
    sys.stdout.reconfigure(line_buffering=True)
    if not re.fullmatch(r"https://[^/]+/\S*[^/]", URL):
        print(
            "make release needs the repository's address, for the metadata and README.md: "
            "make release NSQ_URL=https://github.com/OWNER/nsq",
            file=sys.stderr,
        )
        return 2
    began, missing = time.monotonic(), []
    for number, step in enumerate(STEPS, 1):
        print(f"\n== {number} of {len(STEPS)}, {time.monotonic() - began:.0f} s: {step.__doc__}", flush=True)
        try:
            step()
        except Wrong as wrong:
            print(f"NOT READY: {wrong}", flush=True)
            if TAG:
                return 1
            missing.append(str(wrong).splitlines()[-1])
    print(f"\n{time.monotonic() - began:.0f} s; " + ("tagged" if TAG else "a dry run, nothing is tagged"))
    for line in missing:
        print(f"to do before the release: {line}")
    return 0


def version() -> str:
    found = re.search(r'__version__ = "(.+)"', (ROOT / "nsq" / "__init__.py").read_text("utf-8"))
    return found[1] if found else ""


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Wrong(f"git {shlex.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def check_version() -> None:
    """the version is new"""
    print(version())
    if not re.fullmatch(r"\d+\.\d+\.\d+", version()):
        raise Wrong(f"nsq/__init__.py has the version {version()!r}; a release has three numbers")
    if git("tag", "--list", f"v{version()}"):
        raise Wrong(f"the tag v{version()} exists already: raise __version__ in nsq/__init__.py")
    if TAG and f"v{version()}" != TAG:
        raise Wrong(f"TAG={TAG}, but nsq/__init__.py has the version {version()}")


def check_changelog() -> None:
    """CHANGELOG.md has the version's date"""
    heading = next(
        line for line in (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines() if line[:3] == "## "
    )
    print(heading)
    dated = re.fullmatch(rf"## {re.escape(version())} \((\d{{4}}-\d\d-\d\d)\)", heading)
    if not dated or dated[1] > datetime.datetime.now(datetime.UTC).date().isoformat():
        raise Wrong(
            f"CHANGELOG.md begins with {heading!r}, which should be '## {version()} (the date of today)'"
        )


def check_readme() -> None:
    """README.md installs from the index"""
    text = (ROOT / "README.md").read_text("utf-8")
    if "Until " in text or "not released yet" in text:
        raise Wrong(
            "README.md says what holds until the release: take that and the two lines with `dist` out"
        )


def check_tree() -> None:
    """the tree is that of a commit"""
    print(git("log", "-1", "--format=%h %s"))
    if changed := git("status", "--porcelain"):
        raise Wrong(f"{changed}\nthe tree has files that are changed or not tracked: commit or remove them")


def check_everything() -> None:
    """all checks of a change"""
    if TAG and CHECKS:
        raise Wrong(f"CHECKS={CHECKS} is for a dry run; a release needs .ci/run")
    command = shlex.split(CHECKS) or [".ci/run"]
    print(shlex.join(command), flush=True)
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise Wrong(f"{shlex.join(command)} failed")


def build() -> None:
    """the sdist and the wheel, twice; what they hold; installed by name; what they install"""
    with tempfile.TemporaryDirectory(prefix="nsq-release-") as directory:
        packages.keep(packages.check(Path(directory)), DIST)


def try_lowest() -> None:
    """the tests with the lowest versions that the extras allow"""
    with tempfile.TemporaryDirectory(prefix="nsq-lowest-") as directory:
        tools, home, pins = Path(directory, "tools"), Path(directory, "home"), Path(directory, "pins.txt")
        packages.make_environment(tools)
        packages.make_environment(home)
        packages.install(tools, "uv")
        uv = tools / "bin" / "uv"
        extras = [word for extra in EXTRAS for word in ("--extra", extra)]
        lowest = ["--resolution", "lowest-direct", "--python", home / "bin" / "python"]
        packages.run(uv, "pip", "compile", "--quiet", *lowest, *extras, ROOT / "setup.cfg", "-o", pins)
        print(" ".join(re.findall(r"^[^\s#]+==\S+", pins.read_text(), re.MULTILINE)), flush=True)
        wheel = DIST / f"nsq-{version()}-py3-none-any.whl"
        packages.run(uv, "pip", "install", "--quiet", *lowest[2:], "--requirement", pins, wheel)
        pytest = [home / "bin" / "python", "-m", "pytest", "-q", "-n2", "-m", "not chaos and not daemons"]
        done = subprocess.run(
            [*pytest, *OLD_AND_NEW, *LOWEST_TESTS], cwd=ROOT, env=environment.clean_environment(), check=False
        )
        if done.returncode:
            raise Wrong("tests fail with the lowest versions: raise the bounds in setup.cfg")


def tag() -> None:
    """the tag"""
    if not TAG:
        print(f"make release NSQ_URL={URL} TAG=v{version()} would set it")
        return
    git("tag", "-a", TAG, "-m", f"Version {version()}")
    print(f"{TAG} is set here. This publishes it: git push origin main {TAG}")


STEPS: list[Callable[[], None]] = [
    check_version,
    check_changelog,
    check_readme,
    check_tree,
    check_everything,
    build,
    try_lowest,
    tag,
]

if __name__ == "__main__":
    sys.exit(main())
