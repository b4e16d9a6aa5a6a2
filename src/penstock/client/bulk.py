"""Bulk reads and writes for Spark's processes: `database.bulk`.

Contract     As api.py. All of it may be asked again after a lost broker: beginning with a key,
             staging the same numbers, linking and renewing repeat without harm, a `begin` without a
             key or a `reserve` that is repeated leaves something unused behind.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from penstock.broker.bulk import Checkpoint, FoundRows, LogSize, Wanted
from penstock.broker.progress import Progress, Report
from penstock.client.blocking import Blocking, blocking
from penstock.client.bulkbackend import BulkBackend
from penstock.client.handles import AsyncHandle
from penstock.client.thread import LoopThread, Work
from penstock.codec.node import Body
from penstock.log.catalogue import LogName
from penstock.log.staging import LEASE_MS, PayloadRow

if TYPE_CHECKING:
    from penstock.client.api import AsyncDatabase

R = TypeVar("R")


class AsyncBulk(AsyncHandle):
    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database
        self._closed = False

    def _run(self, errand: Callable[[BulkBackend], Awaitable[R]]) -> Work[R]:
        return self._database._run_bulk(lambda bulk, _: errand(bulk))

    def begin(self, *, key: bytes | None = None, lease_ms: int = LEASE_MS) -> Work[int]:
        return self._run(lambda bulk: bulk.begin(key=key, lease_ms=lease_ms))

    def stage(
        self,
        staging_id: int,
        writer: int,
        n: int,
        bodies: Sequence[Body],
        payloads: Sequence[PayloadRow] = (),
    ) -> Work[int]:
        return self._run(lambda bulk: bulk.stage(staging_id, writer, n, bodies, payloads))

    def reserve(
        self, staging_id: int, writer: int, count: int, to: Sequence[str] = ()
    ) -> Work[tuple[range, int]]:
        return self._run(lambda bulk: bulk.reserve(staging_id, writer, count, to))

    def renew(self, staging_id: int) -> Work[None]:
        return self._run(lambda bulk: bulk.renew(staging_id))

    def drop(self, staging_id: int) -> Work[bool]:
        return self._run(lambda bulk: bulk.drop(staging_id))

    def link(
        self,
        staging_id: int,
        target: LogName | None,
        writers: Sequence[int],
        *,
        producer: bytes | None = None,
        sequence: int | None = None,
    ) -> Work[range]:
        return self._run(
            lambda bulk: bulk.link(
                staging_id, target, writers, producer=producer, sequence=sequence
            )
        )

    def checkpoint(self, lifetime_ms: int, queue: LogName | None = None) -> Work[Checkpoint]:
        return self._run(lambda bulk: bulk.checkpoint(lifetime_ms, queue))

    def renew_checkpoint(self, checkpoint_id: str, lifetime_ms: int) -> Work[None]:
        return self._run(lambda bulk: bulk.renew_checkpoint(checkpoint_id, lifetime_ms))

    def drop_checkpoint(self, checkpoint_id: str) -> Work[None]:
        return self._run(lambda bulk: bulk.drop_checkpoint(checkpoint_id))

    def log_size(self, name: LogName | None) -> Work[LogSize]:
        return self._run(lambda bulk: bulk.log_size(name))

    def read(self, name: LogName | None, low: int, high: int, wanted: Wanted) -> Work[FoundRows]:
        return self._run(lambda bulk: bulk.read(name, low, high, wanted))

    def seek_time(self, name: LogName | None, time_ms: int) -> Work[int]:
        return self._run(lambda bulk: bulk.seek_time(name, time_ms))

    def report(self, report: Report) -> Work[None]:
        return self._run(lambda bulk: bulk.report(report))

    def progress(self) -> Work[list[Progress]]:
        return self._run(lambda bulk: bulk.progress())

    async def close(self) -> None:
        self._closed = True


class Bulk(Blocking[AsyncBulk]):
    def __init__(self, inner: AsyncBulk, thread: LoopThread) -> None:
        super().__init__(inner, thread)

    begin = blocking(AsyncBulk.begin)
    stage = blocking(AsyncBulk.stage)
    reserve = blocking(AsyncBulk.reserve)
    renew = blocking(AsyncBulk.renew)
    drop = blocking(AsyncBulk.drop)
    link = blocking(AsyncBulk.link)
    checkpoint = blocking(AsyncBulk.checkpoint)
    renew_checkpoint = blocking(AsyncBulk.renew_checkpoint)
    drop_checkpoint = blocking(AsyncBulk.drop_checkpoint)
    log_size = blocking(AsyncBulk.log_size)
    read = blocking(AsyncBulk.read)
    seek_time = blocking(AsyncBulk.seek_time)
    report = blocking(AsyncBulk.report)
    progress = blocking(AsyncBulk.progress)
