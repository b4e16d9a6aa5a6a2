"""Paged state: large, often changed lists as pages, with one operation record per commit.

A pending list, a queue or a shard changes with every request. Writing its pages each time would
cost far more than the change, so a decision returns *operations*: all of a commit's go into one
row, keyed by the commit's number, and the pages in memory are replaced when it is durable. Pages
are written later, many changes at once, and then the operations they contain can go.

Contract     `Tail` holds the operations that pages in the store may not contain yet, as they were
             committed. Whoever opens an owner's state asks for them first, then reads its rows and
             applies to each row those that are newer than it (by sequence): outside of a tick rows
             may be written meanwhile, and what they contain leaves the tail.
             `flushed(owner, sequence)` says that the rows contain everything up to there; records
             that nobody needs can be trimmed then.
Invariants   P1  an owner's sequences are dense and rise with the commits
             P2  a record is removed only when the rows of every owner in it contain it
Not here     what an operation does, and how pages are laid out: the views.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from penstock.codec.keys import KeyType, open_key, operations_key, prefix, prefix_end
from penstock.codec.operations import Operation, Owner, decode_operations
from penstock.errors import CorruptError
from penstock.log.decision import Decision, Now, Step, View
from penstock.store.port import Reader

#: From so many records or bytes on, the oldest owners' pages are written.
TAIL_RECORDS = 512
TAIL_BYTES = 8 << 20
TRIM_ROWS = 1000


class Tail:
    def __init__(self) -> None:
        #: Per owner, oldest first: commit number and operation.
        self._by_owner: dict[Owner, deque[tuple[int, Operation]]] = {}
        #: Records in the store: commit number and size, oldest first.
        self._records: deque[tuple[int, int]] = deque()
        self._bytes = 0

    async def load(self, store: Reader) -> None:
        """Everything from the rows: after opening."""
        self._by_owner.clear()
        self._records.clear()
        self._bytes = 0
        low = prefix(KeyType.OPERATIONS)
        async for rows in store.scan(low, prefix_end(low)):
            for key, value in rows:
                reader = open_key(key, KeyType.OPERATIONS)
                n = reader.u64_key("commit number")
                reader.end()
                self.add(n, decode_operations(value), len(value))

    def add(self, n: int, operations: Iterable[Operation], size: int) -> None:
        for operation in operations:
            known = self._by_owner.setdefault(operation.owner, deque())
            if known and operation.sequence != known[-1][1].sequence + 1:
                raise CorruptError(
                    f"operation record {n}: sequence {operation.sequence} of {operation.owner}"
                    f" follows {known[-1][1].sequence}"
                )
            known.append((n, operation))
        self._records.append((n, size))
        self._bytes += size

    def of(self, owner: Owner) -> list[Operation]:
        """The owner's operations that its rows may not contain, oldest first."""
        return [operation for _, operation in self._by_owner.get(owner, ())]

    @property
    def long(self) -> bool:
        return len(self._records) >= TAIL_RECORDS or self._bytes >= TAIL_BYTES

    @property
    def short(self) -> bool:
        """So short that writing pages can wait again."""
        return len(self._records) < TAIL_RECORDS // 2 and self._bytes < TAIL_BYTES // 2

    def owners(self) -> Sequence[Owner]:
        return tuple(self._by_owner)

    def oldest(self) -> Owner | None:
        """Whose operations keep the oldest record."""
        return min(self._by_owner, key=lambda owner: self._by_owner[owner][0][0], default=None)

    def flushed(self, owner: Owner, sequence: int | None) -> None:
        """The rows contain everything up to this sequence; None: the owner is gone."""
        known = self._by_owner.get(owner)
        while known and (sequence is None or known[0][1].sequence <= sequence):
            known.popleft()
        if not known:
            self._by_owner.pop(owner, None)

    def unneeded(self) -> list[int]:
        """Numbers of the records that no owner needs, oldest first."""
        needed = min((known[0][0] for known in self._by_owner.values()), default=None)
        found: list[int] = []
        for n, _ in self._records:
            if len(found) >= TRIM_ROWS or (needed is not None and n >= needed):
                break
            found.append(n)
        return found

    def trimmed(self, numbers: Sequence[int]) -> None:
        """These rows are gone."""
        for n in numbers:
            found, size = self._records.popleft()
            assert found == n, "records are trimmed from the oldest on"
            self._bytes -= size


def trim_step(numbers: Sequence[int]) -> Step:
    """Remove these operation records. -> how many"""

    def decide(view: View, now: Now) -> Decision:
        return Decision(
            reply=len(numbers), writes=dict.fromkeys(operations_key(n) for n in numbers)
        )

    return Step(decide)
