"""Prints the results of long tests at once, although pytest captures output, and the sum of all seeds at
the end.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.verdict import Verdict

Tell = Callable[[str], None]

VERDICTS = pytest.StashKey[list[Verdict]]()


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


@pytest.fixture
def verdicts(request: pytest.FixtureRequest) -> list[Verdict]:
    """The verdicts that are summed up at the end."""
    return request.config.stash.setdefault(VERDICTS, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    verdicts = config.stash.get(VERDICTS, [])
    if verdicts:
        terminalreporter.section("what chaos did to the client")
        terminalreporter.write_line(str(Verdict.of_all(verdicts)))
