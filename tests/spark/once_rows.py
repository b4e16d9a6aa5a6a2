"""What the killed queries do to their rows, twice: in Spark's words and in plain Python.

Contract     `entry(i)` is entry i of the input. `transformed(frame)` drops some rows, doubles some
             and changes them all, row by row: so the output is in the order of the input however it
             is cut into batches and partitions, but an entry is not where its source was.
             `expected(count)` is what must come out of the first `count` entries.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from pyspark.sql import DataFrame

#: (tag, data); no tag is an empty one
Row = tuple[str, bytes]


def entry(i: int, width: int = 0) -> Row:
    """With `width` it has about so many bytes that do not compress well."""
    text = f"{i}:{'x' * (i * 7919 % 60)}"
    if width:
        text += random.Random(i).randbytes(width // 2).hex()
    return ("" if i % 11 == 0 else f"t{i % 3}"), text.encode()


def transformed(frame: DataFrame) -> DataFrame:
    return (
        frame.selectExpr("cast(data AS string) AS text", "tag")
        .selectExpr("text", "tag", "cast(substring_index(text, ':', 1) AS bigint) AS i")
        .where("i % 7 != 3")
        .selectExpr("explode(if(i % 5 = 0, array('a', 'b'), array('a'))) AS half", "text", "tag")
        .selectExpr("concat(upper(text), half) AS data", "concat(nullif(tag, ''), half) AS tag")
    )


def expected(count: int, width: int = 0) -> Iterator[Row]:
    for i in range(count):
        if i % 7 == 3:
            continue
        tag, data = entry(i, width)
        for half in ("a", "b") if i % 5 == 0 else ("a",):
            yield (tag and tag + half), data.upper() + half.encode()
