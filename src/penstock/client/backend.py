"""What a handle asks of a broker, whether that is in this process or behind a socket.

Contract     The methods of `broker.streams.Streams`, which is one of the two; `remote.Remote` is
             the other. Durations are milliseconds; `block_ms` is 0 to not wait, None for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from penstock.broker.answers import Found, StreamInfo
from penstock.codec.node import Body
from penstock.log.catalogue import LogName
from penstock.stream.deliver import Start
from penstock.stream.groups import GroupInfo, Pending


class Backend(Protocol):
    async def write(
        self,
        name: LogName,
        bodies: Sequence[Body],
        *,
        backlog: int | None = None,
        producer: bytes | None = None,
        sequence: int | None = None,
    ) -> range: ...

    async def read(
        self,
        name: LogName,
        offset: int,
        count: int,
        *,
        reverse: bool = False,
        block_ms: int | None = 0,
    ) -> Found: ...

    async def to_arrow(self, name: LogName, offset: int, count: int | None) -> pa.Table: ...

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
    ) -> Found: ...

    async def ack(self, name: LogName, group: bytes, ranges: Sequence[tuple[int, int]]) -> int: ...

    async def evict(
        self, name: LogName, *, up_to: int | None = None, keep: int | None = None
    ) -> int: ...

    async def info(self, name: LogName) -> StreamInfo: ...

    async def configure(
        self,
        name: LogName,
        *,
        max_count: int | None,
        max_bytes: int | None,
        max_age_ms: int | None,
        compact: bool,
    ) -> None: ...

    async def delete(self, name: LogName) -> bool: ...

    async def names(self, pattern: str = "*") -> list[str]: ...

    async def group_create(
        self,
        name: LogName,
        group: bytes,
        *,
        start: Start = "first",
        max_pending: int = 1000,
        dead: LogName | None = None,
    ) -> None: ...

    async def group_set(self, name: LogName, group: bytes, offset: Start) -> None: ...

    async def group_info(self, name: LogName, group: bytes) -> GroupInfo: ...

    async def groups(self, name: LogName) -> list[GroupInfo]: ...

    async def group_pending(
        self, name: LogName, group: bytes, start: int, count: int
    ) -> list[Pending]: ...

    async def group_destroy(self, name: LogName, group: bytes) -> bool: ...
