"""Errors of messages whose rows a ready-made sink did not take: behind those of the tasks.

Contract     The driver learns of them when it writes, and by then the tasks have handed over their
             error entries: staged, or as nodes. What goes to one stream is either; so here all of
             it is staged, in the staging of the attempt. It happens to few steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.client.bulk import Bulk
from penstock.codec.node import decode_body, decode_header
from penstock.spark.graphcall import Failure
from penstock.spark.graphwork import Landed
from penstock.spark.staging import StreamStage


def stage_errors(
    bulk: Bulk, key: bytes, landed: Sequence[Landed], refused: Sequence[Failure]
) -> tuple[int, list[Landed]]:
    """-> the staging, and all errors as they are in it"""
    stage = StreamStage(bulk, key)
    with stage.running():
        nodes = [node for each in landed for node in each.nodes]
        if nodes:
            what = "error entries of a task"
            stage.add_bodies([decode_body(decode_header(n, what), n, what) for n in nodes])
        columns = zip(*(failure.entry for failure in refused), strict=True)
        names = ("tag", "data", "meta")
        stage.add(
            pa.record_batch(
                {
                    name: pa.array(cells, pa.binary())
                    for name, cells in zip(names, columns, strict=True)
                }
            )
        )
        staging, writer, rows = stage.finish()
    assert staging is not None, "there are rows"
    kept = [each for each in landed if each.writer is not None]
    return staging, [*kept, Landed(rows, writer=writer)]
