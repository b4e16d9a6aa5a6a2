"""Where bodies go in a log: next offsets, and whether each is sealed or joins the active run. Pure.

Rule         A large body on an empty run is a node at once. Any other joins the active run while
             both fit into one node; when they do not, the run is closed and the body starts anew.
             A run that is full is closed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.codec.keys import node_key
from penstock.codec.node import Body, node_value
from penstock.codec.scalars import U64_MAX
from penstock.errors import InvalidError
from penstock.log.batch import is_large
from penstock.log.state import NO_RUN, Fragment, LogState

Rows = dict[bytes, bytes | None]

#: Bodies of unmerged fragments that one log keeps in memory.
KEPT_BYTES = 4 << 20


def place(state: LogState, bodies: Sequence[Body], time_ms: int) -> tuple[LogState, Rows]:
    """The log with these bodies behind its end, and their rows. The log row is not among them."""
    rows: Rows = {}
    run, closed, at, added = state.run, state.closed, state.next, 0
    # When the merge falls behind it reads the fragments again rather than memory filling up.
    kept = state.memory_bytes < KEPT_BYTES
    for body in bodies:
        if run.fragments and not run.fits(body.count, body.raw_bytes):
            closed = (*closed, run)
            run = NO_RUN
        sealed = not run.fragments and is_large(body.count, body.raw_bytes)
        value = node_value(body, at, time_ms, fragment=not sealed)
        rows[node_key(state.log_id, at)] = value
        if not sealed:
            run = run.with_fragment(
                Fragment(
                    at,
                    body.count,
                    body.raw_bytes,
                    len(value),
                    body.checksum,
                    time_ms,
                    body if kept else None,
                )
            )
            if run.full:
                closed = (*closed, run)
                run = NO_RUN
        at += body.count
        added += len(value)
    check_end(at)
    grown = msgspec.structs.replace(
        state,
        next=at,
        stored_bytes=state.stored_bytes + added,
        unsettled_bytes=state.unsettled_bytes + added,
        unsettled_rows=state.unsettled_rows + len(bodies),
        run=run,
        closed=closed,
    )
    return grown, rows


def check_end(end: int) -> None:
    # The largest u64 is "after the last node" in keys.
    if end >= U64_MAX:
        raise InvalidError("the log is full: offsets end at 2**64")
