"""What can be seen of a topic: counters, consumers, shards.

Contract     Everything is derived from the topic's state, which shows durable commits only. The
             counters of shards that are gone are in the topic's sums.
"""

from __future__ import annotations

import msgspec

from penstock.codec.topic import COUNTERS, OPEN_END
from penstock.log.catalogue import LogName
from penstock.log.decision import Step
from penstock.log.state import LogState
from penstock.topic.draft import Draft, topic_step
from penstock.topic.shards import open_rows
from penstock.topic.state import TopicState


def look_step(name: LogName) -> Step:
    """-> the topic's state and that of its log. A step, not a read: nothing is committed between
    the rows that it loads them from."""

    async def body(draft: Draft) -> tuple[TopicState, LogState]:
        return draft.state, draft.log

    return topic_step(name, body)


class Counters(msgspec.Struct, frozen=True):
    """inserted >= routed >= emitted >= acked; acked + errored + waiting + running = inserted."""

    inserted: int
    routed: int
    emitted: int
    acked: int
    errored: int
    redelivered: int
    replayed: int
    running: int  # of live messages
    waiting: int


class Member(msgspec.Struct, frozen=True):
    number: int
    name: str
    slots: list[int]  # as planned; of a zombie those that are being drained
    heartbeat_ms: int
    joined_ms: int
    zombie: bool


class Shard(msgspec.Struct, frozen=True):
    slot: int
    generation: int
    consumer: str | None  # it was opened for
    owner: str | None  # who has its messages now
    draining: bool
    first: int
    end: int | None
    counters: Counters


def topic_counters(state: TopicState, log: LogState) -> Counters:
    shards = state.head.shards
    sums = {
        field: folded + int(shards[field].sum())
        for field, folded in zip(COUNTERS, state.head.folded, strict=True)
    }
    # Every offset of the all-log was given to one message; some may not have a reference yet.
    sums["inserted"] = log.next
    running = int(shards["running"].sum())
    waiting = log.next - sums["acked"] - sums["errored"] - running
    return Counters(**sums, running=running, waiting=waiting)


def members(state: TopicState) -> list[Member]:
    shards = state.head.shards
    rows = open_rows(shards)
    owners, heirs = shards["owner"][rows], shards["heir"][rows]
    found = []
    for each in state.head.consumers:
        if each.zombie:
            slots = sorted(set(shards["slot"][shards["owner"] == each.number].tolist()))
        else:
            mine = (heirs == each.number) | ((owners == each.number) & (heirs == 0))
            slots = mine.nonzero()[0].tolist()
        found.append(
            Member(each.number, each.name, slots, each.heartbeat_ms, each.joined_ms, each.zombie)
        )
    return found


def shard_list(state: TopicState) -> list[Shard]:
    """Those that somebody owns, or that have messages left."""
    shards = state.head.shards
    names = {each.number: each.name for each in state.head.consumers}
    owners = shards["owner"][open_rows(shards)].tolist()
    found = []
    for row in shards:
        owner = owners[int(row["slot"])]
        is_open = int(row["end"]) == OPEN_END
        counts = {field: int(row[field]) for field in COUNTERS}
        if is_open and not owner and not counts["inserted"]:
            continue
        running = int(row["running"])
        left = counts["inserted"] - counts["acked"] - counts["errored"] - running
        found.append(
            Shard(
                slot=int(row["slot"]),
                generation=int(row["generation"]),
                consumer=names.get(int(row["owner"])),
                owner=names.get(owner),
                draining=not is_open,
                first=int(row["first"]),
                end=None if is_open else int(row["end"]),
                counters=Counters(**counts, running=running, waiting=left),
            )
        )
    return found
