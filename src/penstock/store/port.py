"""The store port: an ordered map of bytes with one fenced writer and numbered, durable commits.

Contract     Reads show durable commits only, and each call shows one consistent state. `commit(n,
             ...)` takes the dense commit number (head().n + 1), writes all or nothing, and returns
             only when the batch would survive what the location promises to survive (power loss on
             a folder, anything on a bucket). Afterwards reads show it.
Errors       `RefusedError` from `commit`: nothing was changed and the handle goes on. Any other
             UnavailableError from it is an unknown outcome, after which the handle must be dropped
             and the location opened again. FencedError: this handle is finished, for good.
             CorruptError: stored bytes are not what was written; if it is a `StoppedError`, the
             handle cannot read any more either. `commit` has no deadline of its own: the caller's
             (broker/commit.py) is the one deadline.
Epochs       Opening takes the next epoch and thereby fences every earlier handle. A fenced handle
             acknowledges nothing: `commit` checks the epoch after the batch is durable and before
             it returns, `verify` does the same for reads.
Head         The chain record of the newest commit: dense n, hash over all commits, time. Verified
             when opening.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

import msgspec

from penstock.errors import CorruptError, UnavailableError

Key = bytes
Row = tuple[bytes, bytes]
#: One commit's writes, in order; None deletes. A key occurs once.
Writes = Sequence[tuple[bytes, bytes | None]]


class Head(msgspec.Struct, frozen=True):
    """The newest commit: what the next one follows."""

    n: int  # dense number of the commit; 0 before the first one
    hash: bytes  # 16 bytes over the previous hash and this commit's batch
    time_ms: int  # the commit's time; time goes on from here


class RefusedError(UnavailableError):
    """The commit did not happen and the store is as before; the same handle goes on."""

    hint = "retry later; nothing was written"


class StoppedError(CorruptError):
    """What stands behind the handle ended by a failure of its own, over damaged bytes or a bug:
    this handle answers nothing more, another one may."""


class Reader(Protocol):
    """The half of a store that reads; also alone, of a state that does not change (reader.py)."""

    async def get(self, key: bytes) -> bytes | None: ...

    async def floor(self, key: bytes, *, low: bytes) -> Row | None:
        """The row with the greatest key in [low, key]."""
        ...

    def scan(
        self, low: bytes, high: bytes, *, reverse: bool = False, batch_rows: int = 256
    ) -> AsyncIterator[list[Row]]:
        """Rows with low <= key < high, in order, in lists of 1 to `batch_rows`."""
        ...

    async def close(self) -> None:
        """Release. Of a store that writes: flush, too; after a clean close the next opening
        replays nothing."""
        ...


class Store(Reader, Protocol):
    #: The epoch this handle owns; later handles own higher ones.
    epoch: int

    def head(self) -> Head: ...

    async def commit(
        self,
        n: int,
        writes: Writes,
        *,
        time_ms: int,
        epoch: int,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """`meanwhile` is called on the loop while the commit is on its way to where it is durable:
        once, or never. It shows nothing to anybody; its time costs nothing."""
        ...

    async def verify(self) -> None:
        """Raise FencedError unless this handle still owns the location. Cheap: every reply asks."""
        ...

    async def checkpoint(self, *, lifetime_ms: int) -> str:
        """Pin the state of now, all durable commits included, for other processes. -> its id"""
        ...

    async def renew_checkpoint(self, checkpoint_id: str, *, lifetime_ms: int) -> None: ...

    async def drop_checkpoint(self, checkpoint_id: str) -> None: ...

    async def abandon(self) -> None:
        """Release without flushing, after an unknown outcome. Never raises, never waits long."""
        ...
