"""What a killed writer was told, and whether the location still says the same.

Contract     `note` takes the writer's lines. `verify` reads everything and fails unless
               L1  every acknowledged batch is at the offsets that were acknowledged
               L2  every batch is there as a whole, once, in one piece, with its own content
               L3  what was ever read at an offset is still there, and offsets never go back
               L4  offsets are dense from `first` to `last`
               L5  what is evicted was asked for, and an acknowledged eviction stays
               L6  the numbered batches of a producer are there without gap, in order
Batches      Entry i of a batch is `entry(batch, i, size)`: it names its batch, itself, the whole.
Lines        ack STREAM BATCH SIZE START | evicting STREAM UP_TO | evicted STREAM UP_TO
"""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from collections.abc import Iterable

import penstock

STREAMS = ("mixed", "evicted", "numbered")
#: Batches of the numbered stream are called by their sequence number behind this.
NUMBERED = "p"


def entry(batch: str, index: int, size: int) -> bytes:
    head = f"{batch} {index} {size} ".encode()
    return head + (head * 9)[: zlib.crc32(head) % 150]


def entries(batch: str, size: int) -> list[bytes]:
    return [entry(batch, index, size) for index in range(size)]


def _parse(data: bytes) -> tuple[str, int, int]:
    batch, index, size, _ = data.split(b" ", 3)
    return batch.decode(), int(index), int(size)


class Ledger:
    def __init__(self) -> None:
        self._acked: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        self._placed: dict[str, dict[str, int]] = defaultdict(dict)
        self._seen: dict[str, tuple[int, list[bytes]]] = defaultdict(lambda: (0, []))
        self._asked: dict[str, int] = defaultdict(lambda: -1)
        self._gone: dict[str, int] = defaultdict(lambda: -1)
        self.acks = 0
        #: The sequence number that the producer sends next: the first that was not acknowledged.
        self.sequence = 0

    def note(self, lines: Iterable[str]) -> None:
        for line in lines:
            match line.split(" "):
                case ["ack", stream, batch, size, start]:
                    self._note_ack(stream, batch, int(size), int(start))
                case ["evicting", stream, up_to]:
                    self._asked[stream] = max(self._asked[stream], int(up_to))
                case ["evicted", stream, up_to]:
                    self._gone[stream] = max(self._gone[stream], int(up_to))
                case _:
                    pass

    def _note_ack(self, stream: str, batch: str, size: int, start: int) -> None:
        before = self._acked[stream].setdefault(batch, (start, size))
        assert before == (start, size), f"{batch} was acknowledged at {before}, then at {start}"
        self.acks += 1
        if stream == "numbered":
            self.sequence = max(self.sequence, int(batch.removeprefix(NUMBERED)) + 1)

    # -- verifying

    def verify(self, db: penstock.Database, *, seed: int = 0) -> int:
        """-> how many entries there are."""
        return sum(self._verify_stream(db, name, random.Random(seed)) for name in STREAMS)

    def _verify_stream(self, db: penstock.Database, name: str, rng: random.Random) -> int:
        stream = db.stream(name)
        info = stream.info()
        first, end = info.first, info.last + 1
        table = stream.to_arrow()
        data: list[bytes] = table["data"].to_pylist()
        assert table["offset"].to_pylist() == list(range(first, end)), f"{name}: not dense"
        assert info.length == len(data)

        assert self._gone[name] + 1 <= first <= self._asked[name] + 1, (
            f"{name}: begins at {first}; evicted were {self._gone[name]} to {self._asked[name]}"
        )
        old_first, old = self._seen[name]
        old_end = old_first + len(old)
        assert end >= old_end, f"{name}: ended at {old_end}, now at {end}"
        assert first >= old_first
        if first < old_end:
            assert data[: old_end - first] == old[first - old_first :], f"{name}: content changed"
        self._place(name, max(first, old_end), data[max(0, old_end - first) :])
        self._seen[name] = (first, data)

        placed = self._placed[name]
        for batch, (start, size) in self._acked[name].items():
            if start + size > first:
                found = placed.get(batch)
                assert found == start, f"{name}: {batch} acknowledged at {start}, found at {found}"
        if name == "numbered":
            numbers = [batch for batch, _ in sorted(placed.items(), key=lambda item: item[1])]
            assert numbers == [f"{NUMBERED}{number}" for number in range(len(numbers))]
        self._verify_reads(stream, first, data, rng)
        return len(data)

    def _place(self, name: str, offset: int, data: list[bytes]) -> None:
        """Take in what was not there at the last look: whole batches, except where eviction cut."""
        at = 0
        while at < len(data):
            batch, index, size = _parse(data[at])
            assert index == 0 or (at == 0 and offset <= self._asked[name] + 1), (
                f"{name}: {batch} begins with entry {index} at offset {offset + at}"
            )
            expected = [entry(batch, i, size) for i in range(index, size)]
            assert data[at : at + size - index] == expected, f"{name}: {batch} is torn"
            assert batch not in self._placed[name], f"{name}: {batch} is there twice"
            self._placed[name][batch] = offset + at - index
            at += size - index

    def _verify_reads(
        self, stream: penstock.Stream, first: int, data: list[bytes], rng: random.Random
    ) -> None:
        """The other way to read agrees, in both directions."""
        for reverse in (False, True):
            if not data:
                return
            at = rng.randrange(len(data))
            found = stream.read(first + at, 20, reverse=reverse)
            wanted = data[max(0, at - 19) : at + 1][::-1] if reverse else data[at : at + 20]
            # Going down ends at offset 0, below `first` in evicted entries.
            assert [message.data for message in found if message is not None] == wanted
