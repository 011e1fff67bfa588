"""Whether there is an Arrow: without one Spark's workers die of formats in Python without saying why.
Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import importlib.util
import sys

from nsq.errors import UsageError


def require_arrow() -> None:
    """Raises UsageError, in a line, in a Python that has none."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError(
            f"pyarrow is missing in {sys.executable}: pip install 'nsq[spark]' there, or set "
            "PYSPARK_PYTHON to the Python that has it"
        )
