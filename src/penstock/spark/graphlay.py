"""Outputs that pass through the driver: few go with the commit itself, more are staged first.

Contract     One `Laying` per attempt. `fits` takes room for what goes with the commit, of all
             streams together; what has none there is staged (`stage`), and the commit names the
             `staging`. Nothing of it is visible before that.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from penstock.client.bulk import Bulk
from penstock.clock import SystemClock
from penstock.graph.outputs import INLINE_BYTES_MAX
from penstock.graph.requests import Output
from penstock.spark.staging import StreamStage

#: What goes with the commit itself: it is base64 in JSON there.
INLINE_BYTES = INLINE_BYTES_MAX // 8


class Laying:
    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk
        # Of this attempt alone: whoever tries again stages anew.
        self._key = b"graph " + SystemClock().entropy(16).hex().encode()
        self._inline = 0
        self.staging: int | None = None

    def fits(self, size: int) -> bool:
        if self._inline + size > INLINE_BYTES:
            return False
        self._inline += size
        return True

    def stage(self, stream: str, batches: Iterable[pa.RecordBatch]) -> Output:
        """Rows of data, meta and, where there are any, tag."""
        stage = StreamStage(self._bulk, self._key)
        with stage.running():
            for batch in batches:
                stage.add(batch)
            self.staging, writer, _ = stage.finish()
        return Output(stream, writers=[writer])
