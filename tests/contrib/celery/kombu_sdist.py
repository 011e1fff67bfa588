"""Kombu's own tests, which are in its sdist alone: downloaded once for the installed version."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from types import ModuleType

import kombu

PLACE = Path(sys.prefix) / f"kombu-{kombu.__version__}-tests"
COMMON = "common.py"


def common_tests() -> ModuleType | str:
    """Return kombu's ``t/integration/common.py``, or why it cannot be had."""
    if not (PLACE / COMMON).exists():
        reason = _download()
        if reason:
            return reason
    spec = importlib.util.spec_from_file_location("kombu_integration_common", PLACE / COMMON)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _download() -> str:
    wanted = f"kombu=={kombu.__version__}"
    with tempfile.TemporaryDirectory(dir=sys.prefix) as directory:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--no-binary", ":all:", "--dest", directory, wanted],
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            return f"the sdist of {wanted} cannot be had: {done.stderr.strip().splitlines()[-1:]}"
        sdist = next(Path(directory).glob("*.tar.gz"))
        with tarfile.open(sdist) as archive:
            file = archive.extractfile(f"kombu-{kombu.__version__}/t/integration/{COMMON}")
            assert file is not None
            text = file.read()
        half = Path(directory) / COMMON
        half.write_bytes(text)
        PLACE.mkdir(exist_ok=True)
        half.replace(PLACE / COMMON)  # at once: several processes may do this
    return ""
