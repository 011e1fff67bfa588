"""Lets Spark find ``format("nsq")`` by itself: Spark imports every module called ``pyspark_*`` and looks for
its ``DefaultSource``. It does so for any format that it does not know, so this module loads almost nothing.

If one such module raises, Spark gives up the whole search. So this one never raises: if a package is missing,
``DefaultSource`` is a format that says which one.
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
    except Exception as error:  # an error here would break other formats too
        return unusable("nsq", error)
    return NsqDataSource


def unusable(format_name: str, error: Exception) -> type[DataSource]:
    """Make a format that raises one line saying why it does not work.

    It is defined here, because the package itself may be missing, and inside a function, so that Spark
    pickles the class by value: the process that loads it may lack the same packages.
    """
    from pyspark.sql.datasource import DataSource

    kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
    reason = (
        f"format({format_name!r}) cannot be used with {sys.executable}: {kind}{error}; "
        "pip install 'nsq[spark]' there, or set PYSPARK_PYTHON to the Python that has it"
    )

    class Unusable(DataSource):
        def __init__(self, options: dict[str, str]) -> None:
            raise ImportError(reason)

        @classmethod
        def name(cls) -> str:
            return format_name

    return Unusable
