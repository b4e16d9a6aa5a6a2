"""Publishing: payload, metadata and routing in one commit.

Contract     `publish_step` stores the payloads, appends the metadata, and gives each message to the
             queues that take it, if the router is at the tail (route.py); else the router will. It
             replies with `Published`. A dedup id that was used within its window gives the id of
             the first message, and nothing is stored for it. `to=` names one queue, which must
             exist, and no filter is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import xxhash

from penstock.codec.keys import PAYLOADS_MAX, Scope, once_key, payload_key
from penstock.codec.node import Body
from penstock.codec.payload import RESERVED_SCHEME, UriPayload, encode_payload, payload_of
from penstock.errors import CorruptError
from penstock.log.append import append_step
from penstock.log.catalogue import Ids, find_target, load_ids, load_target, take_ids
from penstock.log.decision import Now, Step
from penstock.log.once import check, once_value
from penstock.queue.draft import Draft, draft_step
from penstock.queue.item import Item, PreparedBatch
from penstock.queue.route import Batch, route
from penstock.queue.state import load_queue, queue_name
from penstock.queue.taken import METADATA

DEDUP_MS = 300_000
#: Payloads of one block.
BLOCK_BYTES = 1 << 20
BLOCK_COUNT = PAYLOADS_MAX


class Published(msgspec.Struct, frozen=True, eq=False):
    ids: list[int]  # one per item, in their order
    #: What was stored, its ids, where it begins in the metadata log, and when it was received; None
    #: where all of it was published before.
    stored: PreparedBatch | None = None
    numbers: Sequence[int] = ()
    first_offset: int = 0
    received_at_ms: int = 0


def publish_step(batch: PreparedBatch, *, dedup_ms: int = DEDUP_MS) -> Step:
    async def body(draft: Draft) -> Published:
        if batch.to is None and batch.dedup_ids is None:  # nearly always
            if not len(batch):
                return Published([])
            return await _store(draft, batch, dedup_ms)
        ids, chosen, repeats = await _deduplicated(draft, batch)
        published = Published([])
        if chosen:
            new = batch if len(chosen) == len(batch) else batch.part(chosen)
            published = await _store(draft, new, dedup_ms)
        for i, number in zip(chosen, published.ids, strict=True):
            ids[i] = number
        for i, first in repeats.items():
            ids[i] = ids[first]
        found = [number for number in ids if number is not None]
        assert len(found) == len(batch), "each was stored, or published before"
        return msgspec.structs.replace(published, ids=found)

    return draft_step(body, batch.size)


async def _store(draft: Draft, batch: PreparedBatch, dedup_ms: int) -> Published:
    """Payloads, metadata, routing."""
    numbers = await _take_ids(draft, batch)
    fixed = batch.fixed(numbers, draft.now_ms)
    offset = await _append(draft, batch.bodies(fixed))
    draft.rows |= dict(payload_rows(numbers, batch))
    if batch.dedup_ids is not None:
        owners = await _owners(draft, batch.items)
        _remember(draft, owners, batch.dedup_ids, numbers, dedup_ms)
    await route(draft, Batch.of(fixed, batch, offset))
    return Published(list(numbers), batch, numbers, offset, draft.now_ms)


async def _take_ids(draft: Draft, batch: PreparedBatch) -> Sequence[int]:
    """In order; a batch with large payloads has its ids already."""
    return await _new_ids(draft, len(batch)) if batch.reserved is None else batch.reserved


async def _new_ids(draft: Draft, count: int) -> range:
    await load_ids(draft.view, Ids.MESSAGE)
    ids, rows, states = take_ids(draft.view, Ids.MESSAGE, count)
    draft.rows |= rows
    draft.states |= states
    return ids


def reserve_step(count: int) -> Step:
    """-> ids for messages of which some payload is about to become an object"""

    async def body(draft: Draft) -> range:
        return await _new_ids(draft, count)

    return draft_step(body)


async def _append(draft: Draft, records: Sequence[Body]) -> int:
    """To the metadata log. -> the first offset"""
    await load_target(draft.view, METADATA, make=True)
    state = find_target(draft.view, METADATA)
    decision = append_step(METADATA, records).decide(draft.view, Now(draft.now_ms, b""))
    draft.rows |= decision.writes
    draft.states |= decision.states
    draft.timers += decision.timers
    return 0 if state is None else state.next


def payload_rows(ids: Sequence[int], batch: PreparedBatch) -> Iterator[tuple[bytes, bytes]]:
    """Neighbours share a block; whatever is alone stays the RFC's own record."""
    return ((payload_key(first), value) for first, value in payload_records(ids, batch))


def is_one_record(ids: Sequence[int], batch: PreparedBatch) -> bool:
    """Whether all payloads lie under the first id."""
    return (
        0 < len(batch) <= BLOCK_COUNT
        and not batch.with_uris
        and ids[-1] - ids[0] == len(ids) - 1
        and batch.size <= BLOCK_BYTES
    )


def payload_records(ids: Sequence[int], batch: PreparedBatch) -> Iterator[tuple[int, bytes]]:
    """The id of the first message, and the record."""
    if is_one_record(ids, batch):
        yield ids[0], encode_payload(payload_of(batch.payloads))  # nearly always
        return
    run: list[bytes] = []
    first = size = 0
    for number, item in zip(ids, batch.items, strict=True):
        full = len(run) >= BLOCK_COUNT or size + len(item.payload) > BLOCK_BYTES
        if run and (item.uri is not None or full or number != first + len(run)):
            yield first, encode_payload(payload_of(run))
            run = []
        if item.uri is not None:
            yield number, encode_payload(UriPayload(item.uri))
            continue
        if not run:
            first, size = number, 0
        run.append(item.payload)
        size += len(item.payload)
    if run:
        yield first, encode_payload(payload_of(run))


def spilled_uri(message_id: int, payload: bytes) -> str:
    """Of an object of ours: whose payload it is, and a checksum of it."""
    return f"{RESERVED_SCHEME}{message_id}:{xxhash.xxh3_128_hexdigest(payload)}"


def spilled_id(uri: str) -> int | None:
    """The message whose payload is an object of ours; None for a user's own URI."""
    if not uri.startswith(RESERVED_SCHEME):
        return None
    try:
        return int(uri[len(RESERVED_SCHEME) :].partition(":")[0])
    except ValueError:
        raise CorruptError(f"payload URI {uri[:64]!r} names no message") from None


def check_spilled(uri: str, payload: bytes) -> None:
    if not uri.endswith(f":{xxhash.xxh3_128_hexdigest(payload)}"):
        raise CorruptError(f"the object of {uri[:64]!r}: checksum does not match")


# ---- dedup ids --------------------------------------------------------------------------------


async def _owners(draft: Draft, items: Sequence[Item]) -> list[int]:
    """Whose dedup ids these are: those of one queue, or 0 for messages that filters route."""
    return [
        0 if item.to is None else (await load_queue(draft.view, queue_name(item.to))).id
        for item in items
    ]


async def _deduplicated(
    draft: Draft, batch: PreparedBatch
) -> tuple[list[int | None], list[int], dict[int, int]]:
    """-> ids that are known, the items that are new, and those that repeat one of these"""
    ids: list[int | None] = [None] * len(batch)
    owners = await _owners(draft, batch.items)
    chosen: list[int] = []
    repeats: dict[int, int] = {}
    seen: dict[tuple[int, str], int] = {}
    for i, (item, owner) in enumerate(zip(batch.items, owners, strict=True)):
        if item.dedup_id is None:
            chosen.append(i)
            continue
        if (owner, item.dedup_id) in seen:
            repeats[i] = seen[owner, item.dedup_id]
            continue
        seen[owner, item.dedup_id] = i
        value = await draft.row(_dedup_key(owner, item.dedup_id))
        known = check(value, 0, draft.now_ms)
        if known is None:
            chosen.append(i)
        else:
            ids[i] = int.from_bytes(known.answer, "little")
    for i, first in repeats.items():
        ids[i] = ids[first]
    return ids, chosen, repeats


def _dedup_key(owner: int, dedup_id: str) -> bytes:
    return once_key(Scope.DEDUP, owner, dedup_id.encode())


def _remember(
    draft: Draft,
    owners: Sequence[int],
    dedup_ids: Sequence[str | None],
    ids: Sequence[int],
    dedup_ms: int,
) -> None:
    for dedup_id, owner, number in zip(dedup_ids, owners, ids, strict=True):
        if dedup_id is not None:
            answer = number.to_bytes(8, "little")
            key = _dedup_key(owner, dedup_id)
            draft.rows[key] = once_value(0, answer, draft.now_ms, dedup_ms)
