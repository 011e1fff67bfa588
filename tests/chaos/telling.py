"""Prints the results of long tests at once, although pytest captures output."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

Tell = Callable[[str], None]


def short_and_long(short: int, long: int, seeds: str = "1 2 3") -> pytest.MarkDecorator:
    """Run a test with a ``seed`` and a number of ``kills``: once shortly, and as chaos with each seed."""
    kills, marks = int(os.environ.get("NSQ_CHAOS_KILLS", long)), [pytest.mark.chaos, pytest.mark.timeout(900)]
    chosen = os.environ.get("NSQ_CHAOS_SEED", seeds).split()
    few = pytest.param("a few", short, id="a few", marks=pytest.mark.timeout(400))
    many = [pytest.param(seed, kills, id=f"seed-{seed}", marks=marks) for seed in chosen]
    return pytest.mark.parametrize(("seed", "kills"), [few, *many])


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Print a result at once; in short tests pytest captures it as usual."""
    if request.node.get_closest_marker("chaos") is None:
        return print
    capture = request.config.pluginmanager.getplugin("capturemanager")
    reporter = request.config.pluginmanager.getplugin("terminalreporter")
    assert capture is not None
    assert reporter is not None

    def tell(text: str) -> None:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(text)
            reporter.flush()

    return tell
