"""Keys: byte order is the order of what they are made of, they read back, and damage is named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec import keys, router
from penstock.codec.keys import KeyType, Kind, Scope
from penstock.codec.scalars import Reader
from penstock.errors import CorruptError

# The machine may be busy, so no example is judged by its time.
# Many tests over small values: fifty examples of each have to do.
calm = settings(deadline=None, max_examples=50)

# Bytes that mean something to the escapes are common, so that strings often share a beginning.
TB = st.lists(st.sampled_from([0, 1, 2, 0x61, 0xFF]), max_size=4).map(bytes) | st.binary(max_size=9)
U8 = st.integers(0, 255)
U64 = st.sampled_from([0, 1, 255, 256, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
KIND = st.sampled_from(Kind)
SCOPE = st.sampled_from(Scope)

READ: dict[st.SearchStrategy[Any], Callable[[Reader], Any]] = {
    TB: lambda reader: reader.terminated("part"),
    U8: lambda reader: reader.u8("part"),
    U64: lambda reader: reader.u64_key("part"),
    KIND: lambda reader: Kind(reader.u8("part")),
    SCOPE: lambda reader: Scope(reader.u8("part")),
}


class Builder(NamedTuple):
    build: Callable[..., bytes]
    kind: KeyType
    parts: tuple[st.SearchStrategy[Any], ...]


BUILDERS = {
    builder.build.__name__: builder
    for builder in (
        Builder(keys.payload_key, KeyType.PAYLOAD, (U64,)),
        Builder(keys.active_key, KeyType.ACTIVE, (TB, U8, U64)),
        Builder(keys.done_key, KeyType.DONE, (TB, U64)),
        Builder(keys.failed_key, KeyType.FAILED, (TB, U64)),
        Builder(keys.attempts_key, KeyType.ATTEMPTS, (TB, U64)),
        Builder(keys.config_key, KeyType.CONFIG, (TB,)),
        Builder(keys.chain_key, KeyType.CHAIN, (U64,)),
        Builder(keys.ids_key, KeyType.IDS, (U8,)),
        Builder(keys.name_key, KeyType.NAME, (KIND, TB)),
        Builder(keys.log_key, KeyType.LOG, (U64,)),
        Builder(keys.node_key, KeyType.NODE, (U64, U64)),
        Builder(keys.staging_key, KeyType.STAGING, (U64,)),
        Builder(keys.staged_key, KeyType.STAGED, (U64, U64, U64)),
        Builder(keys.once_key, KeyType.ONCE, (SCOPE, U64, TB)),
        Builder(keys.hold_key, KeyType.HOLD, (U64, TB)),
        Builder(keys.garbage_key, KeyType.GARBAGE, (TB,)),
        Builder(keys.operations_key, KeyType.OPERATIONS, (U64,)),
        Builder(keys.group_key, KeyType.GROUP, (U64, TB)),
        Builder(keys.head_key, KeyType.PAGE, (U64,)),
        Builder(keys.page_key, KeyType.PAGE, (U64, U64)),
        Builder(keys.secret_key, KeyType.SECRET, (TB,)),
        Builder(keys.router_key, KeyType.ROUTER, ()),
        Builder(keys.expiry_key, KeyType.EXPIRY, (U64, U64)),
        Builder(keys.source_key, KeyType.SOURCE, (U64, U8)),
        Builder(keys.shard_key, KeyType.SHARD, (U64, TB)),
        Builder(keys.ended_key, KeyType.ENDED, (U64, U64, TB)),
        Builder(keys.published_key, KeyType.PUBLISHED, (U64, U64)),
        Builder(keys.splits_key, KeyType.SPLITS, (U64, U64)),
        Builder(keys.processor_key, KeyType.PROCESSOR, (U64,)),
        Builder(keys.backing_key, KeyType.BACKING, (U64, U64)),
        Builder(keys.topic_key, KeyType.TOPIC, (U64,)),
        Builder(keys.topic_page_key, KeyType.TOPIC_PAGE, (U64, U64, U64)),
        Builder(keys.error_key, KeyType.ERROR, (U64, U64, U64)),
    )
}
every_builder = pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)

#: What each of these begins is a key of the second builder with the same first parts.
PREFIXES = [
    (keys.names_prefix, BUILDERS["name_key"], 1),
    (keys.nodes_prefix, BUILDERS["node_key"], 1),
    (keys.staged_prefix, BUILDERS["staged_key"], 1),
    (keys.staged_prefix, BUILDERS["staged_key"], 2),
    (keys.holds_prefix, BUILDERS["hold_key"], 1),
    (keys.groups_prefix, BUILDERS["group_key"], 1),
    (keys.pages_prefix, BUILDERS["page_key"], 1),
    *(
        (partial(keys.queue_prefix, BUILDERS[name].kind), BUILDERS[name], 1)
        for name in ("active_key", "done_key", "failed_key", "attempts_key", "config_key")
    ),
    *(
        (partial(keys.source_prefix, BUILDERS[name].kind), BUILDERS[name], 1)
        for name in ("source_key", "shard_key", "ended_key", "published_key", "splits_key")
    ),
    (keys.backing_prefix, BUILDERS["backing_key"], 1),
    *(
        (partial(keys.topic_prefix, BUILDERS[name].kind), BUILDERS[name], 1)
        for name in ("topic_key", "topic_page_key", "error_key")
    ),
]


def draw_two(data: st.DataObject, builder: Builder) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Two lists of parts, some of them equal, so that the later parts decide often enough."""
    one = data.draw(st.tuples(*builder.parts))
    other = data.draw(
        st.tuples(*(st.just(x) | part for x, part in zip(one, builder.parts, strict=True)))
    )
    return one, other


def test_every_key_builder_is_tested_for_its_order() -> None:
    built = {
        name
        for name, value in vars(keys).items()
        if name.endswith("_key") and value.__module__ == keys.__name__
    }
    assert built - {"open_key", "decode_node_key", "last_node_key"} == set(BUILDERS)


@every_builder
@calm
@given(data=st.data())
def test_byte_order_of_keys_is_the_order_of_their_parts(
    builder: Builder, data: st.DataObject
) -> None:
    one, other = draw_two(data, builder)
    key, other_key = builder.build(*one), builder.build(*other)
    assert (key < other_key) == (one < other)
    assert (key == other_key) == (one == other)


@every_builder
@calm
@given(data=st.data())
def test_a_key_reads_back_to_its_parts(builder: Builder, data: st.DataObject) -> None:
    parts = data.draw(st.tuples(*builder.parts))
    reader = keys.open_key(builder.build(*parts), builder.kind)
    assert tuple(READ[part](reader) for part in builder.parts) == parts
    reader.end()


@every_builder
@calm
@given(data=st.data())
def test_all_keys_of_a_type_lie_within_its_prefix(builder: Builder, data: st.DataObject) -> None:
    key = builder.build(*data.draw(st.tuples(*builder.parts)))
    inside = [
        kind for kind in KeyType if keys.prefix(kind) <= key < keys.prefix_end(keys.prefix(kind))
    ]
    assert inside == [builder.kind]


@pytest.mark.parametrize(("prefix", "builder", "count"), PREFIXES)
@calm
@given(data=st.data())
def test_a_prefix_bounds_the_keys_that_share_its_parts_and_no_others(
    prefix: Callable[..., bytes], builder: Builder, count: int, data: st.DataObject
) -> None:
    one, other = draw_two(data, builder)
    start = prefix(*one[:count])
    key = builder.build(*other)
    assert (start <= key < keys.prefix_end(start)) == (one[:count] == other[:count])


@calm
@given(log_id=U64, other_log_id=U64, first=U64)
def test_the_last_node_key_is_above_all_nodes_of_its_log_and_below_the_next_log(
    log_id: int, other_log_id: int, first: int
) -> None:
    last = keys.last_node_key(log_id)
    assert keys.node_key(log_id, first) <= last
    if other_log_id > log_id:
        assert last < keys.node_key(other_log_id, first)


#: What reads a key of these types, and what builds it.
READERS = [
    (keys.decode_node_key, keys.node_key, b"\x01\x0b"),
    (router.decode_expiry_key, keys.expiry_key, b"\x01\x16"),
]
every_reader = pytest.mark.parametrize(("read", "build", "start"), READERS)


@every_reader
@calm
@given(data=st.binary(max_size=24), behind=st.binary(max_size=20))
def test_arbitrary_bytes_are_a_key_or_corrupt(
    read: Callable[[bytes], tuple[int, int]],
    build: Callable[[int, int], bytes],
    start: bytes,
    data: bytes,
    behind: bytes,
) -> None:
    for key in (data, start + behind):
        try:
            parts = read(key)
        except CorruptError:
            assert len(key) != 18 or not key.startswith(start)
        else:
            assert build(*parts) == key


@every_reader
@calm
@given(first=U64, second=U64)
def test_a_key_is_read_as_it_was_built(
    read: Callable[[bytes], tuple[int, int]],
    build: Callable[[int, int], bytes],
    start: bytes,
    first: int,
    second: int,
) -> None:
    key = build(first, second)
    assert key.startswith(start)
    assert read(key) == (first, second)


@calm
@given(data=st.binary(max_size=4), expected=st.sampled_from(KeyType))
def test_arbitrary_bytes_have_a_key_type_or_are_corrupt(data: bytes, expected: KeyType) -> None:
    try:
        reader = keys.open_key(data, expected)
    except CorruptError:
        assert not data.startswith(keys.prefix(expected))
    else:
        assert data[: reader.at] == keys.prefix(expected)
