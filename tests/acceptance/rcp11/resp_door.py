"""The RESP door: stock redis-py, which knows nothing of these commands, against a server process.

Contract     `execute_command` only, RESP3 as redis-py chooses it. A connection per call in flight.
             redis-py gives up a read after 5 seconds unless told otherwise, and sends it again; who
             blocks for longer says so with `socket_timeout`, as is done here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from acceptance.rcp11.doors import (
    PATIENCE_SECONDS,
    Config,
    Edges,
    Entry,
    FullEntry,
    Group,
    Info,
    Pending,
    Start,
)
from penstock import (
    ConflictError,
    CorruptError,
    FencedError,
    InvalidError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)

KINDS: dict[str, type[PenstockError]] = {
    "INVALID": InvalidError,
    "NOTFOUND": NotFoundError,
    "CONFLICT": ConflictError,
    "UNAVAILABLE": UnavailableError,
    "FENCED": FencedError,
    "CORRUPT": CorruptError,
}

Word = str | bytes | int


class RespDoor:
    kind = "resp"

    def __init__(self, port: int) -> None:
        self.client = redis.Redis(port=port, socket_timeout=2 * PATIENCE_SECONDS)

    def ask_plainly(self, *words: Word) -> Any:
        """A command as it is, with redis-py's own errors."""
        return self.client.execute_command(*words)  # type: ignore[no-untyped-call]

    def ask(self, *words: Word) -> Any:
        """The same; an error becomes the one of `penstock` with the same meaning."""
        try:
            return self.ask_plainly(*words)
        except redis.ResponseError as error:
            kind, _, text = str(error).partition(" ")
            if kind not in KINDS:
                raise
            raise KINDS[kind](text) from None

    # -- writing

    def write(self, name: str, tag: bytes, data: bytes) -> int:
        offset: int = self.ask("TWRITE", name, tag, data)
        return offset

    def write_many(
        self,
        name: str,
        entries: Sequence[tuple[bytes, ...]],
        *,
        backlog: int | None = None,
        producer: tuple[str, int] | None = None,
    ) -> range:
        words: list[Word] = ["TWRITE", name]
        if backlog is not None:
            words += ["BACKLOG", backlog]
        if producer is not None:
            words += ["PRODUCER", *producer]
        if entries and len(entries[0]) == 3:
            words.append("META")
        words.append("ENTRIES")
        for entry in entries:
            words += entry
        first, last = self.ask(*words)
        return range(first, last + 1)

    # -- reading

    def read(
        self,
        name: str,
        offset: int,
        count: int,
        *,
        block_ms: int | None = 0,
        reverse: bool = False,
    ) -> list[Entry | None]:
        options: list[Word] = ["REVERSE"] if reverse else []
        return _entries(self.ask("TREAD", name, offset, count, *_block(block_ms), *options))

    def read_full(self, name: str, offset: int, count: int) -> list[FullEntry | None]:
        found = self.ask("TREAD", name, offset, count, "FULL")
        return [None if entry is None else FullEntry(*entry) for entry in found]

    def read_withinfo(
        self, name: str, offset: int, count: int, *, block_ms: int | None = 0
    ) -> tuple[Edges, list[Entry | None]]:
        edges, *found = self.ask("TREAD", name, offset, count, "WITHINFO", *_block(block_ms))
        return Edges(*edges), _entries(found)

    def read_group(
        self,
        name: str,
        group: str,
        count: int,
        *,
        block_ms: int | None = 0,
        retry_ms: int | None = None,
        expire_ms: int | None = None,
        start: Start | None = None,
    ) -> list[Entry]:
        words: list[Word] = ["TREAD", name, 0, count, *_block(block_ms), "GROUP", group]
        if start is not None:
            words += ["FROM", start]
        if retry_ms is not None:
            words += ["RETRY", retry_ms, expire_ms or 0]
        return [Entry(*entry) for entry in self.ask(*words)]

    # -- groups

    def ack(self, name: str, group: str, *offsets: int | range) -> int:
        words = [f"{o[0]}-{o[-1]}" if isinstance(o, range) else str(o) for o in offsets]
        count: int = self.ask("TACK", name, group, *words)
        return count

    def group_create(
        self,
        name: str,
        group: str,
        *,
        start: Start | None = None,
        max_pending: int | None = None,
        dead: str | None = None,
    ) -> None:
        words: list[Word] = ["TGROUP", "CREATE", name, group]
        if start is not None:
            words += ["FROM", start]
        if max_pending is not None:
            words += ["MAXPENDING", max_pending]
        if dead is not None:
            words += ["DEAD", dead]
        assert self.ask(*words) == b"OK"

    def group_set(self, name: str, group: str, offset: Start) -> None:
        assert self.ask("TGROUP", "SET", name, group, offset) == b"OK"

    def group_info(self, name: str, group: str) -> Group:
        return _group(self.ask("TGROUP", "INFO", name, group))

    def groups(self, name: str) -> list[Group]:
        return [_group(found) for found in self.ask("TGROUP", "INFO", name)]

    def group_pending(self, name: str, group: str) -> list[Pending]:
        return [
            Pending(offset, retry_ms, expire_ms or None, deliveries)
            for offset, retry_ms, expire_ms, deliveries in self.ask(
                "TGROUP", "PENDING", name, group
            )
        ]

    def group_destroy(self, name: str, group: str) -> bool:
        return {0: False, 1: True}[self.ask("TGROUP", "DESTROY", name, group)]

    # -- the stream itself

    def evict(self, name: str, *, up_to: int | None = None, keep: int | None = None) -> int:
        assert (up_to is None) != (keep is None)
        count: int = self.ask("TEVICT", name, f"-{keep}" if up_to is None else up_to)
        return count

    def configure(self, name: str, config: Config) -> None:
        words: list[Word] = ["TCONFIG", name, "MAXLEN", config.max_count or 0]
        words += ["MAXBYTES", config.max_bytes or 0, "MAXAGE", config.max_age_ms or 0]
        words += ["COMPACT", "yes" if config.compact else "no"]
        assert self.ask(*words) == b"OK"

    def info(self, name: str) -> Info:
        found = self.ask("TINFO", name)
        config = Config(
            found.pop(b"maxlen") or None,
            found.pop(b"maxbytes") or None,
            found.pop(b"maxage") or None,
            {b"yes": True, b"no": False}[found.pop(b"compact")],
        )
        created_ms = found.pop(b"created_at")
        named = {key.decode(): value for key, value in found.items()}
        return Info(created_ms=created_ms, config=config, **named)

    def length(self, name: str) -> int:
        count: int = self.ask("TLEN", name)
        return count

    def keys(self, pattern: str) -> list[str]:
        return [name.decode() for name in self.ask("TKEYS", pattern)]

    def delete(self, name: str) -> bool:
        return {0: False, 1: True}[self.ask("TDEL", name)]

    def waiting(self) -> int:
        count: int = self.client.info("clients")["blocked_clients"]
        return count

    def close(self) -> None:
        self.client.close()


def _block(block_ms: int | None) -> list[Word]:
    return [] if block_ms == 0 else ["BLOCK", block_ms or 0]


def _entries(found: list[Any]) -> list[Entry | None]:
    return [None if entry is None else Entry(*entry) for entry in found]


def _group(found: dict[bytes, Any]) -> Group:
    named = {key.decode(): value for key, value in found.items()}
    named["name"] = named["name"].decode()
    named["dead"] = named["dead"] and named["dead"].decode()
    return Group(**named)
