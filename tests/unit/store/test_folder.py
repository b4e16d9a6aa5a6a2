"""The folder store: what lies between the journal and SlateDB."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.clock import SystemClock
from penstock.codec.chain import decode_chain
from penstock.codec.keys import CHAIN_HEAD
from penstock.errors import CorruptError, FencedError, UnavailableError
from penstock.store import disk, epoch, folder, journal, opening, recovery
from penstock.store.diskthread import DiskThread
from penstock.store.folder import FolderStore
from penstock.store.journal import Journal
from penstock.store.port import Row
from penstock.store.slate import SlateRows


async def commit(store: FolderStore, n: int) -> None:
    await store.commit(n, [(b"\x01\x0bk%d" % n, b"v%d" % n)], time_ms=n, epoch=store.epoch)


async def floor(store: FolderStore, n: int) -> bytes | None:
    """The value of that commit, read in a way that waits until SlateDB has it."""
    row = await store.floor(b"\x01\x0bk%d" % n, low=b"\x01\x0bk%d" % n)
    return None if row is None else row[1]


async def test_a_failed_write_behind_an_acknowledged_commit_is_raised_and_nothing_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    real = SlateRows.write
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def fails_once(
        self: SlateRows, writes: Iterable[tuple[bytes, bytes | None]], *, seqnum: int | None = None
    ) -> int:
        monkeypatch.setattr(SlateRows, "write", real)
        begun.set()
        await go_on.wait()
        raise UnavailableError("once")

    monkeypatch.setattr(SlateRows, "write", fails_once)
    await commit(store, 1)
    await begun.wait()
    await commit(store, 2)
    go_on.set()
    with pytest.raises(UnavailableError, match="once"):
        await floor(store, 1)
    with pytest.raises(UnavailableError, match="once"):
        await store.get(b"\x01\x0bk1")
    with pytest.raises(UnavailableError, match="once"):
        await commit(store, 3)
    await store.close()
    again = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    assert again.head().n == 2
    assert await again.get(b"\x01\x0bk1") == b"v1"
    assert await again.get(b"\x01\x0bk2") == b"v2"
    await again.close()


async def test_a_failure_that_many_are_told_of_does_not_grow_with_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one error: the frames of everybody who was told would stay in its traceback."""

    async def fails(*_args: Any, **_options: Any) -> int:
        raise CorruptError("SlateDB said so")

    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    monkeypatch.setattr(SlateRows, "write", fails)
    await store.commit(1, [(b"k", b"v")], time_ms=1, epoch=store.epoch)
    frames = []
    with pytest.raises(CorruptError):
        [rows async for rows in store.scan(b"k", b"l")]
    for _ in range(20):
        with pytest.raises(CorruptError) as told:
            await store.get(b"k")
        frames.append(len(told.traceback))
    assert len(set(frames)) == 1
    await store.abandon()


async def test_reads_see_what_was_acknowledged_before_slatedb_was_given_it(
    tmp_path: Path,
) -> None:
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    for n in range(1, 200):
        await commit(store, n)
        if n % 7 == 0:
            assert await store.get(b"\x01\x0bk%d" % n) == b"v%d" % n
    found = [key async for rows in store.scan(b"\x01\x0b", b"\x01\x0c") for key, _ in rows]
    assert len(found) == 199
    await store.close()


async def test_a_copied_location_is_made_synchronous_again(tmp_path: Path) -> None:
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    await commit(store, 1)
    await store.close()
    if not disk.is_synchronous(tmp_path / "d" / "store"):
        pytest.skip("this file system has no synchronous folders")
    shutil.copytree(tmp_path / "d", tmp_path / "copy")
    copied = tmp_path / "copy" / "store"
    assert not disk.is_synchronous(copied / "manifest")
    store = await FolderStore.open(tmp_path / "copy", clock=SystemClock())
    assert disk.is_synchronous(copied / "manifest")
    assert disk.is_synchronous(copied / "compacted")
    await store.close()


@pytest.mark.parametrize("what", ["store", "location"])
@pytest.mark.parametrize("deep", ["d", "a/b/d"])
async def test_the_name_of_every_folder_that_is_made_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deep: str, what: str
) -> None:
    synced: list[Path] = []
    sync_folder = disk.sync_folder

    def told(path: Path) -> None:
        sync_folder(path)
        synced.append(path)

    monkeypatch.setattr(disk, "sync_folder", told)
    if what == "store":
        opened: Any = await FolderStore.open(tmp_path / deep, clock=SystemClock())
    else:
        opened = await penstock.aio.open(tmp_path / deep)
    parents = (tmp_path / deep).parents
    assert {tmp_path / deep, *parents[: len(Path(deep).parts)]} <= set(synced)
    await opened.close()


async def test_a_location_in_a_folder_that_may_not_be_read_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users go through /home and cannot list it: a sync of all makes a name in it durable."""
    home = tmp_path / "user"
    home.mkdir()
    sync_folder, sync_all, synced = disk.sync_folder, disk.sync_file_system, list[Path]()

    def refused(path: Path) -> None:
        if path == tmp_path:
            raise PermissionError(13, "Permission denied")
        sync_folder(path)

    def told(path: Path) -> None:
        sync_all(path)
        synced.append(path)

    monkeypatch.setattr(disk, "sync_folder", refused)
    monkeypatch.setattr(disk, "sync_file_system", told)
    for n in (1, 2):
        synced.clear()
        store = await FolderStore.open(home, clock=SystemClock())
        assert home in synced
        await commit(store, n)
        await store.close()


def test_changing_the_directory_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "b")
    with penstock.open("data") as db:
        db.stream("s").write(b"b")
    monkeypatch.chdir(tmp_path / "a")
    db = penstock.open("data")
    db.stream("s").write(b"a")
    monkeypatch.chdir(tmp_path / "b")
    stream = db.stream("s")
    for _ in range(5):
        stream.write(os.urandom(8 << 20))  # more than a segment of the journal
    db.close()
    for name, length in (("a", 6), ("b", 1)):
        with penstock.open(tmp_path / name / "data") as db:
            assert db.stream("s").info().length == length
            head = db.stream("s").read(0, 1)[0]
            assert head is not None
            assert head.data == name.encode()


def test_a_forked_child_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    db = penstock.open(tmp_path / "d")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)  # until the parent is done
        os._exit(0)
    try:
        db.close()
        penstock.open(tmp_path / "d").close()
    finally:
        os.close(write_end)
        os.waitpid(child, 0)
        os.close(read_end)


async def test_a_missing_log_row_is_corruption_and_not_an_empty_stream(tmp_path: Path) -> None:
    from penstock.codec.keys import log_key

    with penstock.open(tmp_path / "d") as db:
        db.stream("s").write(b"precious")
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    await store.commit(
        store.head().n + 1, [(log_key(1), None)], time_ms=store.head().time_ms, epoch=store.epoch
    )
    await store.close()

    def use() -> None:
        with penstock.open(tmp_path / "d") as db:
            db.stream("s").write(b"other")

    with pytest.raises(CorruptError, match="is missing"):
        await asyncio.to_thread(use)


# -- who waits when the store ends


class SlowWrites:
    """SlateDB's writes wait for `go`, and say when one has begun."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        real = SlateRows.write

        async def slow(rows: SlateRows, *args: Any, **options: Any) -> int:
            self.begun.set()
            await self.go.wait()
            return await real(rows, *args, **options)

        patch.setattr(SlateRows, "write", slow)


async def test_who_waits_for_slatedb_when_the_store_is_abandoned_is_told_and_not_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    slow = SlowWrites(monkeypatch)
    await commit(store, 1)
    await slow.begun.wait()
    await commit(store, 2)
    waiting = [asyncio.create_task(floor(store, n)) for n in (1, 2)]
    waiting.append(asyncio.create_task(store.checkpoint(lifetime_ms=1000)))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await store.abandon()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [UnavailableError] * 3


async def test_giving_up_a_wait_stops_neither_the_write_nor_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    slow = SlowWrites(monkeypatch)
    await commit(store, 1)
    await slow.begun.wait()
    impatient, patient = (asyncio.create_task(floor(store, 1)) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.sleep(0)
    slow.go.set()
    assert await patient == b"v1"
    assert impatient.cancelled()
    await store.close()


async def test_a_wait_ends_when_the_store_ends_between_two_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write is done, the second must not begin any more: nothing is left to wait for."""
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    slow = SlowWrites(monkeypatch)
    await commit(store, 1)
    await slow.begun.wait()
    await commit(store, 2)
    store._applying.remove_done_callback(store._look_at)
    store._applying.add_done_callback(lambda _: setattr(store, "_closed", True))
    reader = asyncio.create_task(floor(store, 2))
    await asyncio.sleep(0)
    slow.go.set()
    with pytest.raises(UnavailableError):
        await reader
    await store.abandon()


async def test_a_read_waits_for_the_writes_that_follow_the_one_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    slow = SlowWrites(monkeypatch)
    await commit(store, 1)
    await slow.begun.wait()
    await commit(store, 2)
    reader = asyncio.create_task(floor(store, 2))
    await asyncio.sleep(0)
    slow.go.set()
    assert await reader == b"v2"
    await store.close()


async def test_reads_that_no_waiting_commit_is_about_do_not_wait_for_slatedb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    rows = [(b"b", b"1"), (b"d", b"1"), (b"f", b"1"), (b"h", b"1")]
    await store.commit(1, rows, time_ms=1, epoch=store.epoch)
    await store.floor(b"b", low=b"b")  # SlateDB has them
    slow = SlowWrites(monkeypatch)
    await store.commit(2, [(b"d", None), (b"e", b"2")], time_ms=2, epoch=store.epoch)
    await slow.begun.wait()
    rows = [(b"e", b"3"), (b"f", b"3")]
    await store.commit(3, [*rows, (b"g", None)], time_ms=3, epoch=store.epoch)
    # Of rows that wait: from where they wait. Of others: from SlateDB, which would never end now.
    found = [await store.get(key) for key in (b"b", b"d", b"e", b"f", b"g", b"h", b"x")]
    assert found == [b"1", None, b"3", b"3", None, b"1", None]
    assert await store.floor(b"c", low=b"a") == (b"b", b"1")
    assert await store.floor(b"i", low=b"a") == (b"h", b"1")  # what waits is below what was found
    assert [row async for part in store.scan(b"a", b"d") for row in part] == [(b"b", b"1")]
    assert [row async for part in store.scan(b"h", b"z") for row in part] == [(b"h", b"1")]
    late = [asyncio.ensure_future(store.floor(key, low=b"a")) for key in (b"d", b"e", b"f", b"g")]
    scan = asyncio.ensure_future(all_rows(store))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not any(each.done() for each in (*late, scan))
    slow.go.set()
    assert await asyncio.gather(*late) == [(b"b", b"1"), *rows, rows[-1]]
    assert await scan == [(b"b", b"1"), *rows, (b"h", b"1")]
    await store.close()


async def all_rows(store: FolderStore, low: bytes = b"a", high: bytes = b"z") -> list[Row]:
    return [row async for part in store.scan(low, high) for row in part]


@pytest.mark.parametrize("looked_max", [4096, 2])
async def test_reads_show_every_commit_however_late_slatedb_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_max: int
) -> None:
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    real, chance = SlateRows.write, random.Random(7)
    monkeypatch.setattr(folder, "LOOKED_MAX", looked_max)
    monkeypatch.setattr(folder, "APPLY_SECONDS", 0)

    async def late(rows: SlateRows, *args: Any, **options: Any) -> int:
        for _ in range(turns := chance.choice((0, 3, 300, 301))):
            await asyncio.sleep(0)
        if turns == 301:  # for a scan, which takes a while to begin
            await asyncio.sleep(0.005)
        return await real(rows, *args, **options)

    monkeypatch.setattr(SlateRows, "write", late)
    keys = [b"k%02d" % i for i in range(30)]
    model: dict[bytes, bytes] = {}
    for n in range(1, 400):
        writes = {
            key: b"%d" % n if chance.random() < 0.6 else None for key in chance.sample(keys, 3)
        }
        await store.commit(n, list(writes.items()), time_ms=n, epoch=store.epoch)
        for key, value in writes.items():
            model.pop(key, None)
            if value is not None:
                model[key] = value
        low, high = sorted(chance.sample(keys, 2))
        between = sorted((key, value) for key, value in model.items() if low <= key < high)
        match chance.randrange(3):
            case 0:
                assert await store.get(high) == model.get(high)
            case 1:
                up = [*between, *((high, model[high]) for _ in range(high in model))]
                assert await store.floor(high, low=low) == (up[-1] if up else None)
            case 2:
                assert await all_rows(store, low, high) == between
    head = await store.get(CHAIN_HEAD)
    assert head is not None
    assert decode_chain(head).n == 399
    await store.close()


async def test_who_begins_the_next_write_before_the_end_of_one_is_heard_of_loses_sight_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    slow = SlowWrites(monkeypatch)
    await commit(store, 1)
    await slow.begun.wait()
    await commit(store, 2)

    def first(_: object) -> None:
        slow.go.clear()
        store._apply()

    store._applying.remove_done_callback(store._look_at)
    store._applying.add_done_callback(first)
    store._applying.add_done_callback(store._look_at)
    slow.begun.clear()
    slow.go.set()
    await slow.begun.wait()
    assert await store.get(b"\x01\x0bk2") == b"v2"
    slow.go.set()
    await store.close()


async def test_a_commit_that_the_store_did_not_outlive_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    go, real = threading.Event(), Journal.append

    def slow(journal: Journal, *args: Any) -> None:
        go.wait()
        real(journal, *args)

    monkeypatch.setattr(Journal, "append", slow)
    writer = asyncio.create_task(commit(store, 1))
    await asyncio.sleep(0)
    await store.abandon()
    go.set()
    with pytest.raises(UnavailableError):
        await writer


async def test_what_there_is_to_do_meanwhile_is_done_while_the_disk_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    done, real = threading.Event(), os.fdatasync

    def sync(descriptor: int) -> None:
        assert done.wait(10), "the disk waits for the loop here, so it must have been told before"
        real(descriptor)

    monkeypatch.setattr("penstock.store.journal.os.fdatasync", sync)
    await store.commit(
        store.head().n + 1,
        [(b"\x01\x0bk", b"v")],
        time_ms=1,
        epoch=store.epoch,
        meanwhile=done.set,
    )
    monkeypatch.undo()
    await store.close()


async def test_a_thread_that_has_finished_says_so_to_who_comes_late() -> None:
    thread = DiskThread("test")
    assert await thread.run(lambda: 1) == 1
    thread.finish(lambda: None)
    with pytest.raises(UnavailableError):
        await thread.run(lambda: 2)


# -- openings that fail, or that nobody waits for any more


def open_files(folder: Path) -> list[str]:
    """The epochs and segments in this folder that this process has open, removed ones too."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    journal = [path for path in found if path.startswith(f"{folder}/journal/")]
    # An epoch's file is made under another name, which is what the kernel shows.
    return [path for path in journal if ".claim" in path or ".segment" in path]


def disk_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "penstock-journal"}


async def until_ended(threads: set[threading.Thread]) -> None:
    for thread in threads:
        await asyncio.to_thread(thread.join)


class Hangs:
    """A call that hangs in the disk, the first time, until `go`."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        real = getattr(owner, name)

        def hang(*args: Any, **options: Any) -> Any:
            if not self.reached.is_set():
                self.reached.set()
                self.go.wait()
            return real(*args, **options)

        patch.setattr(owner, name, hang)


async def give_up(opening_task: asyncio.Task[FolderStore], hangs: Hangs) -> None:
    await asyncio.to_thread(hangs.reached.wait)
    opening_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening_task


@pytest.mark.parametrize("place", ["claim", "sync", "journal"])
async def test_an_opening_that_was_given_up_harms_nobody_when_the_disk_answers_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    folder = tmp_path / "d"
    store = await FolderStore.open(folder, clock=SystemClock())
    await commit(store, 1)
    await store.close()
    before = disk_threads()
    owner, name = {
        "claim": (epoch, "numbers"),
        "sync": (epoch, "sync_folder"),
        "journal": (Journal, "_allocate"),
    }[place]
    hangs = Hangs(monkeypatch, owner, name)
    await give_up(asyncio.create_task(FolderStore.open(folder, clock=SystemClock())), hangs)
    hanging = disk_threads() - before
    store = await FolderStore.open(folder, clock=SystemClock())
    await commit(store, 2)
    mine = sorted(open_files(folder))
    hangs.go.set()
    await until_ended(hanging)
    assert set(open_files(folder)) <= set(mine)
    assert len(open_files(folder)) == 2, "the epoch and the segment of the one that is open"
    await commit(store, 3)
    await store.verify()
    assert await store.get(b"\x01\x0bk3") == b"v3"
    await store.close()


async def test_an_opening_that_fails_at_its_very_end_lets_go_of_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "d"
    monkeypatch.setattr("penstock.store.disk.make_synchronous", lambda path: False)
    forgotten: list[SlateRows] = []
    real = SlateRows.forget

    def forget(rows: SlateRows) -> None:
        forgotten.append(rows)
        real(rows)

    monkeypatch.setattr(SlateRows, "forget", forget)
    before = disk_threads()

    def fails(*_args: Any, **_options: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(opening, "watch_once", fails)
        with pytest.raises(UnavailableError, match="Input/output"):
            await FolderStore.open(folder, clock=SystemClock())
    await until_ended(disk_threads() - before)
    assert open_files(folder) == []
    assert len(forgotten) == 1
    store = await FolderStore.open(folder, clock=SystemClock())
    await commit(store, 1)
    await store.close()


async def test_who_was_overtaken_while_opening_says_so_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "d"
    real = Journal.__init__

    def overtaken(journal: Journal, *args: Any, **options: Any) -> None:
        real(journal, *args, **options)
        epoch.claim(folder / "journal", sync=False).release()

    monkeypatch.setattr(Journal, "__init__", overtaken)
    before = disk_threads()
    with pytest.raises(FencedError):
        await FolderStore.open(folder, clock=SystemClock())
    await until_ended(disk_threads() - before)
    assert open_files(folder) == []


def test_an_opening_that_was_overtaken_writes_no_manifest(tmp_path: Path) -> None:
    first = opening.Opening(tmp_path, clock=SystemClock(), sync=False)
    (tmp_path / "journal").mkdir()
    first._claim(None, b"one")
    first._require_ours()
    opening.Opening(tmp_path, clock=SystemClock(), sync=False)._claim(None, b"two")
    with pytest.raises(FencedError):
        first._require_ours()


@pytest.mark.parametrize("overtaken", [False, True])
@pytest.mark.parametrize("call", ["write", "get"])
async def test_slatedb_alone_cannot_fence_the_owner_of_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, overtaken: bool
) -> None:
    store = await FolderStore.open(tmp_path, clock=SystemClock())

    async def fenced(*_: object, **__: object) -> None:
        raise FencedError("detected newer DB client")

    monkeypatch.setattr(store._rows, call, fenced)
    await store.commit(1, [(b"k", b"v")], time_ms=1, epoch=store.epoch)
    if overtaken:
        epoch.claim(tmp_path / "journal", sync=True, after=None, owner=b"other")
    with pytest.raises(FencedError if overtaken else UnavailableError) as raised:
        await (store.get(b"other") if call == "get" else store.floor(b"k", low=b"k"))
    assert isinstance(raised.value, FencedError) is overtaken
    await store.abandon()


@pytest.mark.parametrize("late", [1, 2])
async def test_an_opening_that_a_late_one_fenced_in_slatedb_alone_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """Somebody who was overtaken opens SlateDB after us; if that never ends it is damage."""
    store = await FolderStore.open(tmp_path, clock=SystemClock())
    await store.commit(1, [(b"k", b"v")], time_ms=1, epoch=store.epoch)
    await store.abandon()
    real = SlateRows.get
    fenced: list[SlateRows] = []

    async def get(rows: SlateRows, key: bytes) -> bytes | None:
        if len(fenced) < late:
            fenced.append(rows)
            raise FencedError("detected newer DB client")
        return await real(rows, key)

    monkeypatch.setattr(SlateRows, "get", get)
    if late == 1:
        store = await FolderStore.open(tmp_path, clock=SystemClock(), after=1, owner=b"us")
        assert await store.get(b"k") == b"v"
        await store.close()
    else:
        with pytest.raises(CorruptError, match="epochs are damaged"):
            await FolderStore.open(tmp_path, clock=SystemClock())


async def test_an_overtaken_opening_removes_no_segment_that_its_successor_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit lands late, between an opening that hangs and the next one, which needs it."""
    others = disk_threads()
    store = await FolderStore.open(tmp_path, clock=SystemClock(), owner=b"us")
    await commit(store, 1)
    await store._applied()
    await store._rows.flush_memtable()
    late = Hangs(monkeypatch, os, "pwrite")
    task = asyncio.create_task(commit(store, 2))
    await asyncio.to_thread(late.reached.wait)
    task.cancel()
    await store.abandon()
    before = disk_threads()
    hangs = Hangs(monkeypatch, journal, "replace_file")
    open_again = partial(FolderStore.open, tmp_path, clock=SystemClock(), after=1, owner=b"us")
    await give_up(asyncio.create_task(open_again()), hangs)
    hanging = disk_threads() - before
    late.go.set()
    await until_ended(before - others)
    monkeypatch.setattr(FolderStore, "_keep", lambda store: None)  # nothing is flushed
    store = await open_again()
    assert store.head().n == 2, "the record that landed late"
    await commit(store, 3)
    hangs.go.set()
    await until_ended(hanging)
    await store.abandon()
    monkeypatch.undo()
    store = await FolderStore.open(tmp_path, clock=SystemClock())
    assert store.head().n == 3
    await store.close()


@pytest.mark.parametrize("owner", [b"us", b"them"])
@pytest.mark.parametrize("place", ["numbers", "sync_folder", "unlink"])
async def test_a_claim_that_hangs_and_is_taken_back_finishes_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: bytes, place: str
) -> None:
    store = await FolderStore.open(tmp_path, clock=SystemClock(), owner=b"us")
    await store.abandon()
    before = disk_threads()
    hangs = Hangs(monkeypatch, os if place == "unlink" else epoch, place)
    after = 1 if owner == b"us" else None
    other = FolderStore.open(tmp_path, clock=SystemClock(), after=after, owner=owner)
    await give_up(asyncio.create_task(other), hangs)
    hanging = disk_threads() - before
    if owner == b"them" and place != "numbers":
        # Its file is there, and ours too: nobody has fenced us yet.
        with pytest.raises(UnavailableError, match="is taking over"):
            await FolderStore.open(tmp_path, clock=SystemClock(), after=1, owner=b"us")
        hangs.go.set()
        await until_ended(hanging)
    store = await FolderStore.open(tmp_path, clock=SystemClock(), after=1, owner=b"us")
    hangs.go.set()
    await until_ended(hanging)
    await store.verify()
    await store.close()


@pytest.mark.parametrize("taken_for_a_leftover", [False, True])
def test_an_epoch_below_a_newer_one_is_never_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_for_a_leftover: bool
) -> None:
    """A claim that stands still between its look and its file, while two others come and go; and
    where they looked for leftovers when it had begun, they remove what it has made so far."""
    folder = tmp_path / "journal"
    folder.mkdir()
    first = epoch.claim(folder, sync=False, owner=b"first")
    link = os.link
    others: list[Any] = []

    def late(made: Any, path: Any) -> None:
        if not others:
            others.append(None)
            link(made, folder / "kept")
            others[:] = [epoch.claim(folder, sync=False, owner=owner) for owner in (b"b", b"c")]
            assert not Path(made).exists()
            if not taken_for_a_leftover:
                link(folder / "kept", made)
        link(made, path)

    monkeypatch.setattr(os, "link", late)
    slow = epoch.claim(folder, sync=False, owner=b"slow")
    monkeypatch.undo()
    assert slow.number > max(other.number for other in others)
    slow.check()
    for fenced in (first, *others):
        with pytest.raises(FencedError):
            fenced.check()


def test_what_a_kill_in_the_middle_of_a_claim_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", killed)
        with pytest.raises(KeyboardInterrupt):
            epoch.claim(tmp_path, sync=False, owner=b"killed")
    assert len(list(tmp_path.iterdir())) == 1
    taken = epoch.claim(tmp_path, sync=False, owner=b"next")
    assert [path.name for path in tmp_path.iterdir()] == ["1.epoch"]
    taken.check()


def test_a_claim_that_has_its_number_is_one_though_somebody_takes_its_file_for_a_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def late(made: Any, path: Any) -> None:
        link(made, path)
        Path(made).unlink()

    monkeypatch.setattr(os, "link", late)
    taken = epoch.claim(tmp_path, sync=False, owner=b"us")
    assert [path.name for path in tmp_path.iterdir()] == ["1.epoch"]
    taken.check()


async def test_an_opening_that_was_overtaken_while_it_recovered_replays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who took over may have missed a late record that this one read: replayed, it would stand in
    SlateDB under the number of another commit, and no later opening would believe either."""
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    await commit(store, 1)
    await store.abandon()
    recover, replayed = recovery.recover, False

    def overtaken(folder: Path, stored: Any) -> Any:
        found = recover(folder, stored)
        epoch.claim(folder, sync=True, owner=b"n" * 16)
        return found

    async def replay(*_: Any) -> None:
        nonlocal replayed
        replayed = True

    monkeypatch.setattr(opening, "recover", overtaken)
    monkeypatch.setattr(opening, "_replay", replay)
    with pytest.raises(FencedError):
        await FolderStore.open(tmp_path / "d", clock=SystemClock())
    assert not replayed


async def test_what_openings_leave_in_the_engines_log_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty object each, though that log is off; tens of thousands make every opening slow."""
    soon = {"interval": "200ms", "min_age": "0s"}
    for name, value in soon.items():
        key = f"garbage_collector_options.wal_fence_options.{name}"
        monkeypatch.setitem(opening.FENCES, key, value)
    log = tmp_path / "store" / "wal"
    for n in range(1, 9):
        store = await FolderStore.open(tmp_path, clock=SystemClock())
        await commit(store, n)
        await store.close()
    store = await FolderStore.open(tmp_path, clock=SystemClock())
    await commit(store, 9)
    await store._applied()
    await store._rows.flush_memtable()
    async with asyncio.timeout(20):
        while len(list(log.iterdir())) > 1:
            await asyncio.sleep(0.05)
    await store.close()
    # A power cut may leave one in the middle; numbers that are free are used again there.
    (log / f"{4:020d}.sst").touch()
    for _ in range(3):
        store = await FolderStore.open(tmp_path, clock=SystemClock())
        assert [await store.get(b"\x01\x0bk%d" % n) for n in (1, 9)] == [b"v1", b"v9"]
        await store.close()


async def test_an_opening_lets_go_of_what_it_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal's worth of memory, which would stay with the allocator for as long as it runs."""
    held: list[int] = []
    openings: list[opening.Opening] = []
    claim = opening.Opening._claim

    def remembered(self: opening.Opening, *args: Any) -> Any:
        openings.append(self)
        return claim(self, *args)

    def give_back() -> None:
        held.append(sum(len(record.body) for record in openings[-1].recovered.records))

    monkeypatch.setattr(opening.Opening, "_claim", remembered)
    monkeypatch.setattr(opening, "give_back", give_back)
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    for n in range(1, 4):
        await commit(store, n)
    assert held == [], "nothing was replayed"
    await store.abandon()
    store = await FolderStore.open(tmp_path / "d", clock=SystemClock())
    assert held == [0]
    assert [await store.get(b"\x01\x0bk%d" % n) for n in range(1, 4)] == [b"v1", b"v2", b"v3"]
    await commit(store, 4)
    await store.close()
