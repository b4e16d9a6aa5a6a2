"""Running stream requests: what is asked of the broker, and what goes onto the wire."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.answers import FoundByGroup, FoundNodes, StreamInfo
from penstock.broker.streams import Streams
from penstock.codec.node import Node, decode_node, hole_value, node_value
from penstock.codec.resp import Reply, Simple, encode
from penstock.errors import InvalidError
from penstock.log.batch import build_bodies
from penstock.log.catalogue import stream_name
from penstock.server.resp import streams
from penstock.server.resp.commands import COMMANDS
from penstock.server.resp.grammar import Request
from penstock.server.resp.parsers import PARSERS
from penstock.server.resp.streams import _bodies, run, whole
from penstock.stream.deliver import Delivered

K = stream_name("k")
CONFIG = SimpleNamespace(max_count=5, max_bytes=None, max_age_ms=None, compact=True)
INFO = SimpleNamespace(first=2, last=4, length=3, bytes=99, created_ms=7, groups=1, config=CONFIG)
GROUP = SimpleNamespace(
    name="g", last_offset=9, ack_offset=3, pending=2, expired=1, skipped=0, max_pending=10,
    dead=None,
)  # fmt: skip
GROUP_MAP = {
    "name": "g", "last_offset": 9, "ack_offset": 3, "pending": 2, "expired": 1, "skipped": 0,
    "max_pending": 10, "dead": None,
}  # fmt: skip


class Recorder:
    """Stands for the broker's streams: remembers the call, gives the answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("post"):

            def begin(*arguments: Any, **options: Any) -> asyncio.Future[Any]:
                self.calls.append((name, arguments, options))
                answer = asyncio.get_running_loop().create_future()
                answer.set_result([self.answer])
                return answer

            return begin

        async def method(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, arguments, options))
            return self.answer

        return method


def ask(line: str, answer: Any, protocol: int = 3, limit: int = 1 << 20) -> tuple[bytes, Any]:
    words = line.encode().split()
    recorder = Recorder(answer)
    request = cast(Request, PARSERS[COMMANDS[words[0].decode()].name](words))
    reply = asyncio.run(asked(request, cast(Streams, recorder), protocol, limit))
    return reply, recorder.calls


async def asked(request: Request, streams: Streams, protocol: int, limit: int) -> bytes:
    return await whole(await run(request, streams, protocol, limit))


def call(name: str, *arguments: Any, **options: Any) -> tuple[str, Any, Any]:
    return name, arguments, options


@pytest.mark.parametrize(
    ("line", "answer", "calls", "reply"),
    [
        ("TEVICT k 5", 6, [call("evict", K, up_to=5, keep=None)], 6),
        ("TEVICT k -5", 6, [call("evict", K, up_to=None, keep=5)], 6),
        ("TACK k g 1 3-5", 4, [call("post_ack", K, b"g", [1, (3, 5)])], 4),
        (
            "TGROUP CREATE k g FROM new MAXPENDING 5 DEAD d",
            None,
            [call("group_create", K, b"g", start="new", max_pending=5, dead=stream_name("d"))],
            Simple("OK"),
        ),
        ("TGROUP SET k g 5", None, [call("group_set", K, b"g", 5)], Simple("OK")),
        ("TGROUP INFO k g", GROUP, [call("group_info", K, b"g")], GROUP_MAP),
        ("TGROUP INFO k", [GROUP, GROUP], [call("groups", K)], [GROUP_MAP, GROUP_MAP]),
        (
            "TGROUP PENDING k g 1 2",
            [SimpleNamespace(offset=1, retry_ms=5, expire_ms=None, deliveries=3)],
            [call("group_pending", K, b"g", 1, 2)],
            [[1, 5, 0, 3]],
        ),
        ("TGROUP DESTROY k g", True, [call("group_destroy", K, b"g")], 1),
        ("TGROUP DESTROY k g", False, [call("group_destroy", K, b"g")], 0),
        (
            "TCONFIG k MAXLEN 0 COMPACT no",
            None,
            [call("configure", K, max_count=None, compact=False)],
            Simple("OK"),
        ),
        (
            "TCONFIG k",
            INFO,
            [call("info", K)],
            {"maxlen": 5, "maxbytes": 0, "maxage": 0, "compact": "yes"},
        ),
        (
            "TINFO k",
            INFO,
            [call("info", K)],
            {
                "first": 2, "last": 4, "length": 3, "bytes": 99, "created_at": 7, "groups": 1,
                "maxlen": 5, "maxbytes": 0, "maxage": 0, "compact": "yes",
            },
        ),
        ("TLEN k", INFO, [call("info", K)], 3),
        ("TKEYS a*", ["a", "ab"], [call("names", "a*")], ["a", "ab"]),
        ("TDEL k k", True, [call("delete", K), call("delete", K)], 2),
        ("EXISTS k k", INFO, [call("info", K), call("info", K)], 2),
        ("TYPE k", INFO, [call("info", K)], Simple("stream")),
        ("TYPE k", SimpleNamespace(created_ms=None), [call("info", K)], Simple("none")),
        ("DBSIZE", ["a", "b"], [call("names", "*")], 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("protocol", [2, 3])
def test_small_requests(line: str, answer: Any, calls: Any, reply: Any, protocol: int) -> None:
    assert ask(line, answer, protocol) == (encode(reply, protocol), calls)


# ---- writing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "TWRITE k t e", "TWRITE k t " + "e" * 300_000, "TWRITE k ENTRIES t e u f",
        "TWRITE k META ENTRIES t e m",
    ],
)  # fmt: skip
def test_entries_become_the_same_bodies_as_everywhere_else(line: str) -> None:
    words = line.encode().split()
    request = cast(Any, PARSERS["TWRITE"](words))
    columns = [request.tags, request.data, *([request.metas] if request.metas else [])]
    assert _bodies(request) == build_bodies(list(zip(*columns, strict=True)))


def test_a_tag_that_is_too_long_is_refused_in_the_short_form_too() -> None:
    with pytest.raises(InvalidError, match="tag of 65536 bytes"):
        ask("TWRITE k " + "t" * 65536 + " e", range(0, 1))


def test_a_write_passes_its_options_on() -> None:
    reply, calls = ask("TWRITE k BACKLOG 3 PRODUCER p 7 ENTRIES t e u f", range(5, 7))
    assert reply == encode([5, 6], 3)
    bodies = build_bodies([(b"t", b"e"), (b"u", b"f")])
    assert calls == [call("post_write", K, bodies, backlog=3, producer=b"p", sequence=7)]
    assert ask("TWRITE k t e", range(5, 6))[0] == b":5\r\n"


# ---- reading ----------------------------------------------------------------------------------

STREAM = StreamInfo(first=2, last=9, length=8, bytes=99)


def node(first: int, *data: bytes, meta: bytes | None = None) -> Node:
    (body,) = build_bodies([(b"t", item, meta) for item in data])
    return decode_node(node_value(body, first, 77), "a node")


def test_what_no_piece_covers_and_what_is_dead_is_null() -> None:
    hole = decode_node(hole_value(first=4, count=2, time_ms=0), "a hole")
    pieces = [(node(2, b"a", b"b", b"c"), 1, 2), (hole, 0, 2), (node(6, b"x", b"y"), 0, 2)]
    found = FoundNodes(STREAM, 1, 9, pieces)
    entries: list[Reply] = [
        None,
        None,
        [3, b"t", b"b"],
        None,
        None,
        [6, b"t", b"x"],
        [7, b"t", b"y"],
        None,
    ]
    for protocol in (2, 3):
        reply, calls = ask("TREAD k 1 8", found, protocol)
        assert reply == encode(entries, protocol)
        assert calls == [call("read_nodes", K, 1, 8, reverse=False, block_ms=0)]
        reply, calls = ask("TREAD k 8 8 REVERSE WITHINFO", found, protocol)
        assert reply == encode([[2, 9], *reversed(entries)], protocol)
        assert calls == [call("read_nodes", K, 8, 8, reverse=True, block_ms=0)]


class Part(bytes):
    """A part of a reply that counts how often it is measured."""

    measured = 0

    def __len__(self) -> int:
        Part.measured += 1
        return super().__len__()


class Evicted:
    """A stream of evicted entries alone."""

    steps = 0

    async def read_nodes(self, name: object, offset: int, step: int, **options: Any) -> FoundNodes:
        self.steps += 1
        low = max(offset + 1 - step, 0) if options["reverse"] else offset
        return FoundNodes(STREAM, low, low + step, [])


@pytest.mark.parametrize("reverse", [False, True])
def test_a_read_of_evicted_entries_works_once_per_step_and_lets_others_have_their_turn(
    reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []
    encode_found = streams._encode_found

    def counted(found: FoundNodes, request: Any, protocol: int) -> list[bytes]:
        made = encode_found(found, request, protocol)
        parts.append(len(made))
        return [Part(part) for part in made]

    monkeypatch.setattr(streams, "_encode_found", counted)
    Part.measured = 0
    turns = 0

    async def read(count: int) -> bytes:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(others())
        words = f"TREAD k {count - 1 if reverse else 0} {count}{' REVERSE' * reverse}".split()
        request = cast(Request, PARSERS["TREAD"]([word.encode() for word in words]))
        reply = await asked(request, cast(Streams, stream), 3, 1 << 30)
        beside.cancel()
        return reply

    stream = Evicted()
    count = 1_000_000
    assert asyncio.run(read(count)) == b"*%d\r\n" % count + b"_\r\n" * count
    assert stream.steps > 30
    assert sum(parts) == stream.steps, "one part for a whole step"
    assert Part.measured <= 2 * stream.steps, "each is measured once, not at every later step"
    assert turns >= stream.steps - 1


def test_a_full_read_has_time_and_meta() -> None:
    found = FoundNodes(STREAM, 2, 4, [(node(2, b"a", meta=b"m"), 0, 1), (node(3, b"b"), 0, 1)])
    reply, _ = ask("TREAD k 2 2 FULL", found, 2)
    assert reply == encode([[2, b"t", b"a", 77, b"m"], [3, b"t", b"b", 77, None]], 2)


def test_a_raw_read_has_the_nodes_as_they_are_stored() -> None:
    piece = node(2, b"a", b"b")
    found = FoundNodes(STREAM, 2, 4, [(piece, 1, 2)])
    reply, calls = ask("TREAD k 2 2 RAW BLOCK 5", found)
    assert reply == encode([[2, 9], [2, 4], [piece.value(), 1, 2]], 3)
    assert calls == [call("read_nodes", K, 2, 2, reverse=False, block_ms=5)]
    with pytest.raises(InvalidError, match="larger than 10 bytes"):
        ask("TREAD k 2 2 RAW", found, limit=10)


def test_a_read_of_nothing_can_still_have_information() -> None:
    found = FoundNodes(STREAM, 0, 0, [])
    assert ask("TREAD k 0 0 WITHINFO", found)[0] == encode([[2, 9]], 3)
    assert ask("TREAD k 0 5", found)[0] == encode([], 3)


def test_a_group_read_passes_its_options_on_and_keeps_bytes_that_are_no_text() -> None:
    node = decode_node(
        node_value(build_bodies([(b"t", b"x"), (b"", b"b"), (b"u", b"c")])[0], 8, 78), "node"
    )
    (due,) = build_bodies([(b"t\xff", b"a", b"m")])
    again = decode_node(node_value(due, 5, 77), "node")
    found = FoundByGroup(STREAM, [(again, 0, 1), (node, 1, 3)])
    reply, calls = ask("TREAD k 0 5 GROUP g FROM new RETRY 10 0 BLOCK 0 WITHINFO", found)
    assert reply == encode([[2, 9], [5, b"t\xff", b"a"], [9, b"", b"b"], [10, b"u", b"c"]], 3)
    options = {"block_ms": None, "retry_ms": 10, "expire_ms": None, "start": "new"}
    assert calls == [call("read_group_nodes", K, b"g", 5, **options)]
    delivered = Delivered(due=[(again, 0, 1)], new=[(node, 1, 3)])
    reply, _ = ask("TREAD k 0 5 GROUP g FULL", delivered, 2)
    assert reply == encode(
        [
            [5, b"t\xff", b"a", 77, b"m"],
            [9, b"", b"b", 78, None],
            [10, b"u", b"c", 78, None],
        ],
        2,
    )


async def test_a_look_of_a_group_is_encoded_while_its_commit_is_on_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded = 0
    encode_group = streams._encode_group

    def counted(*arguments: Any) -> streams.Encoded:
        nonlocal encoded
        encoded += 1
        return encode_group(*arguments)

    monkeypatch.setattr(streams, "_encode_group", counted)
    node = decode_node(node_value(build_bodies([(b"", b"x"), (b"", b"y")])[0], 8, 78), "node")
    # What is long is encoded in steps, after it; and nothing found is not the end of it.
    for found, meanwhile in (
        (Delivered(new=[(node, 0, 2)]), 1),
        (Delivered(new=[(node, 0, 2)] * 600), 0),
        (Delivered(), 0),
    ):
        recorder, encoded = Recorder(found), 0
        request = cast(Request, PARSERS["TREAD"](b"TREAD k 0 2 GROUP g".split()))
        posted = streams.post(request, cast(Streams, recorder), 2)
        assert posted is not None
        answer, finish = posted
        ((_, _, options),) = recorder.calls
        options["meanwhile"]([found])
        assert encoded == meanwhile
        late = streams.post(request, cast(Streams, Recorder(found)), 2)
        assert late is not None
        shown = await whole(finish(await answer))
        assert shown == await whole(late[1]([found])), "the same as where nothing was made ready"
        await late[0]
