from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from nsq.errors import InvalidMessage, UsageError
from nsq.partitioned.keys import checked_key, key_bytes, murmur3, partition_for

ROOT = Path(__file__).resolve().parents[3]
VECTORS = json.loads((ROOT / "tests/golden/partitioned/sharding_vectors.json").read_text("utf-8"))


def test_keys_are_placed_as_the_recorded_vectors_place_them() -> None:
    for vector in VECTORS["strings"]:
        key = vector["key"]
        assert murmur3(key.encode()) == vector["murmur3_32_seed0"]
        for count, partition in vector["go_partition"].items():
            assert partition_for(key, int(count)) == partition


def test_an_int_is_hashed_as_its_decimal_text_and_a_str_as_utf_8() -> None:
    assert key_bytes(-12) == b"-12"
    assert key_bytes("中") == "中".encode()
    assert partition_for(12345, 16) == partition_for("12345", 16) == partition_for(b"12345", 16)


def test_a_hash_of_the_users_gets_the_key_as_it_was_given() -> None:
    got: list[object] = []

    def hashed(key: object) -> int:
        got.append(key)
        return 21

    assert partition_for(7, 16, hashed) == 5
    assert got == [7]


@pytest.mark.parametrize("key", [None, True, 1.5, ["a"]])
def test_another_type_is_no_key(key: object) -> None:
    with pytest.raises(InvalidMessage, match="must be a str, bytes or an int"):
        checked_key(key)


@pytest.mark.parametrize("number", [None, -1, 1.5, True])
def test_a_hash_that_is_no_natural_number_is_refused(number: object) -> None:
    with pytest.raises(UsageError, match="must return an int >= 0"):
        partition_for("a", 4, lambda key: number)  # type: ignore[arg-type,return-value]


def test_a_hash_that_fails_is_named() -> None:
    with pytest.raises(UsageError, match="the hash function failed on the key 'a'"):
        partition_for("a", 4, lambda key: 1 // 0)


def test_the_hash_in_the_documentation_places_keys_as_java_does() -> None:
    page = (ROOT / "docs/partitioned.md").read_text("utf-8")
    (block,) = [part for part in page.split("```") if part.startswith("python") and "def java_hash" in part]
    module = ast.parse(block.removeprefix("python"))
    module.body = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    names: dict[str, Any] = {}
    exec(compile(module, "docs/partitioned.md", "exec"), names)
    vectors = [(row["key"], row) for row in VECTORS["strings"]]
    vectors += [(row["key_long"], row) for row in VECTORS["longs"]]
    for key, row in vectors:
        for count, partition in row["java_partition"].items():
            assert partition_for(key, int(count), names["java_hash"]) == partition, (key, count)
