"""Folding: link rows become nodes, staged rows go, until nothing of a linked staging is left.

Contract     `plan_fold` takes a few megabytes of staged rows; the step gives each winner's body
             the header of its link row and removes the staged row, in one commit that no reader
             notices. Nodes of writers that did not win, and of what was evicted or deleted
             meanwhile, are only removed. The step replies True while there is more.
"""

from __future__ import annotations

from itertools import accumulate

import msgspec

from penstock.codec.keys import (
    KeyType,
    log_key,
    node_key,
    open_key,
    prefix_end,
    staged_key,
    staged_prefix,
    staging_key,
)
from penstock.codec.node import Body, StagedId, decode_body, decode_header, link_value, node_value
from penstock.codec.staging import Phase, StagingRow, decode_staging
from penstock.errors import CorruptError
from penstock.log.collect import COLLECT_ROWS
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.overlay import Overlay
from penstock.log.staging import staging_state_key
from penstock.log.state import LogState, load_log, log_row, resized, state_key
from penstock.store.port import Store

FOLD_BYTES = 4 << 20


class Folded(msgspec.Struct, frozen=True):
    """A staged node and the place that its link gave it."""

    staged: StagedId
    body: Body
    log_id: int
    first: int
    time_ms: int


async def plan_fold(store: Store, staging_id: int) -> Step | None:
    """None unless the staging is linked."""
    value = await store.get(staging_key(staging_id))
    if value is None:
        return None
    row = decode_staging(value, staging_id)
    if row.phase is not Phase.LINKED:
        return None
    firsts = _firsts(row, staging_id)
    folded: list[Folded] = []
    losers: list[StagedId] = []
    size = 0
    low = staged_prefix(staging_id)
    async for rows in store.scan(low, prefix_end(low), batch_rows=8):
        for key, staged_value in rows:
            staged = decode_staged_key(key)
            place = firsts.get((staged.writer, staged.n))
            if place is None:
                losers.append(staged)
                continue
            what = f"staged node {staged}"
            body = decode_body(decode_header(staged_value, what), staged_value, what)
            folded.append(Folded(staged, body, *place, row.linked_ms))
            size += len(staged_value)
        if size >= FOLD_BYTES or len(losers) + len(folded) >= COLLECT_ROWS:
            return fold_step(staging_id, folded, losers, more=True)
    return fold_step(staging_id, folded, losers, more=False)


def _firsts(row: StagingRow, staging_id: int) -> dict[tuple[int, int], tuple[int, int]]:
    """(writer, n) -> (log id, first offset), for the writers that won."""
    counts = dict(row.writers)
    for part in row.parts:
        if part.writer not in counts:
            raise CorruptError(f"staging {staging_id}: a part of the unknown writer {part.writer}")
    return {
        (part.writer, n): (part.log_id, first)
        for part in row.parts
        for n, first in enumerate(accumulate(counts[part.writer][:-1], initial=part.first))
        if counts[part.writer]
    }


def decode_staged_key(key: bytes) -> StagedId:
    reader = open_key(key, KeyType.STAGED)
    staged = StagedId(
        reader.u64_key("staging id"), reader.u64_key("writer"), reader.u64_key("staged node")
    )
    reader.end()
    return staged


def fold_step(staging_id: int, folded: list[Folded], losers: list[StagedId], *, more: bool) -> Step:
    async def load(view: View) -> None:
        await view.fetch(*(node_key(item.log_id, item.first) for item in folded))
        for log_id in {item.log_id for item in folded}:
            await load_log(view, log_id)

    def decide(view: View, now: Now) -> Decision:
        shown = Overlay(view)
        for item in folded:
            _fold(view, shown, item)
        for staged in (*losers, *(item.staged for item in folded)):
            shown.rows[staged_key(staged.staging_id, staged.writer, staged.n)] = None
        if not more:
            shown.rows[staging_key(staging_id)] = None
            shown.states[staging_state_key(staging_id)] = None
        return Decision(reply=more, writes=shown.rows, states=shown.states)

    return Step(decide, load)


def _fold(view: View, shown: Overlay, item: Folded) -> None:
    state: LogState | None = shown.state(state_key(item.log_id))
    if state is None or item.first + item.body.count <= state.first:
        return
    key = node_key(item.log_id, item.first)
    link = link_value(item.staged, first=item.first, count=item.body.count, time_ms=item.time_ms)
    # Another row than the link: it was punched, which made a node of it.
    if view.row(key) != link:
        return
    value = node_value(item.body, item.first, item.time_ms)
    grown = resized(state, item.first, len(value) - len(link))
    shown.rows[key] = value
    shown.states[state_key(item.log_id)] = grown
    if item.first < grown.settled:
        shown.rows[log_key(item.log_id)] = log_row(grown)
