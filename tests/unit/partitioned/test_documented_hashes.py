"""The hash function in docs/partitioned.md for topics that Java clients publish to, too."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from nsq.partitioned.keys import partition_for

ROOT = Path(__file__).resolve().parents[3]
VECTORS = json.loads((ROOT / "tests/golden/partitioned/sharding_vectors.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def java_hash() -> Any:
    page = (ROOT / "docs/partitioned.md").read_text("utf-8")
    (block,) = [part for part in page.split("```") if part.startswith("python") and "def java_hash" in part]
    module = ast.parse(block.removeprefix("python"))
    module.body = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    names: dict[str, Any] = {}
    exec(compile(module, "docs/partitioned.md", "exec"), names)
    return names["java_hash"]


def test_the_documented_hash_places_keys_as_java_does(java_hash: Any) -> None:
    vectors = [(row["key"], row) for row in VECTORS["strings"]]
    vectors += [(row["key_long"], row) for row in VECTORS["longs"]]
    for key, row in vectors:
        for count, partition in row["java_partition"].items():
            assert partition_for(key, int(count), java_hash) == partition, (key, count)
