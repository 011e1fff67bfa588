from __future__ import annotations

import sys

import pytest

from nsq.errors import ConfigError
from nsq.spark.session import environment, local_session, settings

SUBMITTED = {"PYSPARK_GATEWAY_PORT": "1"}


def test_a_laptop_gets_all_its_cores_and_no_noise() -> None:
    chosen = settings(None, {}, {})
    assert chosen["spark.master"] == "local[*]"
    assert chosen["spark.ui.enabled"] == "false"
    assert chosen["spark.sql.session.timeZone"] == "UTC"
    assert int(chosen["spark.sql.shuffle.partitions"]) >= 1


def test_a_cluster_decides_for_itself_how_to_shuffle() -> None:
    chosen = settings("spark://host:7077", {}, {})
    assert chosen["spark.master"] == "spark://host:7077"
    assert "spark.sql.shuffle.partitions" not in chosen


def test_below_spark_submit_its_master_holds() -> None:
    assert "spark.master" not in settings(None, {}, SUBMITTED)
    assert settings("local[2]", {}, SUBMITTED)["spark.master"] == "local[2]"


def test_what_is_given_overrules() -> None:
    assert settings(None, {"spark.ui.enabled": "true"}, {})["spark.ui.enabled"] == "true"


def test_workers_run_this_python() -> None:
    assert environment(None, {}) == {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    assert environment("local[2,3]", SUBMITTED)["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert environment("local-cluster[2,1,1024]", {}) == {"PYSPARK_PYTHON": sys.executable}
    assert environment(None, SUBMITTED) == {"PYSPARK_PYTHON": sys.executable}


def test_without_pyspark_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ConfigError, match=r"pip install 'nsq\[spark\]'"):
        local_session()
