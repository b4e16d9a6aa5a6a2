"""What a session is asked for is looked at before a JVM is started."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidError
from penstock.spark.session import settings


@pytest.mark.parametrize("master", ["nonsense", "10.0.0.7:7077", "", "spark:7077"])
def test_a_master_that_spark_does_not_know_is_refused(master: str) -> None:
    with pytest.raises(InvalidError, match="not a master"):
        settings("app", master, {})
    with pytest.raises(InvalidError, match="not a master"):
        settings("app", "local[*]", {"spark.master": master})


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[2]",
        "local-cluster[2,1,1024]",
        "spark://host:7077",
        "yarn",
        "k8s://https://x",
    ],
)
def test_a_master_that_spark_knows_is_taken(master: str) -> None:
    assert settings("app", master, {})["spark.master"] == master
