"""Names of logs, and ids: looking up, listing, making.

Contract     A log is named by its id, or by `LogName` (kind and name) where it may have to be made.
             `load_target` in `load`, then `find_target` or `make_target` in `decide`. Names and id
             blocks are kept as states, so that a decision can make a log even where an earlier step
             of the same tick removed the one it was loaded with.
Not here     which characters a name may have (codec/catalogue.py), what a kind keeps as options.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from enum import IntEnum
from typing import Any, Protocol

import msgspec

from penstock.codec.catalogue import (
    CatalogueRow,
    Options,
    check_name,
    decode_catalogue_row,
    encode_catalogue_row,
)
from penstock.codec.idblock import reserve
from penstock.codec.keys import (
    KeyType,
    Kind,
    ids_key,
    log_key,
    name_key,
    names_prefix,
    open_key,
    prefix_end,
)
from penstock.errors import CorruptError
from penstock.log.decision import Now, StateKey, View
from penstock.log.place import Rows
from penstock.log.state import LogState, load_log, log_row, state_key
from penstock.store.port import Reader

States = dict[StateKey, object]


class Shows(Protocol):
    """The part of a View that deciding about names needs."""

    def state(self, key: StateKey) -> Any | None: ...


class Ids(IntEnum):
    """The number spaces that have an id block."""

    #: Everything with a name, whatever its kind, so that an id alone tells what a key belongs to.
    NAMED = 1
    STAGING = 2
    MESSAGE = 3


class LogName(msgspec.Struct, frozen=True):
    kind: Kind
    name: bytes


class NameState(msgspec.Struct, frozen=True):
    row: CatalogueRow | None  # None: there is no such name


class IdState(msgspec.Struct, frozen=True):
    row: bytes | None  # of the id block


Target = int | LogName


def stream_name(name: str) -> LogName:
    return LogName(Kind.STREAM, check_name("stream", name))


def name_state_key(name: LogName) -> StateKey:
    return ("name", (name.kind, name.name))


def id_state_key(space: Ids) -> StateKey:
    return ("ids", space)


async def lookup(store: Reader, name: LogName) -> CatalogueRow | None:
    value = await store.get(name_key(name.kind, name.name))
    return None if value is None else decode_catalogue_row(value)


async def list_names(store: Reader, kind: Kind) -> AsyncIterator[tuple[str, CatalogueRow]]:
    """All names of a kind, in the order of their bytes."""
    low = names_prefix(kind)
    async for rows in store.scan(low, prefix_end(low)):
        for key, value in rows:
            yield decode_name_key(key)[1], decode_catalogue_row(value)


def decode_name_key(key: bytes) -> tuple[Kind, str]:
    reader = open_key(key, KeyType.NAME)
    try:
        kind = Kind(reader.u8("kind"))
        name = reader.terminated("name").decode()
    except ValueError as error:  # also UnicodeDecodeError
        raise CorruptError(f"name key {key[:16].hex()}: {error}") from None
    reader.end()
    return kind, name


async def load_name(view: View, name: LogName) -> NameState:
    shown: NameState | None = view.state(name_state_key(name))
    if shown is None:
        shown = NameState(await lookup(view.store, name))
        view.keep(name_state_key(name), shown)
    return shown


async def load_ids(view: View, space: Ids) -> None:
    if view.state(id_state_key(space)) is None:
        view.keep(id_state_key(space), IdState(await view.store.get(ids_key(space))))


async def load_target(view: View, target: Target, *, make: bool = False) -> int | None:
    """For `load`: have the log in memory, and with `make` what is needed to make it. -> its id"""
    if isinstance(target, LogName):
        name = await load_name(view, target)
        if make:
            await load_ids(view, Ids.NAMED)
        if name.row is None:
            return None
        target = name.row.id
    await load_log(view, target)
    return target


async def open_target(view: View, target: Target) -> LogState | None:
    """For reads, outside a tick: a commit may go by meanwhile, and then nothing that was loaded is
    kept. So this answers with what it loaded itself."""
    if isinstance(target, LogName):
        name = await load_name(view, target)
        if name.row is None:
            return None
        target = name.row.id
    return await load_log(view, target)


def find_target(view: Shows, target: Target) -> LogState | None:
    """For `decide`: the log, or None where there is none."""
    if isinstance(target, LogName):
        name: NameState | None = view.state(name_state_key(target))
        assert name is not None, "load_target keeps the name"
        if name.row is None:
            return None
        target = name.row.id
        state: LogState | None = view.state(state_key(target))
        if state is None:
            # A name and its log are made and deleted together.
            raise CorruptError(f"log {target} of a name that is there is missing")
        return state
    state = view.state(state_key(target))
    return state


def take_id(view: Shows, space: Ids) -> tuple[int, Rows, States]:
    """For `decide`: an id that was never used, in the commit that uses it."""
    ids, rows, states = take_ids(view, space, 1)
    return ids[0], rows, states


def take_ids(view: Shows, space: Ids, count: int) -> tuple[range, Rows, States]:
    block: IdState | None = view.state(id_state_key(space))
    assert block is not None, "load_ids keeps the block"
    ids, row = reserve(block.row, count)
    return ids, {ids_key(space): row}, {id_state_key(space): IdState(row)}


def make_target(
    view: Shows, name: LogName, now: Now, options: Options = ()
) -> tuple[LogState, Rows, States]:
    """For `decide`: a new, empty log under this name."""
    log_id, rows, states = take_id(view, Ids.NAMED)
    row = CatalogueRow(log_id, now.ms, options)
    state = LogState(log_id)
    rows[name_key(name.kind, name.name)] = encode_catalogue_row(row)
    rows[log_key(log_id)] = log_row(state)
    states[name_state_key(name)] = NameState(row)
    states[state_key(log_id)] = state
    return state, rows, states
