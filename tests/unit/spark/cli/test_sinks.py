"""``--sink``."""

from __future__ import annotations

import pytest

from nsq.errors import ConfigError
from nsq.spark.cli.sinks import sinks
from nsq.spark.pipelines.sinks import Console, Parquet, Topic


def test_the_kinds_of_sinks() -> None:
    found = sinks(["parquet:/data/orders", "nsq:copy", "nsq:far@b:4150", "console"], ["a:4150"], [])
    assert found == {
        "parquet-data-orders": Parquet("/data/orders"),
        "nsq-copy": Topic(topic="copy", nsqd=["a:4150"], lookupd=[]),
        "nsq-far-b-4150": Topic(topic="far", nsqd="b:4150"),
        "console": Console(),
    }


@pytest.mark.parametrize("text", ["", "parquet:", "nsq:", "csv:/x", "console:x", "/data/orders"])
def test_anything_else_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="is neither parquet:DIR"):
        sinks([text], ["a:4150"], [])
