"""Spark for tests: the same settings as everybody's, on JVMs that start with half the work.

Contract     LEAN goes into `session(config=...)`; CLUSTER too, where executors are JVMs as well.
             clean_environment(): ours, without what would choose a Java or change Spark.
             without_secrets(environment): the same, where no bucket and no password is known.
             driver_environment(): the same, for a process that imports from `tests/`.
             jvm(spark): the process that a session of this process runs in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from subprocess import Popen

from pyspark.sql import SparkSession

TESTS = Path(__file__).resolve().parents[1]

#: The second compiler and a parallel collector pay off after minutes, and tests take seconds.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

LEAN = {"spark.driver.extraJavaOptions": JVM_OPTIONS}

CLUSTER = LEAN | {
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
    "spark.executor.memory": "512m",
    # A job begins when every core is there; else the first executor might get all of it.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "200s",
}


def clean_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "JAVA_", "JDK_"))
    }


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(("AWS_", "PENSTOCK_"))
    }


def driver_environment() -> dict[str, str]:
    environment = clean_environment()
    paths = [str(TESTS), environment.get("PYTHONPATH", "")]
    return environment | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def jvm(spark: SparkSession) -> Popen[bytes]:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    process = gateway.proc
    assert isinstance(process, Popen)
    return process
