"""Found by Spark itself: every importable ``pyspark_*`` module with a ``DefaultSource`` is a format of that name,
here ``format("nsq")``. Spark imports it for any format it does not know, so this loads as good as nothing, and
whatever is wrong with our own requirements is told when somebody asks for "nsq".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsq.spark.source.format import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        from nsq.spark.source.format import NsqDataSource

        return NsqDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
