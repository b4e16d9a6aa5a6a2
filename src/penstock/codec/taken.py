"""Who still needs a message: pages over the metadata log, and what a commit did to them. Pure.

    page         version (u8 = 1) | last operation (u64) | PAGE_SLOTS x takers (u16)
    head row     version (u8 = 1) | sequence (u64)
    operation    taken (runs of offsets, each with a count u16) | released (runs) | gone (runs)

    takers       0            no queue took it: it stays until its retention
                 1 .. 65,532  so many queues are not done with it
                 TAKERS_MAX   so many or more: nobody can say when the last one is done, so that it
                              stays until its retention
                 DEAD         every queue is done with it: payload and metadata may go
                 GONE         payload and metadata went

Contract     A page holds the takers of PAGE_SLOTS neighbouring offsets. `applied` is the only place
             that changes them.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.codec.queueoperation import NO_KEYS, Keys, encode_runs, read_runs
from penstock.codec.scalars import Reader, encode_u64

PAGE_SLOTS = 1024
DEAD = 0xFFFE
GONE = 0xFFFF
TAKERS_MAX = 0xFFFD

Slots = npt.NDArray[np.uint16]
_VERSION = b"\x01"


class TakenPage(msgspec.Struct, frozen=True, eq=False):
    number: int
    sequence: int  # of the last operation it contains
    slots: Slots

    @property
    def first(self) -> int:
        return self.number * PAGE_SLOTS

    @property
    def memory_bytes(self) -> int:
        return 2 * PAGE_SLOTS + 300


class TakenOperation(msgspec.Struct, frozen=True, eq=False):
    taken: Keys = NO_KEYS  # offsets, rising
    counts: npt.NDArray[np.uint16] = np.zeros(0, np.uint16)  # of queues, parallel
    released: Keys = NO_KEYS  # one queue is done with each of these; rising
    gone: Keys = NO_KEYS  # rising


def empty_page(number: int) -> TakenPage:
    return TakenPage(number, 0, np.zeros(PAGE_SLOTS, np.uint16))


def touched(operation: TakenOperation) -> list[int]:
    lists = [keys for keys in (operation.taken, operation.released, operation.gone) if len(keys)]
    if len(lists) == 1 and int(lists[0][-1]) - int(lists[0][0]) < PAGE_SLOTS:
        # Nearly always neighbours, on one page or two.
        return sorted({int(lists[0][0]) // PAGE_SLOTS, int(lists[0][-1]) // PAGE_SLOTS})
    keys = np.concatenate((operation.taken, operation.released, operation.gone))
    found: list[int] = np.unique(keys // np.uint64(PAGE_SLOTS)).tolist()
    return found


def applied(page: TakenPage, operation: TakenOperation, sequence: int) -> TakenPage:
    slots = page.slots.copy()
    here = _slots(page, operation.taken)
    if here is not None:
        at, within = here
        new = operation.counts[within]
        low, high = int(at[0]), int(at[-1]) + 1
        if high - low == len(at) and not slots[low:high].any() and new.max() <= TAKERS_MAX:
            slots[low:high] = new  # nearly always: neighbours that nobody took yet
            here = None
    if here is not None:
        # A message that is gone is never taken again: nobody could read it. One that is dead may
        # be: a backfill can be done with it before the router has come to it.
        counts = operation.counts[within].astype(np.int64)
        there = (slots[at] != GONE) & (counts > 0)
        counts = counts[there]
        at = at[there]
        before = np.where(slots[at] == DEAD, 0, slots[at])
        slots[at] = np.minimum(before + counts, TAKERS_MAX)
    here = _slots(page, operation.released)
    if here is not None:
        at = here[0]
        at = at[(slots[at] < TAKERS_MAX) & (slots[at] > 0)]
        slots[at] -= 1
        slots[at[slots[at] == 0]] = DEAD
    here = _slots(page, operation.gone)
    if here is not None:
        slots[here[0]] = GONE
    return TakenPage(page.number, sequence, slots)


def _slots(page: TakenPage, offsets: Keys) -> tuple[npt.NDArray[np.int64], slice] | None:
    """Those of the offsets that lie on this page, and where they stand in the list."""
    if not len(offsets):
        return None
    # By its last slot: behind the last page of all there is no offset.
    low = int(offsets.searchsorted(np.uint64(page.first)))
    high = int(offsets.searchsorted(np.uint64(page.first + PAGE_SLOTS - 1), "right"))
    if low == high:
        return None
    return (offsets[low:high] - np.uint64(page.first)).astype(np.int64), slice(low, high)


def encode_taken_page(page: TakenPage) -> bytes:
    return b"".join(
        (_VERSION, encode_u64(page.sequence, "last operation"), page.slots.astype("<u2").tobytes())
    )


def decode_taken_page(number: int, data: bytes) -> TakenPage:
    reader = _open(data, f"takers of page {number}")
    sequence = reader.u64("last operation")
    slots = np.frombuffer(reader.take(2 * PAGE_SLOTS, "takers"), "<u2")
    reader.end()
    return TakenPage(number, sequence, slots)


def encode_taken_head(sequence: int) -> bytes:
    return _VERSION + encode_u64(sequence, "sequence")


def decode_taken_head(data: bytes) -> int:
    reader = _open(data, "head of the takers")
    sequence = reader.u64("sequence")
    reader.end()
    return sequence


def encode_taken_operation(operation: TakenOperation) -> bytes:
    assert len(operation.taken) == len(operation.counts), "parallel columns"
    return b"".join(
        (
            encode_runs(operation.taken),
            operation.counts.astype("<u2").tobytes(),
            encode_runs(operation.released),
            encode_runs(operation.gone),
        )
    )


def decode_taken_operation(data: bytes) -> TakenOperation:
    reader = Reader(data, "operation on takers")
    taken = read_runs(reader, "taken")
    counts = np.frombuffer(reader.take(2 * len(taken), "counts"), "<u2")
    operation = TakenOperation(
        taken, counts, read_runs(reader, "released"), read_runs(reader, "gone")
    )
    reader.end()
    return operation


def _open(data: bytes, what: str) -> Reader:
    reader = Reader(data, what)
    if (version := reader.u8("version")) != _VERSION[0]:
        raise reader.fail("version", f"is {version}, not {_VERSION[0]}")
    return reader
