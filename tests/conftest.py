"""What holds for every test: it leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq.testing import leaks

# Registered by the installed package; named here for a tree that is not installed.
pytest_plugins = ["nsq.testing.plugin"]


@pytest.fixture(scope="session")
def watched_directories(pytestconfig: pytest.Config) -> list[Path]:
    """Where a careless daemon or test would leave files: the working directory, the repository, tests/."""
    tests = Path(__file__).resolve().parent
    below = [path for path in tests.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    return list(dict.fromkeys([Path.cwd(), pytestconfig.rootpath, tests, *below]))


@pytest.fixture(autouse=True)
def nothing_left_behind(watched_directories: list[Path]) -> Iterator[None]:
    """Fails a test that leaves a thread, a descriptor, a child process or a file behind, and names it.

    pytest sets fixtures of wider scope up first, so what a module or a session holds counts as there before;
    and tears this one down after the other fixtures of the test, so those have had their chance to clean up.
    """
    before = leaks.snapshot(watched_directories)
    yield
    left = leaks.leftovers(before, lambda: leaks.snapshot(watched_directories))
    if left:
        pytest.fail("this test left behind:\n  " + "\n  ".join(leaks.describe(left)), pytrace=False)
