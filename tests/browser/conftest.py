"""A real Chromium for the tests of nsqadmin's page. NSQ_CHROMIUM names its program; NSQ_REQUIRE_BROWSER fails
these tests where there is none, instead of skipping them.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

PROGRAM = os.environ.get("NSQ_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
REBOUND = "rebound.example"
LACKS = [name for name in ("playwright", "axe_playwright_python") if importlib.util.find_spec(name) is None]
if LACKS:
    REASON = f"{' and '.join(LACKS)} not installed (pip install 'nsq[browser-test]')"
else:
    REASON = "" if PROGRAM else "there is no Chromium (apt-get install chromium, or NSQ_CHROMIUM=/path)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if REASON and os.environ.get("NSQ_REQUIRE_BROWSER"):
        pytest.fail(f"{REASON}, and NSQ_REQUIRE_BROWSER is set", pytrace=False)
    if REASON:
        pytest.skip(REASON)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without its sandbox, which root may not use; it sees only our own pages. One name leads to us, as
        # a stranger's may.
        args = ["--no-sandbox", f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"]
        made = playwright.chromium.launch(executable_path=PROGRAM, args=args)
        yield made
        made.close()
