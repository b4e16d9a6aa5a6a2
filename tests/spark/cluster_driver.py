"""A driver for the cluster: says as JSON where its tasks ran and how a missing package is told."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator

from pyspark import BarrierTaskContext

from penstock.spark import session
from spark.cargo import Cargo
from spark.lean import CLUSTER


def where(_: Iterable[int]) -> Iterator[tuple[str, str]]:
    BarrierTaskContext.get().barrier()  # nobody goes on before both are there
    yield os.getcwd(), sys.executable


def main() -> None:
    spark = session("cluster", sys.argv[1], CLUSTER)
    ran = spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(where).collect()
    cargo = Cargo(7)
    try:
        spark.sparkContext.parallelize([1], 1).map(lambda _: cargo.weight).collect()
        missing = ""
    except Exception as error:
        missing = str(error)
    print(json.dumps({"ran": ran, "missing": missing}))
    spark.stop()


if __name__ == "__main__":
    main()
