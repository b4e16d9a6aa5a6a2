"""A runner of the graph of graph_flow.py, to be killed.

    python -m spark.graph_driver FOLDER STEP_MAX

It loads Spark and waits for a line: "forever" or "idle". It prints "running" when it begins. Its
exit code is 6 when another runner took over, as that of the command line. It ends when its standard
input does: whoever started it is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from penstock.errors import FencedError, PenstockError
from penstock.spark import session
from spark.graph_flow import flow
from spark.lean import LEAN


def main() -> None:
    folder, step_max = Path(sys.argv[1]), int(sys.argv[2])
    config = LEAN | {"spark.scheduler.mode": "FAIR"}
    spark = session("flow", "local[2,4]", config)
    # The workers are there before the run begins, with all that they import.
    spark.sparkContext.parallelize(range(2), 2).map(_load).collect()
    graph = flow(folder / "limit", folder / "pairs.db")
    word = sys.stdin.readline().strip()
    if not word:
        return

    def listen() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    print("running", flush=True)
    try:
        graph.run(folder / "data", spark=spark, until=word, step_max=step_max)  # type: ignore[arg-type]
    except PenstockError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(6 if isinstance(error, FencedError) else 1)
    os._exit(0)


def _load(n: int) -> int:
    import penstock.spark.graphwork  # noqa: F401

    return n


if __name__ == "__main__":
    main()
