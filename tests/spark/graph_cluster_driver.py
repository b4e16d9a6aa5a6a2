"""A driver for the cluster: runs the graph of graph_flow.py once, in the folder that it is told.

python -m spark.graph_cluster_driver MASTER FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.spark import session
from spark.graph_flow import flow
from spark.lean import CLUSTER


def main() -> None:
    master, folder = sys.argv[1], Path(sys.argv[2])
    spark = session("flow", master, CLUSTER | {"spark.scheduler.mode": "FAIR"})
    graph = flow(folder / "limit", folder / "pairs.db")
    report = graph.run(str(folder / "data"), spark=spark, step_max=12_000)
    print(report["clean"].delivered)
    spark.stop()


if __name__ == "__main__":
    main()
