"""The commands of bulk reads and writes, run: a request and the broker -> the bytes of a reply."""

from __future__ import annotations

from typing import assert_never

import msgspec

from penstock.broker.bulk import Bulk
from penstock.codec.resp import Reply, Simple, encode
from penstock.server.resp.bulk_grammar import (
    BulkRequest,
    CheckpointDrop,
    CheckpointMake,
    CheckpointRenew,
    LinkStaged,
    ReadRows,
    SeekTime,
    ShowProgress,
    ShowSize,
    StageBegin,
    StageDrop,
    StagePut,
    StageRenew,
    StageReserve,
    TakeReport,
)

_OK = Simple("OK")


async def run(request: BulkRequest, bulk: Bulk, protocol: int) -> bytes:
    return encode(await _run(request, bulk), protocol)


async def _run(request: BulkRequest, bulk: Bulk) -> Reply:
    match request:
        case StageBegin(key, lease_ms):
            return await bulk.begin(key=key, lease_ms=lease_ms)
        case StagePut(staging_id, writer, n, bodies, payloads):
            return await bulk.stage(staging_id, writer, n, bodies, payloads)
        case StageReserve(staging_id, writer, count, to):
            ids, now_ms = await bulk.reserve(staging_id, writer, count, to)
            return [ids.start, ids.stop, now_ms]
        case StageRenew(staging_id):
            await bulk.renew(staging_id)
            return _OK
        case StageDrop(staging_id):
            return int(await bulk.drop(staging_id))
        case LinkStaged(staging_id, target, writers, producer, sequence):
            offsets = await bulk.link(
                staging_id, target, writers, producer=producer, sequence=sequence
            )
            return [offsets.start, offsets.stop]
        case CheckpointMake(lifetime_ms, queue):
            made = await bulk.checkpoint(lifetime_ms, queue)
            return {"id": made.id, "location": made.location}
        case CheckpointRenew(checkpoint_id, lifetime_ms):
            await bulk.renew_checkpoint(checkpoint_id, lifetime_ms)
            return _OK
        case CheckpointDrop(checkpoint_id):
            await bulk.drop_checkpoint(checkpoint_id)
            return _OK
        case ShowSize(name):
            return list(msgspec.structs.astuple(await bulk.log_size(name)))
        case ReadRows(name, low, high, wanted):
            found = await bulk.read(name, low, high, wanted)
            return [found.batches, *msgspec.structs.astuple(found.count)]
        case SeekTime(name, time_ms):
            return await bulk.seek_time(name, time_ms)
        case TakeReport(report):
            await bulk.report(report)
            return _OK
        case ShowProgress():
            return msgspec.json.encode(await bulk.progress())
        case _:
            assert_never(request)
