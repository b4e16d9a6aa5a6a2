"""What a run of `Ingest` did."""

from __future__ import annotations

import msgspec


class Report(msgspec.Struct, frozen=True):
    files: int = 0  # loaded to their end by this run
    rows: int = 0  # published by this run
    #: Announcements of files that were loaded before, or that another message had named already.
    duplicates: int = 0
    failed: int = 0  # files and announcements that were given up
    left: int = 0  # files that could not be read, as far as is known: they are announced as before
    bytes: int = 0  # of the files, as they are stored
    splits: int = 0  # Parquet files
    publishes: int = 0  # commits with rows or ends of files
