"""A normal run: a session, a job in the JVM, a job in Python workers, a stop. Says nothing.

With an argument it writes there which java its JVM is, and the daemon of its Python workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from penstock.spark import session
from spark.lean import LEAN, jvm


def parents(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        daemon = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
        yield pa.record_batch({"daemon": [b" ".join(daemon).decode()]})


def main() -> None:
    before = dict(os.environ)
    spark = session(cores=1, config=LEAN)
    assert {name: os.environ.get(name) for name in before} == before
    assert "JAVA_HOME" not in os.environ
    assert spark.range(1000).count() == 1000
    (row,) = spark.range(1).mapInArrow(parents, "daemon string").collect()
    if sys.argv[1:]:
        java = Path(f"/proc/{jvm(spark).pid}/exe").resolve()
        Path(sys.argv[1]).write_text(f"{java}\n{row.daemon}\n")
    spark.stop()


if __name__ == "__main__":
    main()
