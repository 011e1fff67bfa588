from __future__ import annotations

import pytest

from nsq.spark.wal import Segment, names


def test_a_new_receiver_says_when_and_where_it_began() -> None:
    name = names.new_receiver(host="web 1.example/org", pid=42, now=1_700_000_000, chance="00c0ffee")
    assert name == "20231114T221320-web-1.example-org-42-00c0ffee"
    assert names.is_receiver(name)


def test_a_file_that_is_gone_is_named_as_far_as_it_can_be() -> None:
    assert names.sealed_pattern(7) == "000007-*.arrow"
    assert names.sealed_file(Segment("r", 7, 1250, 250_000)).startswith("000007-")


def test_two_new_receivers_differ() -> None:
    assert names.new_receiver() != names.new_receiver()


@pytest.mark.parametrize("host", ["", "...", "-", "ünïcode", "x" * 300])
def test_any_host_name_will_do(host: str) -> None:
    assert names.is_receiver(names.new_receiver(host=host))


@pytest.mark.parametrize(
    "name", ["", ".new-1", "a/b", "owner", "owner.json", "identity.json", "subject.json", "x" * 201, "a b"]
)
def test_invalid_names_are_no_receivers(name: str) -> None:
    assert not names.is_receiver(name)


@pytest.mark.parametrize("number", [1, 999_999, 1_000_000])
def test_a_sealed_name_is_read_back(number: int) -> None:
    segment = Segment("r", number, 7, 0)
    assert names.read_sealed("r", names.sealed_file(segment)) == segment
    assert names.read_open(names.open_file(number)) == number


@pytest.mark.parametrize(
    "name", ["000001.open", "000001-1-1.arrow.tmp", "1-1-1.arrow", ".000001-1-1.arrow", "lock"]
)
def test_other_names_are_no_segments(name: str) -> None:
    assert names.read_sealed("r", name) is None


@pytest.mark.parametrize("name", ["000001-1-1.arrow", "1.open", "x000001.open", "lock"])
def test_other_names_are_not_open_files(name: str) -> None:
    assert names.read_open(name) is None
