"""Each invariant of sources, broken once: the check names it, and never raises."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from penstock.cli.check import inspect_store
from penstock.codec.catalogue import CatalogueRow, encode_catalogue_row
from penstock.codec.keys import (
    KeyType,
    Kind,
    Scope,
    ended_key,
    name_key,
    once_key,
    prefix,
    prefix_end,
    published_key,
    shard_key,
    source_key,
    splits_key,
)
from penstock.codec.published import decode_published, encode_published
from penstock.codec.shard import decode_shard, encode_shard
from penstock.codec.source import (
    FORMAT,
    SCHEMA,
    SETTINGS,
    SchemaRow,
    decode_source,
    encode_format,
    encode_schema,
    encode_source,
)
from penstock.log.decision import Decision, Step
from penstock.log.once import once_value
from penstock.source.check import check_sources
from penstock.source.requests import MarkExported, PutSchema
from penstock.store.objects import MemoryObjects
from unit.source.driver import ANNA, SourceDriver, whole

A, B, OPEN = b"s3://b/a", b"s3://b/b", b"s3://b/open"

Breaking = Callable[[SourceDriver], Awaitable[None]]


async def put(world: SourceDriver, key: bytes, value: bytes | None) -> None:
    await world.log.do(Step(lambda view, now: Decision(writes={key: value})))


async def get(world: SourceDriver, key: bytes) -> bytes:
    value = await world.log.store.get(key)
    assert value is not None
    return value


async def change_source(world: SourceDriver, **changes: object) -> None:
    key = source_key(world.source, SETTINGS)
    row = decode_source(await get(world, key))
    await put(world, key, encode_source(msgspec.structs.replace(row, **changes)))


async def change_shard(world: SourceDriver, identity: bytes, **changes: object) -> None:
    key = shard_key(world.source, identity)
    row = decode_shard(await get(world, key))
    await put(world, key, encode_shard(msgspec.structs.replace(row, **changes)))


async def change_publish(world: SourceDriver, sequence: int, **changes: object) -> None:
    key = published_key(world.source, sequence)
    row = decode_published(await get(world, key))
    await put(world, key, encode_published(msgspec.structs.replace(row, **changes)))


async def full() -> SourceDriver:
    """One of everything."""
    world = await SourceDriver.open()
    await world.ask(PutSchema(world.source, 0, "a INT"))
    await world.open_shards(ANNA, A.decode(), B.decode(), OPEN.decode())
    await world.publish(ANNA, whole(A.decode()), schema_version=1)
    world.clock.ms += 10
    await world.publish(ANNA, whole(B.decode()), schema_version=1)
    await world.ask(MarkExported(world.source, 1))
    await world.stage(ANNA, "key")
    return world


async def test_a_full_source_has_no_findings() -> None:
    await (await full()).sound()


@pytest.mark.parametrize(
    ("breaking", "what"),
    [
        pytest.param(
            lambda w: put(w, name_key(Kind.SOURCE, b"events"), None),
            "no name leads to its row",
            id="X1 a source without its name",
        ),
        pytest.param(
            lambda w: put(
                w, name_key(Kind.SOURCE, b"other"), encode_catalogue_row(CatalogueRow(77, 0))
            ),
            "row 77 does not exist",
            id="X1 a name without its source",
        ),
        pytest.param(
            lambda w: put(w, source_key(77, FORMAT), encode_format("json")),
            "a format of a source that does not exist",
            id="X2 a format of nobody",
        ),
        pytest.param(
            lambda w: put(w, source_key(77, SCHEMA), encode_schema(SchemaRow(1, "a"))),
            "a schema of a source that does not exist",
            id="X2 a schema of nobody",
        ),
        pytest.param(
            lambda w: put(w, source_key(w.source, 9), b"\x01"),
            "has a part 9",
            id="X2 an unknown part",
        ),
        pytest.param(
            lambda w: put(w, ended_key(77, 1, A), b""),
            "of source 77, which does not exist",
            id="X2 an end of nobody",
        ),
        pytest.param(
            lambda w: put(w, ended_key(w.source, 1_000_000, A), None),
            "the index does not have it",
            id="X3 an end that is not in the index",
        ),
        pytest.param(
            lambda w: put(w, ended_key(w.source, 5, OPEN), b""),
            "did not end at 5",
            id="X3 an open shard in the index",
        ),
        pytest.param(
            lambda w: put(w, ended_key(w.source, 5, A), b""),
            "did not end at 5",
            id="X3 twice in the index",
        ),
        pytest.param(
            lambda w: put(w, shard_key(w.source, A), None),
            "did not end at",
            id="X3 an end of a shard that is gone",
        ),
        pytest.param(
            lambda w: put(w, ended_key(w.source, 1_000_000, A), b"x"),
            "an index row with a value",
            id="X3 something in the index",
        ),
        pytest.param(
            lambda w: change_shard(w, A, updated_ms=7),
            "the index does not have it",
            id="X3 an end at another time",
        ),
        pytest.param(
            lambda w: change_source(w, done=3),
            "2 shards are done, its row says 3",
            id="X4 done",
        ),
        pytest.param(
            lambda w: change_source(w, failed=1),
            "0 shards are failed, its row says 1",
            id="X4 failed",
        ),
        pytest.param(
            lambda w: put(w, published_key(w.source, 1), None),
            "it follows 0",
            id="X5 a publish is missing at the front",
        ),
        pytest.param(
            lambda w: put(w, published_key(w.source, 2), None),
            "its newest publish is 1, its row says 2",
            id="X5 a publish is missing at the end",
        ),
        pytest.param(
            lambda w: change_publish(w, 2, time_ms=5),
            "older than the one before",
            id="X5 times that fall",
        ),
        pytest.param(
            lambda w: change_source(w, exported=3),
            "exported up to 3",
            id="X5 exported and not published",
        ),
        pytest.param(
            lambda w: change_source(w, exported=0, first_publish=2),
            "exported up to 0",
            id="X5 forgotten and not exported",
        ),
        pytest.param(
            lambda w: change_source(w, next_staging=3),
            "its number was never given",
            id="X6 a staging beyond the next",
        ),
        pytest.param(
            lambda w: put(
                w, once_key(Scope.STAGING, w.source, b"key"), once_value(0, bytes(8), 10**12)
            ),
            "its key leads to an older one",
            id="X6 a key that leads elsewhere",
        ),
        pytest.param(
            lambda w: change_source(w, schema_version=2),
            "its schema is not version 2",
            id="X7 a schema that is not there",
        ),
        pytest.param(
            lambda w: change_publish(w, 2, schema_version=2),
            "its schema 2 does not exist",
            id="X7 a publish ahead of its schema",
        ),
    ],
)
async def test_what_is_broken_is_found(breaking: Breaking, what: str) -> None:
    world = await full()
    await breaking(world)
    found = await check_sources(world.log.store)
    assert any(what in each.what for each in found), found


@pytest.mark.parametrize(
    "kind",
    [KeyType.SOURCE, KeyType.SHARD, KeyType.ENDED, KeyType.PUBLISHED, KeyType.SPLITS, KeyType.NAME],
)
async def test_damaged_rows_are_findings_and_never_exceptions(kind: KeyType) -> None:
    world = await full()
    low = prefix(kind)
    rows = [row async for part in world.log.store.scan(low, prefix_end(low)) for row in part]
    assert rows
    for key, value in rows:
        for key_, value_ in {(key, value[:-1]), (key[:-1], value), (key, b"\xff" + value)}:
            if (key_, value_) == (key, value):
                continue  # there is nothing to cut
            broken = await full()
            await put(broken, key, None)
            await put(broken, key_, value_)
            assert await check_sources(broken.log.store) != []


async def test_a_staging_of_nobody_is_found() -> None:
    world = await full()
    value = await get(world, splits_key(world.source, 3))
    await put(world, splits_key(77, 3), value)
    (found,) = await check_sources(world.log.store)
    assert "of source 77, which does not exist" in found.what


async def test_penstock_check_looks_at_sources() -> None:
    world = await full()
    assert (await inspect_store("memory://x", world.log.store, MemoryObjects())).findings == []
    await change_source(world, done=3)
    (found,) = (await inspect_store("memory://x", world.log.store, MemoryObjects())).findings
    assert "2 shards are done, its row says 3" in found.what
