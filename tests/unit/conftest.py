"""``NSQ_TEST_SWITCH_INTERVAL=1e-6 pytest tests/unit`` switches threads thousands of times as often as
usual, so that rare races show within minutes. ``NSQ_TEST_LATE``: see ``tests.late``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from ..late import LateLines


def pytest_configure(config: pytest.Config) -> None:
    if "NSQ_TEST_LATE" in os.environ:
        pause = float(os.environ.get("NSQ_TEST_LATE_PAUSE", "0.01"))
        config.pluginmanager.register(LateLines(os.environ["NSQ_TEST_LATE"], pause, config.rootpath))


@pytest.fixture(scope="session", autouse=True)
def switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(float(os.environ.get("NSQ_TEST_SWITCH_INTERVAL", before)))
    yield
    sys.setswitchinterval(before)
