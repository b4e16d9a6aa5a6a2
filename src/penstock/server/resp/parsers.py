"""All commands that are awaited: by name, how their words become a request."""

from __future__ import annotations

from collections.abc import Callable

from penstock.graph.requests import Request as GraphRequest
from penstock.server.resp.bulk_grammar import BULK_PARSERS, BulkRequest
from penstock.server.resp.grammar import PARSERS as STREAM_PARSERS
from penstock.server.resp.grammar import Request
from penstock.server.resp.graphs import GRAPH_PARSERS
from penstock.server.resp.queue_grammar import QUEUE_PARSERS, QueueRequest
from penstock.server.resp.sources import SOURCE_PARSERS
from penstock.server.resp.topic_grammar import TOPIC_PARSERS, TopicRequest
from penstock.source.requests import SourceRequest

PARSERS: dict[
    str,
    Callable[
        [list[bytes]],
        Request | QueueRequest | TopicRequest | BulkRequest | SourceRequest | GraphRequest,
    ],
] = {
    **STREAM_PARSERS,
    **QUEUE_PARSERS,
    **TOPIC_PARSERS,
    **BULK_PARSERS,
    **SOURCE_PARSERS,
    **GRAPH_PARSERS,
}
