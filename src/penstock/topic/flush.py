"""Writing a topic's pages: what operations did since the last time enters the rows (log/pages.py).

Contract     As stream/flush.py: `plan_flush`, then `pages_step` for its parts, then `head_step`.
             The head goes last, and with it the hold on the all-log, which lags behind but is never
             too high. Error rows of messages that were trimmed go too, some at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.codec.keys import (
    KeyType,
    error_key,
    prefix_end,
    topic_key,
    topic_page_key,
    topic_prefix,
)
from penstock.codec.operations import Operation
from penstock.codec.topic import encode_topic, encode_topic_page
from penstock.log.decision import Step
from penstock.log.place import Rows
from penstock.topic.draft import HOLDER, Draft, step_if_there
from penstock.topic.page import row_of
from penstock.topic.state import PagePlace, places_of

#: Pages of one commit: about a megabyte where nothing of them is done.
FLUSH_PAGES = 32
#: Error rows that one flush removes.
ERRORS_PART = 1000


class Flush(msgspec.Struct, frozen=True):
    sequence: int
    places: tuple[PagePlace, ...]

    def parts(self) -> Sequence[tuple[PagePlace, ...]]:
        return [self.places[i : i + FLUSH_PAGES] for i in range(0, len(self.places), FLUSH_PAGES)]


def plan_flush(operations: Sequence[Operation]) -> Flush:
    places: set[PagePlace] = set()
    for operation in operations:
        places |= places_of(operation)
    return Flush(operations[-1].sequence, tuple(sorted(places)))


def pages_step(topic_id: int, places: Sequence[PagePlace]) -> Step:
    """Write these pages as they are. One without references has no row."""

    async def body(draft: Draft) -> None:
        for space, number in places:
            page = await draft.page(space, number)
            key = topic_page_key(topic_id, space, number)
            await draft.view.fetch(key)
            if space in draft.spaces and page.count:
                draft.rows[key] = encode_topic_page(row_of(page))
            elif draft.view.row(key) is not None:
                draft.rows[key] = None

    return step_if_there(topic_id, body)


def head_step(topic_id: int) -> Step:
    """-> whether the topic still exists"""

    async def body(draft: Draft) -> bool:
        draft.rows[topic_key(topic_id)] = encode_topic(draft.state.head)
        # What is needed is known by the page: it may lie below what was given up long ago.
        draft.hold(max(draft.state.needed, dict(draft.log.holds).get(HOLDER, 0)))
        draft.rows |= await _trimmed_errors(draft)
        return True

    return step_if_there(topic_id, body)


async def _trimmed_errors(draft: Draft) -> Rows:
    low = topic_prefix(KeyType.ERROR, draft.state.id)
    high = min(prefix_end(low), error_key(draft.state.id, draft.log.first, 0))
    found: Rows = {}
    if low >= high:
        return found
    async for rows in draft.view.store.scan(low, high, batch_rows=ERRORS_PART):
        found |= dict.fromkeys(key for key, _ in rows)
        if len(found) >= ERRORS_PART:
            break
    return found
