"""Announced files into Delta tables: what runs on Spark's driver, and in its tasks.

Contract     `Ingest` is public, by the name `penstock.spark.Ingest`; all else is for this package.
             Nothing here imports pyspark or deltalake before they are used.
Reading      files.py (bytes) -> lines.py -> jsonlines.py, csvrows.py, conform.py (columns) ->
             readers.py (a piece of a file) -> task.py (splits)
Driving      announced.py (messages) -> coordinator.py, shared.py, keeper.py -> pieces.py,
             loader.py, sparkjob.py (batches) -> delta.py (the table)
"""
