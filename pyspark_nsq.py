"""How Spark finds ``format("nsq")`` by itself: in every importable module called ``pyspark_*`` it looks for a
``DefaultSource``. It imports this one for any format that it does not know, so this loads next to nothing,
and what our own requirements lack is told only to who asks for "nsq".
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
