"""CSV: what a writer of it wrote is what is read, wherever the blocks are cut."""

from __future__ import annotations

import csv
import io

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.spark.ingest import readers
from penstock.spark.ingest.csvrows import Dialect
from penstock.spark.ingest.pieces import Piece
from penstock.spark.ingest.readers import PieceReader, Reading

calm = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])

FIELDS = st.text(st.sampled_from('ab,;"\n é1'), max_size=6)
WIDTH = 3
ROWS = st.lists(st.lists(FIELDS, min_size=WIDTH, max_size=WIDTH), max_size=6)
NAMES = ["x", "y", "z"]
COLUMNS = pa.schema([(name, pa.string()) for name in NAMES])


@calm
@given(
    ROWS,
    st.sampled_from([",", ";"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.integers(1, 20),
    st.booleans(),
)
def test_what_was_written_is_read(
    rows: list[list[str]], delimiter: str, end: str, quoting: int, block: int, last: bool
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)  # type: ignore[arg-type]
    writer.writerow(NAMES)
    writer.writerows(rows)
    data = text.getvalue().encode()
    if not last:
        data = data.removesuffix(end.encode())
    reading = Reading("csv", Dialect(delimiter=delimiter))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BLOCK_BYTES", block)
        reader = PieceReader(Piece(0, "inline:1", data=data), reading)
        found = [row for table in reader.tables(COLUMNS) for row in table.to_pylist()]
    assert [row["_rescued_data"] for row in found] == [None] * len(rows)
    assert [[row[name] or "" for name in NAMES] for row in found] == rows
    for row in found:
        # A position is where its record begins.
        before = data[: row["_position"]]
        assert before == b"" or before.endswith(b"\n")
