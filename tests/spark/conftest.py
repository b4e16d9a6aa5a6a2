"""One Spark session per test run, and a cluster per module that wants one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock.spark import register, session
from spark.cluster import Cluster
from spark.lean import LEAN, jvm


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """local[2]. Whoever changes a setting of it puts it back."""
    spark = session("tests", cores=2, config=LEAN)
    register(spark)
    process = jvm(spark)
    yield spark
    spark.stop()
    # The JVM ends with its standard input; waiting means that none is left when pytest ends.
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()
