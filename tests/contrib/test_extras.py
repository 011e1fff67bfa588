"""The error of a program that lacks an extra names the extra."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .conftest import ROOT


@pytest.mark.parametrize(
    ("missing", "program"),
    [
        ("django", "import nsq.contrib.django"),
        ("msgspec", "from nsq.contrib import codecs; codecs.Msgspec(int)"),
        ("opentelemetry", "import nsq.contrib.opentelemetry"),
        ("prometheus_client", "import nsq.contrib.prometheus"),
        ("pydantic", "from nsq.contrib import codecs; codecs.Pydantic(int)"),
    ],
)
def test_without_an_extra_the_error_names_it(missing: str, program: str) -> None:
    command = [sys.executable, "-c", f"import sys; sys.modules['{missing}'] = None\n{program}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert f"pip install 'nsq[{missing.removesuffix('_client')}]'" in done.stderr
