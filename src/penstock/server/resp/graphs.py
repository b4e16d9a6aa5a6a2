"""The command of graphs: PENSTOCK.GRAPH with a request of graph/requests.py, in JSON."""

from __future__ import annotations

from penstock.broker.graphs import GraphRequests
from penstock.codec.resp import encode
from penstock.graph.requests import Request as GraphRequest
from penstock.graph.requests import decode_request, encode_reply
from penstock.server.resp.command import NO_KEYS, Command

GRAPH_COMMANDS = (
    Command(
        "PENSTOCK.GRAPH", 2, ("write", "denyoom", "blocking"), NO_KEYS, "generic",
        "Asks about the processors of graphs: starts, looks, commits, lists.", "json",
        since="0.5.0",
    ),
)  # fmt: skip


def parse_graph(words: list[bytes]) -> GraphRequest:
    return decode_request(words[1])


GRAPH_PARSERS = {"PENSTOCK.GRAPH": parse_graph}


async def run(request: GraphRequest, graphs: GraphRequests, protocol: int) -> bytes:
    return encode(encode_reply(await graphs.ask(request)), protocol)
