"""What clients weigh: ``python -m benchmarks.installs``. Installs each alone into an empty environment, this
package as the checkout has it. Prints how many packages that are, how long it takes when pip has them in its
cache, their size, and the CPU time that the import of the client takes: the least of seven runs, less that of
an empty program.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distributions
from pathlib import Path

#: What is installed, and what a program imports to publish and to consume.
CLIENTS = {
    "nsq": "nsq.consumer.consumer, nsq.producer.producer",
    "pynsq": "nsq",
    "gnsq": "gnsq",
    "ansq": "ansq",
    "asyncnsq": "asyncnsq",
    "redis": "redis",
    "pika": "pika",
    "nats-py": "nats",
}
ROOT = Path(__file__).resolve().parents[1]
IMPORT = """
import os, sys
def seconds(program):
    pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-c", program], os.environ)
    _, status, used = os.wait4(pid, 0)
    assert status == 0
    return used.ru_utime + used.ru_stime
print(min(seconds("import " + sys.argv[1]) for _ in range(7)) - min(seconds("pass") for _ in range(7)))
"""


def main() -> None:
    print(f"| {'Python ' + sys.version.split()[0]} | version | packages | seconds | MB | import, ms |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        pip("wheel", "--no-deps", "--wheel-dir", directory / "dist", ROOT)
        for client, modules in CLIENTS.items():
            print(weigh(client, modules, directory), flush=True)


def weigh(client: str, modules: str, directory: Path) -> str:
    for attempt in ("first", "cached"):
        home = directory / f"{client}-{attempt}"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
        python = home / "bin" / "python"
        began = time.perf_counter()
        pip("--python", python, "install", "--find-links", directory / "dist", client)
        seconds = time.perf_counter() - began
    found = list(distributions(path=[str(next(home.glob("lib/*/site-packages")))]))
    files = [Path(str(each.locate_file(path))) for each in found for path in each.files or ()]
    size = sum(path.stat().st_size for path in files if path.is_file())
    version = next(each.version for each in found if each.name == client)
    ran = subprocess.run([python, "-I", "-c", IMPORT, modules], capture_output=True, text=True, check=True)
    return (
        f"| {client} | {version} | {len(found)} | {seconds:.1f} | {size / 1e6:.1f} "
        f"| {json.loads(ran.stdout) * 1000:.0f} |"
    )


def pip(*arguments: object) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)],
        check=True,
    )


if __name__ == "__main__":
    main()
