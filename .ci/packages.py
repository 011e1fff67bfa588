"""Builds the sdist and the wheel twice in a temporary directory, and compares the bytes. Checks what they
hold, that they install by name, and what the client weighs.

``packages.py`` reports the results; ``packages.py DIRECTORY`` also leaves both files there, for an upload,
and in its folder ``sbom`` the list of what is installed with them. Run it with the Python of ``.venv``, whose
pip installs into the test environments. Uses the standard library only; shows pip's output when something
fails.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import environment
import tree

# What setuptools adds to the files of the repository, and which of these only git needs.
ADDED = re.compile(r"PKG-INFO|nsq\.egg-info/.*")
NOT_SHIPPED = re.compile(r"\.gitignore|\.github/.*")
PACKAGED = re.compile(
    r"nsq/.*\.py|nsq/py\.typed|nsq/daemons/nsqadmin/static/[^/]+|nsq_command\.py|pyspark_\w+\.py"
)
DIST_INFO = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}
# And what they need to start.
PROGRAMS = {"nsqd": [], "nsqlookupd": [], "nsqadmin": ["--nsqd-http-address=127.0.0.1:4151"]}
EXTRA = "pip install 'nsq[server]'"
# The client alone: what is installed, and its greatest weight.
CLIENT = {"certifi", "cramjam", "nsq", "python-snappy"}
MOST_MEGABYTES = 15
MOST_MODULES = 20
WEIGHT = """
import json, sys
before = set(sys.modules)
import nsq
loaded = len(set(sys.modules) - before)
from importlib.metadata import distributions
found = list(distributions())
size = sum(path.locate().stat().st_size for each in found for path in each.files if path.locate().is_file())
print(json.dumps([sorted(each.name for each in found), size / 1e6, loaded]))
"""
PIPELINE = ["archive", "orders", "--to", "orders", "--nsqd", "127.0.0.1:4150"]
SPARK_EXTRA = "pip install 'nsq[spark]'"
SERVED = """
import nsq, nsq.testing
with nsq.testing.Nsqd(process=True) as nsqd, nsq.Producer(nsqd.tcp_address) as producer:
    producer.publish("orders", b"hello")
    with nsq.testing.Nsqadmin(process=True, nsqd=[nsqd]) as nsqadmin:
        for asset in ("nsqadmin.js", "nsqadmin.css", "icon.svg"):
            assert nsqadmin.get(f"/static/{asset}").status == nsqadmin.get("/").status == 200
"""


class Wrong(Exception):
    """A check failed; the text says which one, in a few lines."""


def main() -> int:
    sys.stdout.reconfigure(line_buffering=True)
    with tempfile.TemporaryDirectory(prefix="nsq-packages-") as directory:
        try:
            built = check(Path(directory))
        except Wrong as wrong:
            print(wrong, file=sys.stderr)
            return 1
        if len(sys.argv) > 1:
            keep(built, Path(sys.argv[1]).resolve())
    return 0


def keep(built: list[Path], place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    (place / "sbom").mkdir(parents=True)
    for path in built:
        print(f"wrote {shutil.copy(path, place / 'sbom' if path.suffix == '.json' else place)}")


def check(directory: Path) -> list[Path]:
    """Return the sdist, the wheel and the SBOM."""
    source, builder, home = directory / "source", directory / "builder", directory / "installed"
    names = set(tree.copy_to(source))
    make_environment(builder)
    install(builder, "build", "twine", "cyclonedx-bom")
    sdist, wheel = built = build(source, directory / "built", builder)
    again = build(source, directory / "again", builder)
    for first, second in zip(built, again, strict=True):
        same_bytes(first, second)
    check_sdist(sdist, names)
    check_wheel(wheel, names)
    run(builder / "bin" / "python", "-m", "twine", "check", "--strict", sdist, wheel)
    make_environment(home)
    check_core(home, wheel)
    check_server(home, wheel)
    return [sdist, wheel, sbom(builder, home, wheel)]


def build(source: Path, built: Path, builder: Path) -> tuple[Path, Path]:
    """Build the sdist, and from it the wheel, so that an sdist that lacks something does not pass."""
    run(builder / "bin" / "python", "-m", "build", "--sdist", "--outdir", built, source)
    (sdist,) = built.glob("*.tar.gz")
    pack_again(sdist, source_date())
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", built, sdist)
    (wheel,) = built.glob("*.whl")
    return sdist, wheel


def source_date() -> int:
    """Return the time that all built files get: that of the commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    asked = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(asked, cwd=tree.ROOT, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 315532800  # a zip file knows no time before 1980


def pack_again(sdist: Path, date: int) -> None:
    """Give an sdist's files one time, owner and order, which setuptools does not."""
    with tarfile.open(sdist) as archive:
        members = sorted(archive.getmembers(), key=lambda each: each.name)
        contents = [archive.extractfile(each) if each.isfile() else None for each in members]
        with (
            sdist.with_suffix(".new").open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=date) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
        ):
            for member, content in zip(members, contents, strict=True):
                member.mtime, member.uid, member.gid, member.uname, member.gname = date, 0, 0, "", ""
                member.mode = 0o755 if member.mode & 0o100 else 0o644
                member.pax_headers = {}
                new.addfile(member, content)
    sdist.with_suffix(".new").replace(sdist)


def same_bytes(first: Path, second: Path) -> None:
    one, other = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (first, second))
    if one != other:
        raise Wrong(f"{first.name}: built twice, sha256 {one} and {other}")
    print(f"{first.name}: built twice, sha256 {one}")


def sbom(builder: Path, home: Path, wheel: Path) -> Path:
    """Write what ``pip install 'nsq[server]'`` has installed, in the format of CycloneDX."""
    path = wheel.with_name("nsq.cdx.json")
    run(
        builder / "bin" / "cyclonedx-py",
        "environment",
        "--output-reproducible",
        "-o",
        path,
        home / "bin" / "python",
    )
    components = json.loads(path.read_bytes())["components"]
    print(f"{path.name}: {len(components)} packages")
    return path


def check_sdist(sdist: Path, names: set[str]) -> None:
    with tarfile.open(sdist) as archive:
        found = {name.partition("/")[2] for name in (each.name for each in archive if each.isfile())}
    shipped = {name for name in names if not NOT_SHIPPED.fullmatch(name)}
    same(sdist.name, {name for name in found if not ADDED.fullmatch(name)}, shipped)


def check_wheel(wheel: Path, names: set[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = set(archive.namelist())
    package = {name for name in names if PACKAGED.fullmatch(name)}
    info = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    same(wheel.name, found, package | {f"{info}/{name}" for name in DIST_INFO})


def same(what: str, found: set[str], wanted: set[str]) -> None:
    wrong = [f"  lacks {name}" for name in sorted(wanted - found)]
    wrong += [f"  should not hold {name}" for name in sorted(found - wanted)]
    if wrong:
        raise Wrong("\n".join([f"{what} holds the wrong files:", *wrong]))
    print(f"{what}: {len(found)} files, as they should be")


def check_core(home: Path, wheel: Path) -> None:
    """Without the extra: the client works and is light, and the programs say what they lack."""
    python, version = home / "bin" / "python", wheel.name.split("-")[1]
    install(home, f"nsq=={version}", links=wheel.parent)
    check_weight(python)
    expect(run(python, "-c", "import aiohttp", status=1), "No module named 'aiohttp'")
    expect(run(python, "-W", "error", "-c", "from nsq import *; print(__version__)"), version)
    for program, needed in PROGRAMS.items():
        expect(run(home / "bin" / program, "--version"), "(built w/python3.")
        expect(run(home / "bin" / program, *needed, status=1), f"{program} needs the server extra: {EXTRA}")
    expect(run(home / "bin" / "nsq-spark", "--version"), f"nsq-spark v{version}")
    expect(run(home / "bin" / "nsq-spark", *PIPELINE, status=1), SPARK_EXTRA)


def check_weight(python: Path) -> None:
    packages, megabytes, modules = json.loads(run(python, "-c", WEIGHT))
    print(f"the client alone: {len(packages)} packages, {megabytes:.1f} MB, {modules} modules at import nsq")
    if set(packages) != CLIENT or megabytes > MOST_MEGABYTES or modules > MOST_MODULES:
        raise Wrong(f"{packages}: should be {sorted(CLIENT)}, {MOST_MEGABYTES} MB and {MOST_MODULES} modules")


def check_server(home: Path, wheel: Path) -> None:
    """With it: they run, and pip finds nothing wrong."""
    install(home, f"nsq[server]=={wheel.name.split('-')[1]}", links=wheel.parent)
    run(home / "bin" / "python", "-c", SERVED)
    expect(run(sys.executable, "-m", "pip", "--python", home / "bin" / "python", "check"), "No broken")


def make_environment(home: Path) -> None:
    if not environment.make_bare(home, sys.executable):
        raise Wrong(f"{sys.executable} could not make an environment: see .venv/install.log")


def install(home: Path, *what: object, links: Path | None = None) -> None:
    """Install into an environment, by name also what lies in the directory ``links``."""
    found = ["--find-links", links] if links else []
    run(sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "--quiet", *found, *what)


def run(*command: object, status: int = 0) -> str:
    """Run a command; return its output. Raises Wrong for another exit status."""
    words = [str(word) for word in command]
    with tempfile.TemporaryDirectory(
        prefix="nsq-empty-"
    ) as empty:  # here Python finds only what is installed
        done = subprocess.run(
            words,
            cwd=empty,
            env=environment.clean_environment() | {"SOURCE_DATE_EPOCH": str(source_date())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode != status:
        raise Wrong(f"{done.stdout}\n{' '.join(words)}: status {done.returncode}, should be {status}")
    return done.stdout


def expect(said: str, wanted: str) -> None:
    if wanted not in said:
        raise Wrong(f"{said!r} should say {wanted!r}")
    print(f"{wanted}: said as it should be")


if __name__ == "__main__":
    sys.exit(main())
