"""How a child process is started: with this package, and bound to its parent, which when it is killed cannot
end its children itself.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Sequence
from pathlib import Path

import nsq

#: Becomes the program that follows, which gets the signal at the end of the thread that started it.
_BOUND = """
import os, signal, sys
signal_number, parent = map(int, sys.argv[1:3])
try:
    import ctypes  # some builds of Python lack it
    ctypes.CDLL(None).prctl(1, signal_number)  # PR_SET_PDEATHSIG
except Exception:
    pass
if os.getppid() != parent:
    sys.exit("the parent has ended")
for number in signal.SIGPIPE, signal.SIGXFSZ:  # which Python ignores
    signal.signal(number, signal.SIG_DFL)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def bound(command: Sequence[str], signal_number: int) -> list[str]:
    """Return a command that does the same, and on Linux gets the signal when this process has ended.

    Linux binds a child to the thread that starts it, and only the main one lasts as long as the process: on
    other threads the command stays as it is.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if sys.platform != "linux" or not sys.executable or not in_main_thread:
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _BOUND, str(int(signal_number)), str(os.getpid()), *command]


def environment() -> dict[str, str]:
    """Return our environment, with PYTHONPATH set so that a child imports this same package."""
    root = str(Path(nsq.__file__).resolve().parents[1])
    if root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)  # it is installed: PYTHONPATH would put it before the standard library
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}
