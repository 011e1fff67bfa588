"""``NSQ_TEST_SWITCH_INTERVAL=1e-6 pytest tests/unit`` has threads take turns thousands of times as often as
usual: races that would show once in a month show within minutes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, or making one up, says how busy the machine is and nothing of what is tested.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(float(os.environ.get("NSQ_TEST_SWITCH_INTERVAL", before)))
    yield
    sys.setswitchinterval(before)
