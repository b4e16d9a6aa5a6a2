"""Penstock in Spark: a session that just works, the data source `penstock`, and `Ingest`.

Contract     Importing this package needs neither pyspark nor a Java; calling it does. Everything
             that imports pyspark lies in this folder. Spark's workers import it at every start, so
             `Ingest` is loaded when somebody asks for it.
"""

from typing import TYPE_CHECKING, Any

from penstock.spark.session import register, session

if TYPE_CHECKING:
    from penstock.spark.ingest.run import Ingest

__all__ = ["Ingest", "register", "session"]


def __getattr__(name: str) -> Any:
    if name != "Ingest":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.spark.ingest.run import Ingest

    return Ingest
