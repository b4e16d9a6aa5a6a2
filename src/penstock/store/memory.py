"""The store in memory: deterministic, and able to fail in every way a real one can, when told to.

Contract     A `Store` (port.py) for tests and the simulator. A `MemoryDisk` is what survives: the
             durable rows, the head and the epoch. A `MemoryStore` is one process's handle over it:
             `MemoryStore.open` takes the next epoch, and every earlier handle is fenced.
             Nothing waits unless a fault says so, and nothing here draws a random number: what goes
             wrong is decided by the function given to `Faults`, time passes on the given Clock.
Commit       staged -- before --> durable -- after --> epoch checked, acknowledged
             A `Fault` is a list of actions at the two instants `before` and `after`. What is staged
             belongs to the handle and dies with it; what is durable belongs to the disk.
                 latency             Delay at either        refused            Refuse before
                 unknown, lost       Lose before            unknown, applied   Lose after
                 fenced, lost        Fence before           fenced, applied    Fence after
                 hangs               Stall at either        process dies       Crash at either
             Other calls have the same two instants around their effect.
Reads        Each answers from one immutable state: the newest durable one this handle made or found
             when it opened. A scan keeps the state of the moment its first list is asked for,
             whatever is committed meanwhile. A fenced handle that has not noticed answers from the
             old state, as a real one does: that is what `verify` is for.
Invariants   M1  no read shows a batch before it is durable
             M2  a batch is durable as a whole or not at all, and only under the disk's epoch
             M3  after an unknown outcome, a fence or a crash the handle never answers again
Not here     Reading at a checkpoint: checkpoints here are ids with lifetimes, nothing more.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import Literal, assert_never

import msgspec

from penstock.clock import Clock
from penstock.codec.chain import NO_HASH, chain_hash, encode_batch
from penstock.errors import FencedError, InvalidError, NotFoundError, UnavailableError
from penstock.store.port import Head, RefusedError, Row, Writes

#: Rows of a chunk before it is split: copying one costs about as much as finding it.
CHUNK_ROWS_MAX = 256


class Rows:
    """A sorted map that never changes: `written` returns another one that shares what it can."""

    __slots__ = ("_chunks", "_lows")

    def __init__(self) -> None:
        #: The first key of each chunk; chunks are in order and never empty.
        self._lows: list[bytes] = []
        #: Keys and values of each chunk. Shared between versions, so replaced and never modified.
        self._chunks: list[tuple[list[bytes], list[bytes]]] = []

    def get(self, key: bytes) -> bytes | None:
        row = self.floor(key)
        return row[1] if row is not None and row[0] == key else None

    def floor(self, key: bytes) -> Row | None:
        """The row with the greatest key at or below `key`."""
        at = bisect_right(self._lows, key) - 1
        if at < 0:
            return None
        keys, values = self._chunks[at]
        place = bisect_right(keys, key) - 1
        return keys[place], values[place]

    def range(self, low: bytes, high: bytes, *, reverse: bool) -> Iterator[Row]:
        """Rows with low <= key < high."""
        start = max(bisect_right(self._lows, low) - 1, 0)
        end = bisect_left(self._lows, high)
        step = -1 if reverse else 1
        for keys, values in self._chunks[start:end][::step]:
            within = slice(bisect_left(keys, low), bisect_left(keys, high))
            yield from zip(keys[within][::step], values[within][::step], strict=True)

    def written(self, writes: Writes) -> Rows:
        rows = Rows()
        rows._lows, rows._chunks = self._lows.copy(), self._chunks.copy()
        for key, value in writes:
            rows._write(key, value)
        return rows

    def _write(self, key: bytes, value: bytes | None) -> None:
        at = max(bisect_right(self._lows, key) - 1, 0)
        keys, values = self._chunks[at] if self._chunks else ([], [])
        keys, values = keys.copy(), values.copy()
        place = bisect_left(keys, key)
        there = slice(place, place + (keys[place : place + 1] == [key]))
        keys[there], values[there] = ([], []) if value is None else ([key], [value])
        half = len(keys) // 2 if len(keys) > CHUNK_ROWS_MAX else len(keys)
        parts = [(keys[:half], values[:half]), (keys[half:], values[half:])]
        self._chunks[at : at + 1] = parts = [part for part in parts if part[0]]
        self._lows[at : at + 1] = [part[0][0] for part in parts]


class Delay(msgspec.Struct, frozen=True):
    """The call takes this long, on the store's clock."""

    seconds: float


class Stall:
    """The call hangs until `release` or until it is cancelled."""

    def __init__(self) -> None:
        #: Set when a call hangs here: wait for it instead of guessing how long that takes.
        self.reached = asyncio.Event()
        self._released = asyncio.Event()

    def release(self) -> None:
        self._released.set()

    async def hang(self) -> None:
        self.reached.set()
        await self._released.wait()


class Refuse(msgspec.Struct, frozen=True):
    """The call fails, nothing was changed, and that is known."""


class Lose(msgspec.Struct, frozen=True):
    """The answer is lost: a commit has an unknown outcome."""


class Fence(msgspec.Struct, frozen=True):
    """Another handle takes the epoch."""


class Crash(msgspec.Struct, frozen=True):
    """The process that owns the handle dies."""


Action = Delay | Stall | Refuse | Lose | Fence | Crash
Operation = Literal["open", "get", "floor", "scan", "commit", "verify", "checkpoint"]


class Fault(msgspec.Struct, frozen=True):
    #: In this order, before the call has its effect: a commit is staged, not durable.
    before: Sequence[Action] = ()
    #: In this order, after the effect and before the answer: a commit is durable.
    after: Sequence[Action] = ()

    def __post_init__(self) -> None:
        refused_late = any(isinstance(action, Refuse) for action in self.after)
        assert not refused_late, "Refuse says that nothing was changed"


class Call(msgspec.Struct, frozen=True):
    """What a fault decision is shown: a call that is about to begin."""

    operation: Operation
    nth: int  # 1 for the first call of this operation since the Faults began
    epoch: int  # of the handle; 0 for an opening
    n: int  # a commit's number; otherwise that of the newest commit the handle knows


NO_FAULT = Fault()


class Faults:
    """Asked at every call what goes wrong with it. A scan is asked again for each of its lists."""

    def __init__(self, decide: Callable[[Call], Fault] = lambda _: NO_FAULT) -> None:
        self._decide = decide
        self._calls: Counter[Operation] = Counter()
        self._script: dict[Operation, deque[Fault]] = {}

    def next(self, operation: Operation, *faults: Fault) -> None:
        """The next calls of this operation get these faults, whatever `decide` would say."""
        self._script.setdefault(operation, deque()).extend(faults)

    def consult(self, operation: Operation, *, epoch: int, n: int) -> Fault:
        self._calls[operation] += 1
        script = self._script.get(operation)
        if script:
            return script.popleft()
        call = Call(operation=operation, nth=self._calls[operation], epoch=epoch, n=n)
        return self._decide(call)


class Crashed(BaseException):
    """The process is dead. Not an Exception: a dead process handles no error."""


class MemoryDisk:
    """What outlives every handle. Tests may look; only handles write."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.head = Head(n=0, hash=NO_HASH, time_ms=0)
        #: Of the newest handle; 0 before the first one.
        self.epoch = 0
        #: When each checkpoint ends, in wall clock milliseconds.
        self.checkpoints: dict[str, int] = {}
        self.checkpoints_made = 0

    def fence(self) -> int:
        """Take the next epoch, as an opening does."""
        self.epoch += 1
        return self.epoch


class _State(Enum):
    OPEN = "open"
    CLOSED = "closed"
    FENCED = "fenced"
    UNCERTAIN = "uncertain"
    CRASHED = "crashed"


class MemoryStore:
    """One handle. See the head of this file; the methods' contracts are those of the port."""

    def __init__(self, disk: MemoryDisk, clock: Clock, faults: Faults) -> None:
        """Use `open`: this one takes no epoch."""
        self.epoch = disk.epoch
        self._disk = disk
        self._clock = clock
        self._faults = faults
        self._rows = disk.rows
        self._head = disk.head
        self._state = _State.OPEN
        self._committing = False

    @classmethod
    async def open(
        cls, disk: MemoryDisk, *, clock: Clock, faults: Faults | None = None
    ) -> MemoryStore:
        faults = faults or Faults()
        fault = faults.consult("open", epoch=0, n=disk.head.n)
        # Not a handle yet: it only lends its clock and its disk to what goes wrong.
        opening = cls(disk, clock, faults)
        await opening._suffer("open", fault.before)
        disk.fence()
        store = cls(disk, clock, faults)
        await store._suffer("open", fault.after)
        return store

    def head(self) -> Head:
        return self._head

    async def get(self, key: bytes) -> bytes | None:
        fault = self._begin("get")
        await self._suffer("get", fault.before)
        value = self._rows.get(key)
        await self._suffer("get", fault.after)
        return value

    async def floor(self, key: bytes, *, low: bytes) -> Row | None:
        fault = self._begin("floor")
        await self._suffer("floor", fault.before)
        row = self._rows.floor(key)
        await self._suffer("floor", fault.after)
        return row if row is not None and row[0] >= low else None

    async def scan(
        self, low: bytes, high: bytes, *, reverse: bool = False, batch_rows: int = 256
    ) -> AsyncIterator[list[Row]]:
        assert batch_rows > 0, "a list holds at least one row"
        self._check()
        found = self._rows.range(low, high, reverse=reverse)
        while True:
            fault = self._begin("scan")
            await self._suffer("scan", fault.before)
            rows = list(islice(found, batch_rows))
            await self._suffer("scan", fault.after)
            if not rows:
                return
            yield rows

    async def commit(
        self,
        n: int,
        writes: Writes,
        *,
        time_ms: int,
        epoch: int,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        assert self._state is not _State.UNCERTAIN, "the handle must be dropped, not used"
        self._check()
        assert not self._committing, "one commit is in flight"
        assert len({key for key, _ in writes}) == len(writes), "a key occurs once in a batch"
        assert all(key for key, _ in writes), "a key is not empty"
        if n != self._head.n + 1:
            raise InvalidError(f"commit {n} does not follow commit {self._head.n}")
        if epoch != self.epoch:
            raise FencedError(f"commit {n} expects epoch {epoch}, the handle owns {self.epoch}")
        fault = self._begin("commit", n=n)
        self._committing = True
        if meanwhile is not None:
            meanwhile()
        try:
            await self._suffer("commit", fault.before)
            self._make_durable(n, writes, time_ms)
            await self._suffer("commit", fault.after)
            # Durable is not yet acknowledged: whoever took the epoch meanwhile answers from now on.
            self._check_epoch()
        except InvalidError:
            # Invalid would promise that nothing was changed.
            raise UnavailableError(f"the handle was released during commit {n}") from None
        except (UnavailableError, asyncio.CancelledError) as error:
            # A cancelled call may have had its effect, so the caller knows as little as after Lose.
            if not isinstance(error, RefusedError) and self._state is _State.OPEN:
                self._state = _State.UNCERTAIN
            raise
        finally:
            self._committing = False

    async def verify(self) -> None:
        fault = self._begin("verify")
        await self._suffer("verify", fault.before)
        self._check_epoch()
        await self._suffer("verify", fault.after)

    async def checkpoint(self, *, lifetime_ms: int) -> str:
        fault = self._begin("checkpoint")
        end_ms = self._checkpoint_end_ms(lifetime_ms)
        await self._suffer("checkpoint", fault.before)
        self._check_epoch()
        self._disk.checkpoints_made += 1
        checkpoint_id = f"memory-{self._disk.checkpoints_made}"
        self._disk.checkpoints[checkpoint_id] = end_ms
        await self._suffer("checkpoint", fault.after)
        return checkpoint_id

    async def renew_checkpoint(self, checkpoint_id: str, *, lifetime_ms: int) -> None:
        fault = self._begin("checkpoint")
        end_ms = self._checkpoint_end_ms(lifetime_ms)
        await self._suffer("checkpoint", fault.before)
        self._check_checkpoint(checkpoint_id)
        self._disk.checkpoints[checkpoint_id] = end_ms
        await self._suffer("checkpoint", fault.after)

    async def drop_checkpoint(self, checkpoint_id: str) -> None:
        fault = self._begin("checkpoint")
        await self._suffer("checkpoint", fault.before)
        self._check_checkpoint(checkpoint_id)
        del self._disk.checkpoints[checkpoint_id]
        await self._suffer("checkpoint", fault.after)

    async def close(self) -> None:
        if self._state is _State.CRASHED:
            self._check()
        assert not self._committing, "a commit is in flight: wait for it, or abandon the handle"
        self._state = _State.CLOSED

    async def abandon(self) -> None:
        if self._state is not _State.CRASHED:
            self._state = _State.CLOSED

    def crash(self) -> None:
        """The process dies now: what is staged vanishes, and calls in flight end in Crashed."""
        self._state = _State.CRASHED

    def _begin(self, operation: Operation, *, n: int | None = None) -> Fault:
        self._check()
        n = self._head.n if n is None else n
        return self._faults.consult(operation, epoch=self.epoch, n=n)

    async def _suffer(self, operation: Operation, actions: Sequence[Action]) -> None:
        """Let these things happen to a call; returns only if the call goes on."""
        for action in actions:
            match action:
                case Delay(seconds=seconds):
                    await self._clock.sleep(seconds)
                case Stall():
                    await action.hang()
                case Refuse():
                    if operation == "commit":
                        raise RefusedError("the store refused the commit")
                    raise UnavailableError(f"the store refused: {operation}")
                case Lose():
                    raise UnavailableError(f"the store did not answer: {operation}")
                case Fence():
                    self._disk.fence()
                case Crash():
                    self.crash()
                case _:
                    assert_never(action)
            # The handle may have been closed, or its process killed, while the call waited.
            self._check()

    def _make_durable(self, n: int, writes: Writes, time_ms: int) -> None:
        """The one instant at which a batch passes from the handle to the disk."""
        self._check_epoch()
        assert self._disk.head == self._head, "only the owner of the epoch writes"
        digest = chain_hash(self._head.hash, n, time_ms, encode_batch(writes))
        self._head = Head(n=n, hash=digest, time_ms=time_ms)
        self._rows = self._rows.written(writes)
        self._disk.rows, self._disk.head = self._rows, self._head

    def _check(self) -> None:
        match self._state:
            case _State.OPEN:
                return
            case _State.CLOSED:
                raise InvalidError("the store is closed", hint="open the location again")
            case _State.FENCED:
                raise FencedError(f"epoch {self.epoch} is over")
            case _State.UNCERTAIN:
                raise UnavailableError("the outcome of the last commit is unknown")
            case _State.CRASHED:
                raise Crashed
            case _:
                assert_never(self._state)

    def _check_epoch(self) -> None:
        self._check()
        if self._disk.epoch != self.epoch:
            self._state = _State.FENCED
            raise FencedError(f"epoch {self._disk.epoch} took over from epoch {self.epoch}")

    def _checkpoint_end_ms(self, lifetime_ms: int) -> int:
        if lifetime_ms <= 0:
            raise InvalidError(f"a checkpoint must live longer than {lifetime_ms} ms")
        return self._clock.wall_ms() + lifetime_ms

    def _check_checkpoint(self, checkpoint_id: str) -> None:
        self._check_epoch()
        # An expired one is gone at once, so that nobody comes to rely on slow collection.
        if self._disk.checkpoints.get(checkpoint_id, 0) <= self._clock.wall_ms():
            self._disk.checkpoints.pop(checkpoint_id, None)
            raise NotFoundError(f"no checkpoint {checkpoint_id!r}")
