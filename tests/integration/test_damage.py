"""Damage: one file of a small store is cut, emptied, removed or has a bit flipped.

Reading gives everything, or a CorruptError; never less than everything, never another error, never
a hang. One damage cannot be found: the newest WAL objects of a bucket vanish, and nothing that is
left speaks of them (store/bucket.py, Limit).
"""

from __future__ import annotations

import os
import random
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import boto3
import pytest

from conformance.factories import BUCKET
from integration.children import Child
from integration.damage import (
    BucketCopies,
    Damage,
    FolderCopies,
    Found,
    Reader,
    Reading,
    Result,
    cases,
    files_of,
    sweep,
    table,
)
from integration.seeds import fresh_seed
from penstock.codec.journal import HEADER_BYTES, MARK, decode_record
from penstock.store import guard
from penstock.store.epoch import segment_path
from penstock.store.recovery import read_head

ROUNDS = 6
#: What SlateDB writes without a checksum of the file, and without a sync.
KINDS = ("manifest", "compactions")


def journal_is_marked(folder: Path) -> bool:
    """Whether the last record of the journal is a mark, which an idle writer leaves behind it."""
    head = read_head(folder)
    assert head is not None
    name = head.segments[-1]
    data = segment_path(folder, name.epoch, name.slot).read_bytes()
    at, kind = HEADER_BYTES, 0
    while (record := decode_record(data, at, name.salt)) is not None:
        at, kind = record.end, record.kind
    return kind == MARK


def manifest_is_known(folder: Path) -> bool:
    """Whether the newest manifest is guarded: for a moment after it was written it is not."""
    newest = guard._newest(folder)
    return newest is not None and newest[0] in guard._read(folder)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store that was closed, and the same one after more writing and a kill."""
    base = tmp_path_factory.mktemp("damage")
    live, closed, killed = base / "live", base / "closed", base / "killed"
    with Child("damage_builder", live, ROUNDS) as child:
        child.hear_until("closed")
        shutil.copytree(live, closed)
        child.tell("go")
        child.hear_until("written")
        while not (journal_is_marked(live / "journal") and manifest_is_known(live)):
            child.drain(0.01)
        child.kill()
    shutil.copytree(live, killed, ignore=shutil.ignore_patterns("*.sock"))
    return {"closed": closed, "killed": killed}


@pytest.fixture(scope="module")
def unsynced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without synchronous folders, after a kill: the newest manifest is not trusted."""
    base = tmp_path_factory.mktemp("unsynced")
    live, killed = base / "live", base / "killed"
    with Child("damage_builder", live, ROUNDS, "unsynced") as child:
        child.hear_until("closed")
        child.tell("go")
        child.hear_until("written")
        while not journal_is_marked(live / "journal"):
            child.drain(0.01)
        child.kill()
    shutil.copytree(live, killed, ignore=shutil.ignore_patterns("*.sock"))
    assert not manifest_is_known(killed)
    return killed


def contents(folder: Path, scratch: Path, mode: str) -> Found:
    shutil.copytree(folder, scratch / "whole")
    reader = Reader(mode)
    reader.ask(str(scratch / "whole"))
    reading = reader.answer()
    reader.end()
    assert isinstance(reading, Reading)
    assert reading.found is not None, reading.text
    assert reading.again
    assert all(reading.found.values())
    return reading.found


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_of(folder)}


def sweep_files(
    folder: Path, scratch: Path, damages: list[Damage], mode: str = "os"
) -> list[Result]:
    expected = contents(folder, scratch, mode)
    before = bytes_of(folder)
    results = list(sweep(FolderCopies(folder, scratch), damages, expected, mode))
    assert bytes_of(folder) == before, "a store changed a file in place"
    print(table(results), *findings(results), sep="\n")
    return results


def findings(results: list[Result]) -> list[str]:
    return [
        f"{result.damage} -> {result.outcome} {result.text}"
        for result in results
        if result.outcome not in ("same", "corrupt")
    ]


@pytest.mark.parametrize("state", ["closed", "killed"])
def test_damage_to_a_file_is_found_or_harmless(
    built: dict[str, Path], tmp_path: Path, state: str
) -> None:
    """The newest file of each kind, and one damage of each kind to another one of them."""
    seed = fresh_seed()
    print(f"seed {seed}")
    damages = some_of_each(built[state], random.Random(seed))
    assert findings(sweep_files(built[state], tmp_path, damages)) == []


def some_of_each(folder: Path, rng: random.Random) -> list[Damage]:
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in files_of(folder):
        groups[str(Path(name).parent), Path(name).suffix].append(name)
    damages: list[Damage] = []
    for names in groups.values():
        all_cases = cases(names[-1], (folder / names[-1]).read_bytes(), rng)
        damages += [case for case in all_cases if case.kind != "flip"]
        damages += (
            rng.sample([case for case in all_cases if case.kind == "flip"] or [], k=2)
            if (len(all_cases) > 3)
            else []
        )
        other = rng.choice(names)
        damages.append(rng.choice(cases(other, (folder / other).read_bytes(), rng)))
    return damages


def test_damage_without_synchronous_folders_is_found_or_harmless(
    unsynced: Path, tmp_path: Path
) -> None:
    seed = fresh_seed()
    print(f"seed {seed}")
    damages = some_of_each(unsynced, random.Random(seed))
    assert findings(sweep_files(unsynced, tmp_path, damages, "unsynced")) == []


def test_what_no_sync_covered_may_be_lost_and_torn_in_a_power_cut(
    unsynced: Path, tmp_path: Path
) -> None:
    """Not damage: on such a file system this is what any power cut may leave."""
    (trusted,) = guard._read(unsynced)
    torn = [
        name
        for name in files_of(unsynced)
        if ("/manifest/" in name and int(Path(name).stem) > trusted) or "/compactions/" in name
    ]
    assert any("/manifest/" in name for name in torn)
    newest = [max(name for name in torn if f"/{kind}/" in name) for kind in KINDS]
    damages = [Damage(name, kind) for name in newest for kind in ("missing", "half", "empty")] + [
        Damage(name, "flip", at) for name in newest for at in (0, 1, 9)
    ]
    results = sweep_files(unsynced, tmp_path, damages, "unsynced")
    assert {result.outcome for result in results} == {"same"}, findings(results)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("state", ["closed", "killed"])
def test_damage_to_any_file_is_found_or_harmless(
    built: dict[str, Path], tmp_path: Path, state: str
) -> None:
    seed = fresh_seed()
    print(f"seed {seed}")
    rng = random.Random(seed)
    folder = built[state]
    damages = [
        case for name in files_of(folder) for case in cases(name, (folder / name).read_bytes(), rng)
    ]
    assert findings(sweep_files(folder, tmp_path, damages)) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_damage_to_any_file_without_synchronous_folders_is_found_or_harmless(
    unsynced: Path, tmp_path: Path
) -> None:
    rng = random.Random(fresh_seed())
    damages = [
        case
        for name in files_of(unsynced)
        for case in cases(name, (unsynced / name).read_bytes(), rng)
    ]
    assert findings(sweep_files(unsynced, tmp_path, damages, "unsynced")) == []


@pytest.mark.parametrize("lost", ["newer manifests", "all manifests", "store", "journal"])
def test_a_folder_of_which_a_part_went_back_in_time_is_found(
    built: dict[str, Path], tmp_path: Path, lost: str
) -> None:
    """As after the restore of an old backup, or of half of one."""
    folder = tmp_path / "data"
    shutil.copytree(built["closed"], folder)
    if lost in ("store", "journal"):
        shutil.rmtree(folder / lost)
    else:
        manifests = sorted((folder / "store" / "manifest").iterdir())
        for path in manifests[len(manifests) // 3 if lost == "newer manifests" else 0 :]:
            path.unlink()
    reader = Reader()
    reader.ask(str(folder))
    reading = reader.answer()
    reader.end()
    assert isinstance(reading, Reading)
    assert reading.error == "CorruptError", reading


# -- buckets


@pytest.fixture(scope="module")
def objects(server: None) -> dict[str, bytes]:
    """A store in a bucket after some sessions, the last one killed: every object by its key."""
    location = f"s3://{BUCKET}/damage"
    with Child("damage_builder", location, 2) as child:
        child.hear_until("closed")
        child.tell("go")
        child.hear_until("written")
        child.kill()
    prefix = location.removeprefix(f"s3://{BUCKET}/") + "/"
    client = bucket_client()
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]
    return {
        found["Key"].removeprefix(prefix): client.get_object(Bucket=BUCKET, Key=found["Key"])[
            "Body"
        ].read()
        for found in listed
    }


def bucket_client() -> Any:
    return boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT"])


def sweep_objects(bucket: str, objects: dict[str, bytes], damages: list[Damage]) -> list[Result]:
    copies = BucketCopies(bucket_client(), f"{bucket}-copies", objects)
    reader = Reader()
    reader.ask(copies.make(-1, Damage("", "")))
    reading = reader.answer()
    reader.end()
    assert isinstance(reading, Reading)
    assert reading.found is not None, reading.text
    assert all(reading.found.values())
    results = list(sweep(copies, damages, reading.found))
    print(table(results), *findings(results), sep="\n")
    return results


def logs_of(objects: dict[str, bytes]) -> list[str]:
    """The WAL objects that hold something, oldest first; an empty one only fences."""
    return [name for name, data in sorted(objects.items()) if "/wal/" in name and data]


def test_a_lost_wal_object_in_the_middle_of_a_bucket_is_found(
    bucket: str, objects: dict[str, bytes]
) -> None:
    # The last session wrote ten commits, all of them in the WAL only.
    middle = logs_of(objects)[-9:-1]
    rng = random.Random(fresh_seed())
    name = rng.choice(middle)
    damages = [Damage(name, "missing"), Damage(name, "empty"), Damage(name, "half")]
    damages.append(Damage(name, "flip", rng.randrange(len(objects[name]))))
    results = sweep_objects(bucket, objects, damages)
    assert {result.outcome for result in results} == {"corrupt"}, findings(results)


def test_a_lost_tail_of_a_bucket_is_a_shorter_log_and_nothing_worse(
    bucket: str, objects: dict[str, bytes]
) -> None:
    """The limit that bucket.py states: this loss cannot be seen, so this is what it looks like."""
    newest = logs_of(objects)[-1]
    (result,) = sweep_objects(bucket, objects, [Damage(newest, "missing")])
    assert result.outcome in ("prefix", "same"), result.text


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_damage_to_any_object_of_a_bucket_is_found_or_harmless(
    bucket: str, objects: dict[str, bytes]
) -> None:
    rng = random.Random(fresh_seed())
    newest = logs_of(objects)[-1]
    # Each case copies every object through the server, so one flipped bit per object has to do.
    damages = []
    for name, data in objects.items():
        found = cases(name, data, rng)
        damages += [case for case in found if case.kind != "flip"]
        damages += rng.sample([case for case in found if case.kind == "flip"], k=min(1, len(data)))
    results = sweep_objects(bucket, objects, damages)
    undetected = {Damage(newest, kind) for kind in ("missing", "empty")}
    rest = [result for result in results if result.damage not in undetected]
    assert findings(rest) == []
