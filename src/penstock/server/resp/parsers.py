"""All commands that are awaited: by name, how their words become a request."""

from __future__ import annotations

from collections.abc import Callable

from penstock.server.resp.bulk_grammar import BULK_PARSERS, BulkRequest
from penstock.server.resp.grammar import PARSERS as STREAM_PARSERS
from penstock.server.resp.grammar import Request
from penstock.server.resp.queue_grammar import QUEUE_PARSERS, QueueRequest

PARSERS: dict[str, Callable[[list[bytes]], Request | QueueRequest | BulkRequest]] = {
    **STREAM_PARSERS,
    **QUEUE_PARSERS,
    **BULK_PARSERS,
}
