"""Children that end with their parent. What a kill of the parent does is in the tests of ``nsq up``."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from nsq.work.binding import bound


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_child_whose_parent_has_ended_already_does_not_begin() -> None:
    command = bound([sys.executable, "-c", "print('begun')"], signal.SIGTERM)
    assert subprocess.run(command, capture_output=True, check=False).stdout == b"begun\n"
    # Of another process than this one.
    adopted = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *command]
    assert subprocess.run(adopted, capture_output=True, check=False).stdout == b""
