"""The recordings beside this file, with our deviations applied unless another program is tested."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nsq.testing.plugin import BIN_DIR

from .deviations import DEVIATIONS, Case, with_added


def cases(file: str) -> list[Case]:
    """The conversations of a TCP recording: ``case`` and ``steps``."""
    found = [_expected(file, case["case"], case) for case in load(file)["cases"]]
    return found if others_are_judged() else list(map(with_added, found))


def exchanges(file: str) -> list[Case]:
    """The exchanges of an HTTP recording; where our answer differs, ``deviation`` has the reason."""
    return [_expected(file, exchange["request"], exchange) for exchange in load(file)["exchanges"]]


def load(file: str) -> Any:
    """A recording as it is in the file."""
    return json.loads((Path(__file__).parent / file).read_text("utf-8"))


def others_are_judged() -> bool:
    """Whether the daemons under test are other binaries than ours."""
    return bool(os.environ.get(BIN_DIR))


def _expected(file: str, key: str, recorded: Case) -> Case:
    deviation = None if others_are_judged() else DEVIATIONS.get((file, key))
    return recorded if deviation is None else {**deviation.ours(recorded), "deviation": deviation.reason}
