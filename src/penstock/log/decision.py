"""The one pattern: a decision is a plain function from what it was shown to what it wants changed.

Contract     A `Step` is one decision of one view: `load` brings what it needs into the view (the
             only part that may wait), `decide` reads the view and returns a `Decision` without
             touching anything. The driver (the broker, a test, the simulator) runs `decide` inside
             a tick, so that it sees the writes and states of the tick's earlier steps; then it
             commits all writes at once, then it replies.
States       A state is a frozen summary of rows, kept in memory under a key (kind, id) so that
             decisions need not read. It is always derivable from rows: `load` rebuilds it. It
             replaces the older one only after the commit is durable, so memory never shows what
             could vanish.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Protocol

import msgspec

from penstock.codec.operations import Operation, Owner
from penstock.store.port import Reader

StateKey = tuple[str, Hashable]


class Timer(msgspec.Struct, frozen=True):
    """A hint to look again; rebuilt from rows on open."""

    at_ms: int
    what: StateKey


class Decision(msgspec.Struct, frozen=True):
    reply: Any = None
    #: Committed in ONE batch; None deletes.
    writes: dict[bytes, bytes | None] = msgspec.field(default_factory=dict)
    #: Summaries that replace the ones in memory when the commit is durable; None forgets.
    states: dict[StateKey, Any] = msgspec.field(default_factory=dict)
    timers: tuple[Timer, ...] = ()
    #: What it does to paged state: all of a commit's go into its one operation record (pages.py).
    operations: tuple[Operation, ...] = ()


class View(Protocol):
    """What a step is shown: durable rows and states under those of the tick's earlier steps."""

    @property
    def store(self) -> Reader:
        """Durable rows, for `load` only."""
        ...

    @property
    def now_ms(self) -> int:
        """The tick's time, for `load`."""
        ...

    def committed(self, key: StateKey) -> Any | None:
        """The state as of the last durable commit, if it is in memory: for what must not show
        entries of this very tick, whose rows no store has yet."""
        ...

    def state(self, key: StateKey) -> Any | None:
        """The newest state under this key in this tick, else in memory, else None."""
        ...

    def row(self, key: bytes) -> bytes | None:
        """A row that `load` fetched, or as the tick wrote it. Not fetched: KeyError, a bug."""
        ...

    def operations(self, owner: Owner) -> list[Operation]:
        """For `load`: the owner's committed operations that its rows may not contain. Asked for
        before the rows are read (pages.py)."""
        ...

    async def fetch(self, *keys: bytes) -> None:
        """For `load`: make these rows readable with `row`."""
        ...

    def keep(self, key: StateKey, state: Any) -> None:
        """For `load`: remember a state rebuilt from durable rows; one that is there stays."""
        ...


class Now(msgspec.Struct, frozen=True):
    ms: int  # the commit's time
    seed: bytes  # 16 random bytes of this tick


class Step(msgspec.Struct, frozen=True):
    decide: Callable[[View, Now], Decision]
    load: Callable[[View], Awaitable[None]] | None = None
    #: About how many bytes it holds on to while it waits: what waits is bounded by their sum.
    size: int = 0


class Driver(Protocol):
    """Who runs steps: broker/commit.py, or a test."""

    async def submit(self, *steps: Step) -> list[Any]:
        """Decide and commit these steps as one, all or none. -> their replies, once durable"""
        ...
