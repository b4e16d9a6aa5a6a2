"""The guard of SlateDB's manifests: no single flipped bit in one makes rows disappear."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import slatedb.uniffi as engine

import penstock
from penstock.clock import SystemClock
from penstock.errors import CorruptError, FencedError, UnavailableError
from penstock.store import disk, enginefiles, guard, opening
from penstock.store.folder import FolderStore
from penstock.store.reader import open_reader
from penstock.store.slate import Place, SlateRows


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guard") / "data"
    for _ in range(3):
        with penstock.open(folder) as db:
            db.stream("a").write_many([b"x" * 100] * 1500)
    return folder


def copy(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target, copy_function=os.link)
    _, path = guard._newest(target) or pytest.fail("there is no manifest")
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    return path


def test_every_flipped_bit_of_the_newest_manifest_is_seen(closed: Path, tmp_path: Path) -> None:
    path = copy(closed, tmp_path / "copy")
    intact = path.read_bytes()
    guard.check(tmp_path / "copy")
    for place in range(len(intact)):
        data = bytearray(intact)
        data[place] ^= 1 << (place % 8)
        path.write_bytes(bytes(data))
        with pytest.raises(CorruptError, match="is not what was written"):
            guard.check(tmp_path / "copy")


def test_opening_looks_at_the_guard(closed: Path, tmp_path: Path) -> None:
    path = copy(closed, tmp_path / "copy")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptError, match="is not what was written"):
        penstock.open(tmp_path / "copy")


def test_a_newest_manifest_that_is_gone_is_seen(closed: Path, tmp_path: Path) -> None:
    copy(closed, tmp_path / "copy").unlink()
    with pytest.raises(CorruptError, match="was written, the newest that is there is"):
        penstock.open(tmp_path / "copy")


def test_a_damaged_guard_says_so_and_a_missing_one_harms_nobody(
    closed: Path, tmp_path: Path
) -> None:
    copy(closed, tmp_path / "copy")
    (path,) = (tmp_path / "copy" / "journal").glob("*.manifests")
    data = path.read_bytes()
    path.unlink()
    for damaged in (b"", data[:-3], b"x" + data[1:], data[:20] + b"\xff" + data[21:]):
        path.write_bytes(damaged)
        with pytest.raises(CorruptError, match="manifests: is damaged"):
            penstock.open(tmp_path / "copy")
    path.unlink()
    with penstock.open(tmp_path / "copy") as db:
        assert db.stream("a").info().length == 4500


def test_a_newer_manifest_than_the_one_that_was_seen_is_taken_as_it_is(
    closed: Path, tmp_path: Path
) -> None:
    path = copy(closed, tmp_path / "copy")
    newer = path.with_name(f"{int(path.stem) + 1:020d}.manifest")
    newer.write_bytes(path.read_bytes())
    guard.check(tmp_path / "copy")
    guard.watch(tmp_path / "copy", epoch=9, sync=False)
    assert int(newer.stem) in guard._read(tmp_path / "copy")


def test_without_synchronous_folders_a_manifest_that_no_sync_covered_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on XFS, where a power cut leaves the name of a new file without its bytes."""
    monkeypatch.setattr("penstock.store.disk.make_synchronous", lambda path: False)
    folder = tmp_path / "d"
    with penstock.open(folder) as db:
        number, path = guard._newest(folder) or pytest.fail("there is no manifest")
        assert number in guard._read(folder), "there is one to fall back to from the first moment"
        db.stream("s").write(b"x")
    number, path = guard._newest(folder) or pytest.fail("there is no manifest")
    path.with_name(f"{number + 1:020d}.manifest").write_bytes(b"")
    compactions = folder / "store" / "compactions"
    torn = max(compactions.iterdir())
    torn.with_name(f"{int(torn.stem) + 1:020d}.compactions").write_bytes(b"")
    (folder / "store" / "gc").mkdir(exist_ok=True)
    (folder / "store" / "gc" / "manifest.boundary").write_bytes(b"")
    (folder / "store" / "gc" / "compactions.boundary").write_bytes(b"1")
    with penstock.open(folder) as db:
        assert db.stream("s").info().length == 1
        assert (folder / "store" / "gc" / "compactions.boundary").read_bytes() == b"1"


def test_with_synchronous_folders_the_newest_manifest_must_be_whole(
    closed: Path, tmp_path: Path
) -> None:
    path = copy(closed, tmp_path / "copy")
    path.with_name(f"{int(path.stem) + 1:020d}.manifest").write_bytes(b"")
    with pytest.raises(CorruptError):
        penstock.open(tmp_path / "copy")


# -- where folders cannot be synchronous, and the engine of who was overtaken still runs


class Openings:
    """Opens the same folder again and again, without synchronous folders, and closes everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stores: list[FolderStore] = []

    async def open(self) -> FolderStore:
        store = await FolderStore.open(self.folder, clock=SystemClock())
        self._stores.append(store)
        # No sync comes by itself, or a test could not say what is covered.
        store._watcher.cancel()
        if store._keeper is not None:
            await store._keeper
        await store._thread.run(lambda: None)
        return store

    async def end(self) -> None:
        for store in self._stores:
            await store.abandon()


@pytest.fixture
async def openings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Openings]:
    monkeypatch.setattr("penstock.store.disk.make_synchronous", lambda path: False)
    made = Openings(tmp_path / "d")
    yield made
    await made.end()


async def commit(store: FolderStore, *numbers: int, flush: bool = False) -> None:
    for n in numbers:
        await store.commit(n, [(b"\x01\x0bk%d" % n, b"v%d" % n)], time_ms=n, epoch=store.epoch)
        if flush:  # into a table and a new manifest, which no sync covers yet
            await store._applied()
            await store._rows.flush_memtable()


async def assert_rows(store: FolderStore, count: int) -> None:
    assert store.head().n == count
    for n in range(1, count + 1):
        assert await store.get(b"\x01\x0bk%d" % n) == b"v%d" % n


def names(folder: Path, kind: str) -> list[str]:
    return sorted(path.name for path in (folder / "store" / kind).glob(f"*.{kind}"))


async def read_manifest(folder: Path, number: int | None = None) -> Any:
    place = Place.folder(folder / "store")
    return await engine.AdminBuilder(place.path, place.objects).build().read_manifest(number)


async def test_going_back_takes_no_number_away_and_fences_the_engine_that_still_runs(
    openings: Openings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The overtaken engine's next manifest must not become the newest one."""
    old = await openings.open()
    await commit(old, 1, 2, 3)
    await commit(old, 4, 5, 6, flush=True)
    await commit(old, 7, 8)
    await old._applied()
    there = names(openings.folder, "manifest")
    assert int(there[-1].split(".")[0]) > max(guard._read(openings.folder))
    real = SlateRows.open

    async def opened_while_the_old_one_flushes(*args: Any, **options: Any) -> SlateRows:
        # Before the newcomer's engine exists: what it was given must fence by itself.
        with pytest.raises(FencedError):
            await old._rows.flush_memtable()
        return await real(*args, **options)

    monkeypatch.setattr(SlateRows, "open", opened_while_the_old_one_flushes)
    new = await openings.open()
    monkeypatch.setattr(SlateRows, "open", real)
    assert names(openings.folder, "manifest")[: len(there)] == there
    assert (await read_manifest(openings.folder)).writer_epoch > 2
    await commit(new, 9, 10, flush=True)
    await assert_rows(new, 10)
    await new.abandon()
    await assert_rows(await openings.open(), 10)


async def test_a_manifest_is_trusted_only_when_a_sync_has_covered_it(
    openings: Openings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await openings.open()
    await commit(store, 1, flush=True)
    newest = int(names(openings.folder, "manifest")[-1].split(".")[0])
    trusted: list[bool] = []

    def told(path: Path) -> None:
        trusted.append(newest in guard._read(openings.folder))

    monkeypatch.setattr("penstock.store.disk.sync_file_system", told)
    await store._thread.run(store._watch_once)
    assert trusted == [False]
    assert newest in guard._read(openings.folder)


async def test_an_engine_whose_opening_nobody_saw_is_fenced_too(
    openings: Openings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped within its opening: the manifest to go back to is older than its own epoch."""
    first = await openings.open()
    await commit(first, 1, 2)
    engines: list[SlateRows] = []

    async def stopped(rows: SlateRows, fenced: int) -> None:
        engines.append(rows)
        monkeypatch.setattr(rows, "forget", lambda: None)  # stopped, not gone
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(opening, "_check_epoch", stopped)
        with pytest.raises(KeyboardInterrupt):
            await openings.open()
    (old,) = engines
    real = SlateRows.open

    async def opened_while_the_old_one_flushes(*args: Any, **options: Any) -> SlateRows:
        with contextlib.suppress(FencedError):
            await old.write([(b"\x01\x0bx", b"late")])
        with pytest.raises(FencedError):
            await old.flush_memtable()
        return await real(*args, **options)

    monkeypatch.setattr(SlateRows, "open", opened_while_the_old_one_flushes)
    new = await openings.open()
    monkeypatch.setattr(SlateRows, "open", real)
    SlateRows.forget(old)
    await commit(new, 3, 4, flush=True)
    await new.abandon()
    await assert_rows(await openings.open(), 4)


async def test_a_faster_engine_only_makes_the_number_higher(
    openings: Openings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await openings.open()
    await commit(store, 1, 2, flush=True)
    await store.abandon()
    folder = openings.folder
    raced: list[Path] = []

    def slower(path: Path, data: bytes, *, temporary: Path) -> bool:
        if not raced:
            raced.append(path)
            path.write_bytes(
                (folder / "store" / path.parent.name / names(folder, "manifest")[-1]).read_bytes()
            )
        return disk.create_file(path, data, temporary=temporary)

    monkeypatch.setattr(guard, "create_file", slower)
    await assert_rows(await openings.open(), 2)
    assert raced[0].exists()


async def test_a_checkpoint_outlives_going_back(openings: Openings) -> None:
    store = await openings.open()
    await commit(store, 1)
    renewed = await store.checkpoint(lifetime_ms=1_000_000)
    await store.renew_checkpoint(renewed, lifetime_ms=9_000_000)
    await commit(store, 2, 3, flush=True)
    await store.abandon()
    again = await openings.open()
    found = {kept.id: kept for kept in (await read_manifest(openings.folder)).checkpoints}
    assert found[renewed].expire_time_secs - found[renewed].create_time_secs > 8_000
    made = await again.checkpoint(lifetime_ms=1_000_000)
    await commit(again, 4, flush=True)
    await again.abandon()
    third = await openings.open()
    await third.renew_checkpoint(made, lifetime_ms=60_000)
    await assert_rows(third, 4)


def manifests(folder: Path) -> list[int]:
    return [int(name.split(".")[0]) for name in names(folder, "manifest")]


async def flushed(store: FolderStore, count: int) -> None:
    n = store.head().n + 1
    await commit(store, *range(n, n + count), flush=True)


async def test_manifests_that_nobody_needs_are_collected_after_some_looks(
    tmp_path: Path,
) -> None:
    """They piled up for good, about one a second under load."""
    store = await FolderStore.open(tmp_path, clock=SystemClock())
    found = manifests(tmp_path)
    await flushed(store, 20)
    pinned = await store.checkpoint(lifetime_ms=3_600_000)
    # The compactor has checkpoints of its own.
    pin = max(await store._rows.pinned_manifests(0))
    await flushed(store, 20)
    await store._thread.run(store._watch_once)
    there, notes = manifests(tmp_path), names(tmp_path, "compactions")
    for _ in range(guard.COLLECT_LOOKS):
        await store._collect()
    assert set(there) <= set(manifests(tmp_path)), "it was the newest a moment ago"
    await flushed(store, 1)
    await store._thread.run(store._watch_once)
    await store._collect()
    left = manifests(tmp_path)
    assert set(found) <= set(left), "who was overtaken may know these"
    assert pin in left
    gone = set(there[:-1]) - set(left)
    assert gone
    assert gone == {
        number
        for number in there[:-1]
        if number not in found
        and number > max(found) + guard.FLOOR_SPARE
        and number not in await store._rows.pinned_manifests(0)
    }
    assert notes[-1] in names(tmp_path, "compactions")
    reader = await open_reader(str(tmp_path), pinned)
    assert await reader.get(b"\x01\x0bk20") == b"v20"
    assert await reader.get(b"\x01\x0bk21") is None
    await reader.close()
    await store.abandon()
    again = await FolderStore.open(tmp_path, clock=SystemClock())
    await assert_rows(again, 41)
    left = manifests(tmp_path)
    for _ in range(guard.COLLECT_LOOKS + 1):
        await again._collect()
    assert set(left) <= set(manifests(tmp_path)), "what an opening finds stays"
    await again.close()


async def test_what_a_closed_engine_left_is_collected_by_the_next_opening(tmp_path: Path) -> None:
    """Openings shorter than a minute left a few files each, for good."""
    first: list[int] = []
    for _ in range(4):
        store = await FolderStore.open(tmp_path, clock=SystemClock())
        first = first or manifests(tmp_path)
        await flushed(store, 40)
        await store._thread.run(store._watch_once)
        await store._collect()
        await store.close()
        for kind in ("manifest", "compactions"):
            pins = 40  # the compactor's own, for a quarter of an hour
            assert len(names(tmp_path, kind)) < 2 * guard.FOUND_SPARE + 40 + pins
    assert set(first) <= set(manifests(tmp_path)), "who was overtaken before may know these"
    assert len(list(tmp_path.glob("journal/*.floors"))) == 1
    store = await FolderStore.open(tmp_path, clock=SystemClock())
    await assert_rows(store, 160)
    await store.close()


def written(folder: Path, *numbers: int) -> None:
    for kind in ("manifest", "compactions"):
        (folder / "store" / kind).mkdir(parents=True, exist_ok=True)
        for number in numbers:
            (folder / "store" / kind / f"{number:020d}.{kind}").touch()


def left_of(folder: Path) -> list[set[int]]:
    """The numbers of manifests, and those of lists of compactions."""
    kinds = ("manifest", "compactions")
    return [{int(name.split(".")[0]) for name in names(folder, kind)} for kind in kinds]


def test_what_the_overtaken_engine_wrote_until_ours_fenced_it_stays(tmp_path: Path) -> None:
    """It finds the next number free otherwise, and goes on from its own."""
    (tmp_path / "journal").mkdir()
    written(tmp_path, *range(1, 4))
    collector = guard.Collector(tmp_path, 2, guard.newest(tmp_path))
    late = {4, 5}  # behind our back
    written(tmp_path, *late, *range(6, 41))
    for _ in range(guard.COLLECT_LOOKS + 1):
        collector.look(40, ())
    for left in left_of(tmp_path):
        assert {1, 2, 3, *late, 40} <= left
        assert 30 not in left


def test_what_was_the_newest_when_we_came_is_not_taken_from_who_is_about_to_read_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "journal").mkdir()
    written(tmp_path, 1)
    guard.Collector(tmp_path, 1, guard.newest(tmp_path)).hand_over(sync=False)
    written(tmp_path, *range(2, 201))
    guard.Collector(tmp_path, 2, guard.newest(tmp_path)).look(200, ())
    for left in left_of(tmp_path):
        assert 100 not in left
        assert set(range(190, 201)) <= left


@pytest.mark.parametrize("how", ["killed", "damaged", "closed"])
async def test_only_a_closed_engine_hands_its_numbers_over(tmp_path: Path, how: str) -> None:
    async def opened() -> FolderStore:
        return await FolderStore.open(tmp_path, clock=SystemClock())

    await (await opened()).close()
    store = await opened()
    await flushed(store, 100)
    await store._thread.run(store._watch_once)
    if how == "killed":  # its engine may run on, for all that the next one can know
        await store.abandon()
    else:
        await store.close()
    if how == "damaged":
        (path,) = tmp_path.glob("journal/*.floors")
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    left = manifests(tmp_path)
    again = await opened()
    await again._collect()
    assert (set(left) <= set(manifests(tmp_path))) == (how != "closed")
    await assert_rows(again, 100)
    await again.close()


async def test_without_synchronous_folders_the_trusted_manifest_is_not_collected(
    openings: Openings,
) -> None:
    store = await openings.open()
    await flushed(store, 20)
    await store._thread.run(store._watch_once)
    (trusted,) = guard._read(openings.folder)
    await flushed(store, 20)
    for _ in range(guard.COLLECT_LOOKS + 1):
        await store._collect()
    left = manifests(openings.folder)
    assert [number for number in left if number >= trusted] == list(range(trusted, left[-1] + 1))
    assert left != list(range(left[0], left[-1] + 1)), "and older ones are gone"
    await store.abandon()
    await assert_rows(await openings.open(), 40)


async def test_what_a_checkpoint_pinned_that_going_back_brings_back_is_not_collected(
    openings: Openings,
) -> None:
    store = await openings.open()
    await flushed(store, 20)
    dropped = await store.checkpoint(lifetime_ms=3_600_000)
    await flushed(store, 1)
    await store._thread.run(store._watch_once)
    trusted = guard.trusted(openings.folder)
    await store.drop_checkpoint(dropped)  # in a manifest that no sync covers yet
    await flushed(store, 20)
    for _ in range(guard.COLLECT_LOOKS + 1):
        await store._collect()
    assert guard.trusted(openings.folder) == trusted
    await store.abandon()
    again = await openings.open()
    for checkpoint in await again._rows._admin.list_checkpoints(None):
        assert checkpoint.manifest_id in manifests(openings.folder)
    reader = await open_reader(str(openings.folder), dropped)
    assert await reader.get(b"\x01\x0bk2") == b"v2"
    await reader.close()


async def test_who_was_overtaken_collects_nothing(openings: Openings) -> None:
    store = await openings.open()
    await flushed(store, 20)
    await store._thread.run(store._watch_once)
    for _ in range(guard.COLLECT_LOOKS):
        await store._collect()
    new = await openings.open()
    there = manifests(openings.folder)
    with pytest.raises((FencedError, UnavailableError)):
        await store._collect()
    assert set(there) <= set(manifests(openings.folder))
    await assert_rows(new, 20)


async def test_an_overtaken_process_does_not_take_the_newcomers_note_away(
    openings: Openings,
) -> None:
    old = await openings.open()
    stale = {path.name: path.read_bytes() for path in openings.folder.glob("journal/*.manifests")}
    new = await openings.open()
    seen = guard._read(openings.folder)
    for name, data in stale.items():  # what a watch that was stopped half-way does when it wakes up
        (openings.folder / "journal" / name).write_bytes(data)
    old._watch_once()
    assert guard._read(openings.folder) == seen
    await commit(new, 1, flush=True)
    new._watch_once()
    assert list(guard._read(openings.folder)) > list(seen)
    assert len(list(openings.folder.glob("journal/*.manifests"))) == 1


async def test_a_trusted_manifest_that_was_damaged_is_not_gone_back_to(
    openings: Openings,
) -> None:
    store = await openings.open()
    await commit(store, 1, 2, flush=True)
    await store.abandon()
    path = guard._manifest_path(openings.folder, max(guard._read(openings.folder)))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptError, match="is not what was written"):
        await openings.open()


async def test_an_opening_that_was_given_up_goes_back_to_nothing(openings: Openings) -> None:
    store = await openings.open()
    await commit(store, 1, 2, flush=True)
    there = names(openings.folder, "manifest"), names(openings.folder, "compactions")

    def given_up() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard.distrust(openings.folder, epoch=9, check=given_up)
    assert (names(openings.folder, "manifest"), names(openings.folder, "compactions")) == there


# -- the engine's own format


async def test_the_engine_reads_the_epochs_that_are_written_into_its_files(
    openings: Openings,
) -> None:
    store = await openings.open()
    await commit(store, 1, 2, 3, flush=True)
    await store.checkpoint(lifetime_ms=60_000)
    await store.abandon()
    folder = openings.folder
    manifests = sorted((folder / "store" / "manifest").iterdir())
    left_out = 0
    for path in manifests:
        data = path.read_bytes()
        before = await read_manifest(folder, int(path.stem))
        assert enginefiles.epochs(data) == (before.writer_epoch, before.compactor_epoch)
        left_out += before.compactor_epoch == 0
        if before.writer_epoch == 0:
            continue
        target = guard._manifest_path(folder, 1000 + int(path.stem))
        target.write_bytes(enginefiles.with_epochs(data, writer=77, compactor=2**40))
        after = await read_manifest(folder, int(target.stem))
        assert (after.writer_epoch, after.compactor_epoch) == (77, 2**40)
        assert (after.last_l0_seq, len(after.l0), len(after.checkpoints)) == (
            before.last_l0_seq,
            len(before.l0),
            len(before.checkpoints),
        )
    assert left_out, "a field that has its default is not in the file"
    newest = folder / "store" / "compactions" / f"{1000:020d}.compactions"
    newest.write_bytes(enginefiles.no_compactions(compactor=5))
    place = Place.folder(folder / "store")
    admin = engine.AdminBuilder(place.path, place.objects).build()
    found = await admin.read_compactions(1000)
    assert found is not None
    assert (found.compactor_epoch, list(found.recent_compactions)) == (5, [])


def test_bytes_that_are_no_manifest_have_no_epochs(closed: Path) -> None:
    _, path = guard._newest(closed) or pytest.fail("there is no manifest")
    data = path.read_bytes()
    assert enginefiles.epochs(data) is not None
    for torn in (b"", b"\x00\x02", bytes(len(data)), data[:20], b"\x00\x02" + b"\xff" * 60):
        assert enginefiles.epochs(torn) is None
    with pytest.raises(CorruptError):
        enginefiles.with_epochs(b"", writer=1, compactor=1)
