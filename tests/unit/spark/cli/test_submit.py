"""The line for a cluster."""

from __future__ import annotations

import pytest

from nsq.spark.cli.terminal import submit_line, without_ours


def test_the_line_for_a_cluster() -> None:
    words = ["archive", "orders", "--to", "s3://bucket/my orders", "--master", "yarn", "--conf", "a=b"]
    assert submit_line(words, "/lib/nsq/spark/__main__.py", "yarn", {"a": "b"}) == (
        "spark-submit --master yarn --conf a=b /lib/nsq/spark/__main__.py "
        "archive orders --to 's3://bucket/my orders'"
    )


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--master", "yarn", "x"], ["x"]),
        (["--master=yarn", "x"], ["x"]),
        (["--print-submit", "x"], ["x"]),
        (["--conf", "a=b", "--conf=c=d", "x", "--channel", "c"], ["x", "--channel", "c"]),
        (["x", "--master"], ["x"]),
    ],
)
def test_what_spark_submit_takes_is_not_given_twice(words: list[str], kept: list[str]) -> None:
    assert without_ours(words) == kept
