"""A broker behind a socket: the methods of `broker.streams.Streams`, as RESP requests.

Contract     Quick requests share one connection and are pipelined; a read that waits has one of its
             own, from a small pool, because replies come in order. A third connection carries
             nothing but pings: it tells that the broker is there, also while nobody asks anything,
             and its end is noticed at once. LostError: the broker is gone or fenced, the outcome of
             what was in flight is unknown.
Nodes        Plain reads and Arrow get nodes as they are stored (TREAD RAW) and cut the entries out
             here, in pieces, so that no reply grows without bound.
Not here     Queues (remote_queues.py), bulk (bulkbackend.py), finding a broker (seek.py), what to
             do when one is lost (link.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from penstock.broker.answers import Found, FoundNodes, StreamInfo
from penstock.broker.election import TICK_SECONDS, Silence, SocketName
from penstock.client.bulkbackend import RemoteBulk
from penstock.client.graphbackend import RemoteGraphs
from penstock.client.remote_queues import RemoteQueues
from penstock.client.remote_topics import RemoteTopics
from penstock.client.shapes import group_info, stream_info
from penstock.client.sourcebackend import RemoteSources
from penstock.client.wire import Address, Connection, LostError, discard
from penstock.clock import Clock
from penstock.codec.node import Body, body_lists, decode_node, node_value
from penstock.errors import InvalidError, UnavailableError
from penstock.log.arrow import SCHEMA, to_batch
from penstock.log.catalogue import LogName
from penstock.log.read import Message, entries_in_steps
from penstock.stream.deliver import Start
from penstock.stream.groups import GroupInfo, Pending

#: So many entries are asked for at first, then as many as make a piece of this size.
PIECE_ENTRIES = 1000
PIECE_ENTRIES_MAX = 32_000
PIECE_BYTES = 8 << 20
#: What a request may have at most, a little below the server's limit for a frame.
REQUEST_BYTES_MAX = 127 << 20
#: Connections of reads that waited are kept for the next ones, up to so many.
POOL_MAX = 4
PING_SECONDS = 1.0
#: How many offsets a request for everything asks for.
_ALL = (1 << 63) - 1

Argument = str | bytes | int


class Remote:
    def __init__(
        self,
        heart: Connection,
        address: Address,
        *,
        clock: Clock,
        deadline: float,
        password: str | None = None,
        name: SocketName | None = None,
    ) -> None:
        self._heart = heart
        self._address = address
        self._clock = clock
        self._deadline = deadline
        self._password = password
        self._name = name  # keeps the address of a long path valid
        #: Called once, when the broker is gone or silent for too long.
        self.on_lost: Callable[[], None] = lambda: None
        self._quick: Connection | None = None
        self._opening = asyncio.Lock()
        self._pool: list[Connection] = []
        self._used: set[Connection] = set()
        self.lost = False
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: It was there and gave no answer: stopped, or it hangs.
        self.hung = False
        self._listener = asyncio.get_running_loop().create_task(self._listen())
        self.streams = self
        self.queues = RemoteQueues(self)
        self.topics = RemoteTopics(self)
        self.bulk = RemoteBulk(self)
        self.sources = RemoteSources(self)
        self.graphs = RemoteGraphs(self)

    # -- being there

    async def _listen(self) -> None:
        silence = Silence(self._clock)
        while self._heart.alive:
            pong = asyncio.ensure_future(self._heart.ask("PING"))
            pong.add_done_callback(_look_at)
            silence.heard()
            while not pong.done() and not silence.too_long:
                await asyncio.wait({pong}, timeout=TICK_SECONDS)
                silence.tick()
            if not pong.done() or pong.cancelled() or pong.exception() is not None:
                self.hung = not pong.done()
                pong.cancel()
                break
            await asyncio.wait({self._heart.ended}, timeout=PING_SECONDS)
        self._lose()

    def _lose(self) -> None:
        if not self.lost:
            self.lost = True
            self._close_all()
            self.on_lost()

    def close(self) -> None:
        self.lost = True
        self._listener.cancel()
        self._close_all()

    def _close_all(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
        for connection in (self._heart, self._quick, *self._pool, *self._used):
            if connection is not None:
                connection.close()
        self._pool.clear()
        if self._name is not None:
            self._name.close()

    # -- asking

    async def _open(self) -> Connection:
        opening = asyncio.ensure_future(Connection.open(self._address, password=self._password))
        try:
            # A stopped broker accepts connections and never says hello: do not wait for that.
            either: list[asyncio.Future[Any]] = [opening, self._gone]
            await asyncio.wait(
                either,
                timeout=self._deadline,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not opening.done() or self.lost:
                raise LostError("the broker accepts no connection")
            return opening.result()
        except BaseException as error:
            discard(opening)
            if isinstance(error, OSError):
                raise LostError(f"the broker accepts no connection: {error}") from None
            raise

    async def ask(self, *request: Argument) -> Any:
        quick = self._quick
        if quick is None or not quick.alive:
            async with self._opening:
                if self._quick is None or not self._quick.alive:
                    self._quick = await self._open()
                quick = self._quick
        try:
            async with asyncio.timeout(self._deadline):
                return await quick.send(request)
        except TimeoutError:
            raise UnavailableError("the broker did not answer in time") from None

    async def ask_waiting(self, block_ms: int | None, *request: Argument) -> Any:
        """A request that may wait so long, and says so itself."""
        if block_ms == 0:
            return await self.ask(*request)
        connection = self._pool.pop() if self._pool else await self._open()
        self._used.add(connection)
        limit = None if block_ms is None else block_ms / 1000 + self._deadline
        try:
            async with asyncio.timeout(limit):
                reply = await connection.send(request)
        except BaseException as error:
            # Whoever gave up waiting must not be handed anything any more.
            connection.close()
            if isinstance(error, TimeoutError):
                raise UnavailableError("the broker did not answer in time") from None
            raise
        finally:
            self._used.discard(connection)
        if len(self._pool) < POOL_MAX and not self.lost:
            self._pool.append(connection)
        else:
            connection.close()
        return reply

    # -- writes

    async def write(
        self,
        name: LogName,
        bodies: Sequence[Body],
        *,
        backlog: int | None = None,
        producer: bytes | None = None,
        sequence: int | None = None,
    ) -> range:
        if (producer is None) != (sequence is None):
            raise InvalidError("producer and sequence go together")
        if not bodies:
            # No entry, no request: nothing is made, evicted or remembered.
            end = (await self.info(name)).last + 1
            return range(end, end)
        head: list[Argument] = ["TWRITE", name.name]
        if backlog is not None:
            head += ["BACKLOG", backlog]
        if producer is not None and sequence is not None:
            head += ["PRODUCER", producer, sequence]
        columns = [_lists(body) for body in bodies]
        with_meta = any(metas is not None for _, _, metas in columns)
        head += ["META", "ENTRIES"] if with_meta else ["ENTRIES"]
        for data, tags, metas in columns:
            empty = [b""] * len(data)
            lists = (tags or empty, data, metas or empty) if with_meta else (tags or empty, data)
            head += [item for entry in zip(*lists, strict=True) for item in entry]
        size = sum(body.raw_bytes for body in bodies)
        if size > REQUEST_BYTES_MAX:
            raise InvalidError(
                f"a batch of {size:,} bytes; over a socket at most {REQUEST_BYTES_MAX:,} fit",
                hint="write it in parts, or in the process that is the broker",
            )
        first, last = await self.ask(*head)
        return range(first, last + 1)

    async def evict(
        self, name: LogName, *, up_to: int | None = None, keep: int | None = None
    ) -> int:
        if keep is not None:
            return await self._count("TEVICT", name.name, f"-{keep}")  # -0 keeps nothing
        assert up_to is not None
        return await self._count("TEVICT", name.name, up_to)

    async def _count(self, *request: Argument) -> int:
        return int(await self.ask(*request))

    # -- reads

    async def read(
        self,
        name: LogName,
        offset: int,
        count: int,
        *,
        reverse: bool = False,
        block_ms: int | None = 0,
    ) -> Found:
        found = await self.read_nodes(name, offset, count, reverse=reverse, block_ms=block_ms)
        entries = await entries_in_steps(found.pieces, found.low, found.high, reverse=reverse)
        return Found(found.info, entries)

    async def read_nodes(
        self,
        name: LogName,
        offset: int,
        count: int | None,
        *,
        reverse: bool = False,
        block_ms: int | None = 0,
    ) -> FoundNodes:
        wanted = _ALL if count is None else count
        found, step = await self._read_piece(
            name, offset, wanted, PIECE_ENTRIES, reverse=reverse, block_ms=block_ms
        )
        # The rest, up to what the stream held at the first look.
        while found.low < found.high:
            left = wanted - (found.high - found.low)
            if not reverse:
                left = min(left, found.info.last + 1 - found.high)
            at = found.low - 1 if reverse else found.high
            if left <= 0 or at < 0:
                break
            more, step = await self._read_piece(name, at, left, step, reverse=reverse)
            # A stream that was deleted, and perhaps made again meanwhile, is another one.
            if more.low == more.high or at != (more.high - 1 if reverse else more.low):
                break
            pieces = more.pieces + found.pieces if reverse else found.pieces + more.pieces
            low, high = min(found.low, more.low), max(found.high, more.high)
            found = FoundNodes(found.info, low, high, pieces)
        return found

    async def _read_piece(
        self,
        name: LogName,
        offset: int,
        count: int,
        step: int,
        *,
        reverse: bool,
        block_ms: int | None = 0,
    ) -> tuple[FoundNodes, int]:
        """-> a piece, and how many entries the next one should have"""
        direction = ("RAW", "REVERSE") if reverse else ("RAW",)
        while True:
            asked = min(count, step)
            request = ("TREAD", name.name, offset, asked, *direction)
            try:
                reply = await self.ask_waiting(block_ms, *request, *_block(block_ms))
                break
            except InvalidError:
                if asked <= 1:
                    raise
                step = asked // 8 or 1  # the entries are so large that the reply was refused
        (first, last), (low, high), *nodes = reply
        pieces = [(decode_node(value, "a node"), start, stop) for value, start, stop in nodes]
        size = sum(len(value) for value, _, _ in nodes) or 1
        step = min(PIECE_ENTRIES_MAX, max(1, (high - low) * PIECE_BYTES // size))
        info = StreamInfo(first, last, last + 1 - first, 0)
        return FoundNodes(info, low, high, pieces), step

    async def to_arrow(self, name: LogName, offset: int, count: int | None) -> pa.Table:
        found = await self.read_nodes(name, offset, count)
        return pa.Table.from_batches([to_batch(*piece) for piece in found.pieces], SCHEMA)

    async def info(self, name: LogName) -> StreamInfo:
        return stream_info(await self.ask("TINFO", name.name))

    async def names(self, pattern: str = "*") -> list[str]:
        return [key.decode() for key in await self.ask("TKEYS", pattern)]

    # -- the stream itself

    async def configure(
        self,
        name: LogName,
        *,
        max_count: int | None,
        max_bytes: int | None,
        max_age_ms: int | None,
        compact: bool,
    ) -> None:
        limits: list[Argument] = []
        for word, value in (
            ("MAXLEN", max_count),
            ("MAXBYTES", max_bytes),
            ("MAXAGE", max_age_ms),
        ):
            limits += [word, value or 0]
        await self.ask("TCONFIG", name.name, *limits, "COMPACT", "yes" if compact else "no")

    async def delete(self, name: LogName) -> bool:
        return bool(await self.ask("TDEL", name.name))

    # -- groups

    async def read_group(
        self,
        name: LogName,
        group: bytes,
        count: int,
        *,
        block_ms: int | None = 0,
        retry_ms: int | None = None,
        expire_ms: int | None = None,
        start: Start = "first",
    ) -> Found:
        request: list[Argument] = ["TREAD", name.name, 0, count, "GROUP", group, "FROM", start]
        if retry_ms is not None:
            request += ["RETRY", retry_ms, expire_ms or 0]
        request += ["FULL", "WITHINFO", *_block(block_ms)]
        (first, last), *rows = await self.ask_waiting(block_ms, *request)
        entries: list[Message | None] = [
            Message(offset, tag.decode("utf-8", "surrogateescape"), data, time_ms, meta)
            for offset, tag, data, time_ms, meta in rows
        ]
        return Found(StreamInfo(first, last, last + 1 - first, 0), entries)

    async def ack(self, name: LogName, group: bytes, ranges: Sequence[tuple[int, int]]) -> int:
        if not ranges:
            return 0
        texts = [f"{start}-{end}" for start, end in ranges]
        return await self._count("TACK", name.name, group, *texts)

    async def group_create(
        self,
        name: LogName,
        group: bytes,
        *,
        start: Start = "first",
        max_pending: int = 1000,
        dead: LogName | None = None,
    ) -> None:
        request: list[Argument] = ["TGROUP", "CREATE", name.name, group, "FROM", start]
        request += ["MAXPENDING", max_pending]
        if dead is not None:
            request += ["DEAD", dead.name]
        await self.ask(*request)

    async def group_set(self, name: LogName, group: bytes, offset: Start) -> None:
        await self.ask("TGROUP", "SET", name.name, group, offset)

    async def group_info(self, name: LogName, group: bytes) -> GroupInfo:
        return group_info(await self.ask("TGROUP", "INFO", name.name, group))

    async def groups(self, name: LogName) -> list[GroupInfo]:
        return [group_info(found) for found in await self.ask("TGROUP", "INFO", name.name)]

    async def group_pending(
        self, name: LogName, group: bytes, start: int, count: int
    ) -> list[Pending]:
        rows = await self.ask("TGROUP", "PENDING", name.name, group, start, count)
        return [
            Pending(offset, retry_ms, expire_ms or None, deliveries)
            for offset, retry_ms, expire_ms, deliveries in rows
        ]

    async def group_destroy(self, name: LogName, group: bytes) -> bool:
        return bool(await self.ask("TGROUP", "DESTROY", name.name, group))


def _block(block_ms: int | None) -> tuple[Argument, ...]:
    return () if block_ms == 0 else ("BLOCK", block_ms or 0)


def _look_at(pong: asyncio.Future[Any]) -> None:
    """Where the listener was ended before the answer came, nobody else hears of its failure."""
    if not pong.cancelled():
        pong.exception()


def _lists(body: Body) -> tuple[list[bytes], list[bytes] | None, list[bytes] | None]:
    """Data, tags and meta of a body; None where no entry has any."""
    small = body_lists(body)
    if small is not None:
        return small
    node = decode_node(node_value(body, 0, 0), "a batch")
    metas = None
    if node.meta is not None:
        metas = [meta or b"" for meta in node.meta_list(0, node.count)]
    tags = None if node.tags is None else node.tag_list(0, node.count)
    return node.data_list(0, node.count), tags, metas
