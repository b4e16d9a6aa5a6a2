"""The journal: what a crash, a takeover or damage leaves behind, and what recovery makes of it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.codec.chain import NO_HASH, ChainRecord, chain_hash
from penstock.codec.journal import HEADER_BYTES, RECORD_BYTES, decode_head
from penstock.errors import CorruptError, FencedError
from penstock.store.disk import replace_file
from penstock.store.epoch import Epoch, claim
from penstock.store.journal import Journal
from penstock.store.recovery import Recovered, recover

SEGMENT = 1 << 16


def body_of(n: int, size: int = 100) -> bytes:
    return (b"%d." % n) * (size // len(b"%d." % n) + 1)


def next_chain(previous: ChainRecord | None, body: bytes) -> ChainRecord:
    n = previous.n + 1 if previous else 1
    digest = previous.hash if previous else NO_HASH
    return ChainRecord(n, n * 10, digest, chain_hash(digest, n, n * 10, body))


class Writer:
    """A journal with its chain, as a folder store would drive it."""

    def __init__(
        self, folder: Path, stored: ChainRecord | None = None, *, sync: bool = False
    ) -> None:
        folder.mkdir(exist_ok=True)
        counter = itertools.count(int.from_bytes(os.urandom(4), "big"))
        epoch = claim(folder, sync=sync)
        self.recovered: Recovered = recover(folder, stored)
        records = self.recovered.records
        self.last = records[-1].chain if records else stored
        self.journal = Journal(
            folder,
            epoch,
            store_id=self.recovered.store_id or b"s" * 16,
            start=self.last,
            stored=stored,
            inherited=self.recovered.segments,
            entropy=lambda size: next(counter).to_bytes(size, "big"),
            sync=sync,
            segment_bytes=SEGMENT,
        )

    def append(self, size: int = 100) -> ChainRecord:
        body = body_of(self.last.n + 1 if self.last else 1, size)
        chain = next_chain(self.last, body)
        self.journal.append(chain, body)
        self.last = chain
        return chain


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def only_segment(folder: Path) -> Path:
    (path,) = folder.glob("*.segment")
    return path


def change(path: Path, edit: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    edit(data)
    path.write_bytes(bytes(data))


def numbers(recovered: Recovered) -> list[int]:
    return [record.chain.n for record in recovered.records]


def test_a_new_folder_has_nothing_to_recover(folder: Path) -> None:
    folder.mkdir()
    assert recover(folder, None) == Recovered(None)


def test_what_was_appended_is_recovered_in_order_with_its_bytes(folder: Path) -> None:
    writer = Writer(folder)
    chains = [writer.append() for _ in range(5)]
    found = recover(folder, None)
    assert [record.chain for record in found.records] == chains
    assert [record.body for record in found.records] == [body_of(n) for n in range(1, 6)]


def test_commits_that_the_store_has_are_not_recovered_again(folder: Path) -> None:
    writer = Writer(folder)
    chains = [writer.append() for _ in range(5)]
    assert numbers(recover(folder, chains[2])) == [4, 5]
    assert recover(folder, chains[4]).records == ()


def test_a_torn_record_at_the_end_is_a_commit_that_never_was(folder: Path) -> None:
    writer = Writer(folder)
    for _ in range(3):
        writer.append()
    end = writer.journal._active.end
    change(only_segment(folder), lambda data: data.__setitem__(slice(end - 20, end), bytes(20)))
    assert numbers(recover(folder, None)) == [1, 2]


@pytest.mark.parametrize("victim", [1, 2])
def test_a_damaged_record_with_others_behind_it_is_corruption(folder: Path, victim: int) -> None:
    writer = Writer(folder)
    begins = []
    for _ in range(3):
        begins.append(writer.journal._active.end)
        writer.append()
    begin = begins[victim - 1]

    def flip(data: bytearray) -> None:
        data[begin + RECORD_BYTES + 5] ^= 1

    change(only_segment(folder), flip)
    with pytest.raises(CorruptError, match=f"commit {victim} is missing or damaged"):
        recover(folder, None)


def test_damage_to_the_last_commit_of_an_idle_journal_is_seen_by_its_mark(folder: Path) -> None:
    writer = Writer(folder)
    writer.append()
    begin = writer.journal._active.end
    writer.append()
    writer.journal.mark()
    assert numbers(recover(folder, None)) == [1, 2]

    def flip(data: bytearray) -> None:
        data[begin + RECORD_BYTES] ^= 0x80

    change(only_segment(folder), flip)
    with pytest.raises(CorruptError, match="commit 2 is missing or damaged, yet 2 was made"):
        recover(folder, None)


def test_every_flipped_bit_of_an_idle_journal_is_seen_or_harmless(folder: Path) -> None:
    writer = Writer(folder)
    for _ in range(3):
        writer.append(20)
    writer.journal.mark()
    path = only_segment(folder)
    intact, end = path.read_bytes(), writer.journal._active.end
    seen = 0
    for place in itertools.chain(range(64), range(HEADER_BYTES, end)):
        data = bytearray(intact)
        data[place] ^= 1 << (place % 8)
        path.write_bytes(bytes(data))
        try:
            assert numbers(recover(folder, None)) == [1, 2, 3], f"silent loss at byte {place}"
        except CorruptError:
            seen += 1
    assert seen > 250


@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_a_segment_that_is_missing_empty_or_cut_short_is_corruption(
    folder: Path, damage: str
) -> None:
    writer = Writer(folder)
    for _ in range(3):
        writer.append()
    writer.journal.mark()
    path = only_segment(folder)
    match damage:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(path.read_bytes()[:HEADER_BYTES])
    with pytest.raises(CorruptError):
        recover(folder, None)


def test_a_missing_head_is_corruption_when_there_is_anything_else(folder: Path) -> None:
    writer = Writer(folder)
    last = writer.append()
    (folder / "1.head").unlink()
    with pytest.raises(CorruptError, match="no head that lists them"):
        recover(folder, None)
    only_segment(folder).unlink()
    with pytest.raises(CorruptError, match="head is missing"):
        recover(folder, last)


def test_a_store_that_fell_behind_what_it_once_held_is_corruption(folder: Path) -> None:
    writer = Writer(folder)
    chains = [writer.append() for _ in range(4)]
    writer.journal.cover(chains[2].n, chains[2].hash)
    assert numbers(recover(folder, chains[2])) == [4]
    with pytest.raises(CorruptError, match="ends at commit 1, but it held commit 3"):
        recover(folder, chains[0])


def test_a_lost_tail_after_a_clean_close_is_corruption(folder: Path) -> None:
    writer = Writer(folder)
    chains = [writer.append() for _ in range(3)]
    writer.journal.close(chains[2].n, chains[2].hash)
    assert recover(folder, chains[2]).records == ()
    assert list(folder.glob("*.segment")) == []
    with pytest.raises(CorruptError, match="ends at commit 2, but it held commit 3"):
        recover(folder, chains[1])


def test_a_store_of_another_history_is_corruption(folder: Path) -> None:
    writer = Writer(folder)
    chains = [writer.append() for _ in range(3)]
    other = ChainRecord(2, chains[1].time_ms, chains[1].previous, b"x" * 16)
    with pytest.raises(CorruptError, match="disagree about commit 2"):
        recover(folder, other)


def test_a_newer_claim_fences_the_older_writer_after_its_record_is_written(folder: Path) -> None:
    old = Writer(folder)
    old.append()
    claim(folder, sync=False)
    with pytest.raises(FencedError):
        old.append()
    # It was not acknowledged, yet it is there: the newcomer may take it or leave it.
    assert numbers(recover(folder, None)) in ([1], [1, 2])


def test_what_a_fenced_writer_still_writes_is_void(folder: Path) -> None:
    old = Writer(folder)
    old.append()
    new = Writer(folder)
    assert numbers(new.recovered) == [1]
    with pytest.raises(FencedError):
        old.append(50)
    mine = new.append(60)
    again = recover(folder, None)
    assert numbers(again) == [1, 2]
    assert again.records[1].chain == mine
    # The same when the newcomer wrote nothing.
    third = Writer(folder)
    with pytest.raises(FencedError):
        new.append(70)
    assert third.last == mine
    assert numbers(recover(folder, None)) == [1, 2]


def test_a_newcomer_keeps_the_old_segments_until_the_store_covers_them(folder: Path) -> None:
    old = Writer(folder)
    last = old.append()
    new = Writer(folder)
    assert new.journal.inherits()
    assert len(list(folder.glob("1-*.segment"))) == 1
    new.journal.cover(last.n, last.hash)
    assert not new.journal.inherits()
    assert list(folder.glob("1-*.segment")) == []


def test_a_late_cover_by_a_fenced_writer_takes_nothing_from_the_newcomer(folder: Path) -> None:
    old = Writer(folder)
    chains = [old.append(SEGMENT // 2) for _ in range(4)]
    # The store held two commits when the newcomer came; the old writer lets go of those afterwards.
    new = Writer(folder, stored=chains[1])
    assert numbers(new.recovered) == [3, 4]
    old.journal.cover(chains[1].n, chains[1].hash)
    assert numbers(recover(folder, chains[1])) == [3, 4]


def test_the_ring_uses_covered_segments_again_and_their_old_records_stay_dead(folder: Path) -> None:
    writer = Writer(folder)
    files = 0
    for _ in range(60):
        last = writer.append(SEGMENT // 3)
        writer.journal.prepare()
        writer.journal.cover(last.n, last.hash)
        files = max(files, len(list(folder.glob("*.segment"))))
        assert recover(folder, last).records == ()
        tail = writer.append(10)
        assert numbers(recover(folder, last)) == [tail.n]
    assert files <= 4


def test_a_record_larger_than_a_segment_gets_one_of_its_own(folder: Path) -> None:
    writer = Writer(folder)
    writer.append()
    writer.append(SEGMENT * 3)
    writer.append()
    found = recover(folder, None)
    assert numbers(found) == [1, 2, 3]
    assert found.records[1].body == body_of(2, SEGMENT * 3)
    last = found.records[2].chain
    writer.journal.cover(last.n, last.hash)
    assert max(path.stat().st_size for path in folder.glob("*.segment")) <= SEGMENT


def test_bytes_in_a_message_that_look_like_a_record_are_never_taken_for_one(folder: Path) -> None:
    writer = Writer(folder)
    writer.append()
    path = only_segment(folder)
    forged = path.read_bytes()[HEADER_BYTES : writer.journal._active.end]
    body = bytes(8) + forged * 3
    chain = next_chain(writer.last, body)
    writer.journal.append(chain, body)
    begin = writer.journal._active.end - len(body) - RECORD_BYTES

    def tear(data: bytearray) -> None:
        data[begin : begin + 8] = bytes(8)

    change(path, tear)
    assert numbers(recover(folder, None)) == [1]


def test_claiming_after_an_epoch_that_is_not_the_newest_is_refused(folder: Path) -> None:
    folder.mkdir()
    first = claim(folder, sync=False)
    second = claim(folder, sync=False, after=first.number)
    with pytest.raises(FencedError):
        claim(folder, sync=False, after=first.number)
    second.check()
    with pytest.raises(FencedError):
        first.check()


def test_the_head_lists_a_segment_before_any_record_is_in_it(folder: Path) -> None:
    writer = Writer(folder)
    for _ in range(10):
        writer.append(SEGMENT // 2)
        head = decode_head((folder / "1.head").read_bytes(), "head")
        assert writer.journal._active.name in head.segments


def test_a_kill_before_the_first_head_leaves_a_folder_that_opens(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("penstock.store.journal.fill_zeros", killed)
        with pytest.raises(KeyboardInterrupt):
            Writer(folder)
    assert list(folder.glob("*.segment"))
    assert Writer(folder).append().n == 1


def test_a_full_disk_while_covering_never_lets_records_into_an_unlisted_segment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(folder)
    chains = [writer.append(SEGMENT // 2) for _ in range(8)]
    calls = itertools.count(1)

    def full(*args: object, **options: object) -> None:
        if next(calls) == 2:
            raise OSError(28, "No space left on device")
        replace_file(*args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("penstock.store.journal.replace_file", full)
        with pytest.raises(OSError, match="No space"):
            writer.journal.cover(chains[5].n, chains[5].hash)
    for _ in range(6):
        writer.append(SEGMENT // 2)
    assert numbers(recover(folder, chains[5]))[-1] == 14


def test_what_an_epoch_began_with_is_missed_when_it_is_gone(folder: Path) -> None:
    old = Writer(folder)
    for _ in range(2):
        old.append()
    begin = old.journal._active.end
    old.append()
    new = Writer(folder)
    assert numbers(new.recovered) == [1, 2, 3]

    def flip(data: bytearray) -> None:
        data[begin + RECORD_BYTES] ^= 1

    change(folder / "1-0.segment", flip)
    with pytest.raises(CorruptError, match="commit 3 is missing or damaged"):
        recover(folder, None)


def test_an_owner_goes_on_after_its_own_failed_claim_and_nobody_else_does(folder: Path) -> None:
    folder.mkdir()
    first = claim(folder, sync=False, owner=b"me")
    failed = claim(folder, sync=False, owner=b"me", after=first.number)
    again = claim(folder, sync=False, owner=b"me", after=first.number)
    with pytest.raises(FencedError):
        failed.check()
    with pytest.raises(FencedError):
        claim(folder, sync=False, owner=b"other", after=first.number)
    claim(folder, sync=False, owner=b"other")
    with pytest.raises(FencedError):
        again.check()
    with pytest.raises(FencedError):
        claim(folder, sync=False, owner=b"me", after=again.number)


# Durable first: observed at the calls themselves, a power cut needs more than a unit test.


def test_an_append_is_written_then_synced_then_checked_against_the_epoch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(folder, sync=True)
    descriptor = writer.journal._active.descriptor
    calls: list[tuple[str, int]] = []
    pwrite, fdatasync, check = os.pwrite, os.fdatasync, Epoch.check

    def told_pwrite(fd: int, data: bytes, at: int) -> int:
        calls.append(("write", fd))
        return pwrite(fd, data, at)

    def told_fdatasync(fd: int) -> None:
        calls.append(("sync", fd))
        fdatasync(fd)

    def told_check(self: Epoch) -> None:
        calls.append(("epoch", self.number))
        check(self)

    monkeypatch.setattr(os, "pwrite", told_pwrite)
    monkeypatch.setattr(os, "fdatasync", told_fdatasync)
    monkeypatch.setattr(Epoch, "check", told_check)
    writer.append()
    assert calls == [("write", descriptor), ("sync", descriptor), ("epoch", 1)]


def test_every_segment_is_made_durable_before_recovery_reads_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(folder)
    for _ in range(4):
        writer.append(SEGMENT // 2)
    intact = {path: path.read_bytes() for path in folder.glob("*.segment")}
    assert len(intact) > 2
    for path in intact:
        path.write_bytes(bytes(len(intact[path])))
    synced: list[Path] = []

    def appears(descriptor: int) -> None:
        """The sync brings the bytes, so whoever reads before it finds zeros."""
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append(path)
        path.write_bytes(intact[path])

    monkeypatch.setattr(os, "fdatasync", appears)
    assert numbers(recover(folder, None)) == [1, 2, 3, 4]
    assert sorted(synced) == sorted(intact)


def test_a_segment_that_cannot_be_made_durable_is_not_recovered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Writer(folder).append()

    def fails(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(OSError, match="Input/output error"):
        recover(folder, None)
