"""Penstock in Spark: a session that just works, and the data source `penstock`.

Contract     Importing this package needs neither pyspark nor a Java; calling it does. Everything
             that imports pyspark lies in this folder.
"""

from penstock.spark.session import register, session

__all__ = ["register", "session"]
