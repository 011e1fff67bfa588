"""How Spark finds ``format("nsq")`` by itself: in every importable module called ``pyspark_*`` it looks for a
``DefaultSource``. It imports this one for any format that it does not know, so this loads next to nothing.

Spark gives up the whole search when one such module fails. So nothing of ours may: where something is
missing, ``DefaultSource`` is a format that says what is missing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

    from nsq.spark.source.stream import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from nsq.spark.source.stream import NsqDataSource
    except Exception as error:  # whatever it is, other formats must not suffer
        return unusable("nsq", error)
    return NsqDataSource


def unusable(format_name: str, fault: Exception) -> type[DataSource]:
    """A format that can only say why it does not work, in a line.

    Made here and not in the package, which may be what is missing, and made in a function, so that its pickle
    is complete: the process that loads it may lack the same.
    """
    from pyspark.sql.datasource import DataSource

    kind = "" if isinstance(fault, ImportError) else f"{type(fault).__name__}: "
    reason = (
        f"format({format_name!r}) cannot be used with {sys.executable}: {kind}{fault}; "
        "pip install 'nsq[spark]' there, or set PYSPARK_PYTHON to the Python that has it"
    )

    class Unusable(DataSource):
        def __init__(self, options: dict[str, str]) -> None:
            raise ImportError(reason)

        @classmethod
        def name(cls) -> str:
            return format_name

    return Unusable
