"""Power loss: the file system is cut off while it is written to; a reboot finds what was synced."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import penstock
from integration.children import Child
from integration.ledger import Ledger
from integration.lossyfs import OwnDisk, mounted
from integration.seeds import fresh_seed


def test_the_file_system_keeps_what_was_synced_and_loses_the_rest(tmp_path: Path) -> None:
    """The instrument itself: without this the tests below could not fail."""
    with mounted(tmp_path / "disk", size_mib=32) as disk:
        with (disk.path / "synced").open("wb", buffering=0) as synced:
            synced.write(b"s" * 5000)
            os.fsync(synced.fileno())  # of a new file this makes the name durable too, on ext4
            synced.write(b"u" * 5000)
        (disk.path / "unsynced").write_bytes(b"u")
        disk.cut()
        disk.remount()
        assert (disk.path / "synced").read_bytes().rstrip(b"\0") == b"s" * 5000
        assert not (disk.path / "unsynced").exists()


def cut_once(
    disk: OwnDisk, ledger: Ledger, rng: random.Random, *, run: int, durability: str = "power"
) -> None:
    """Write, cut the power while writing, and come back."""
    with Child("crash_writer", disk.path / "data", rng.randrange(1 << 30), durability) as child:
        child.tell(f"{run} {ledger.sequence}")
        ledger.note(child.hear_until("open"))
        ledger.note(child.hear_until("ack"))
        ledger.note(child.drain(rng.uniform(0, 0.4)))
        disk.cut()
        ledger.note(child.kill())
    disk.remount()


def cut_again_and_again(folder: Path, *, cuts: int) -> None:
    seed = fresh_seed()
    print(f"seed {seed}")
    rng = random.Random(seed)
    with mounted(folder, size_mib=1024) as disk:
        ledger = Ledger()
        for run in range(cuts):
            cut_once(disk, ledger, rng, run=run)
            if rng.random() < 0.5 or run == cuts - 1:
                with penstock.open(disk.path / "data") as db:
                    ledger.verify(db, seed=run)
        assert ledger.acks > cuts


def test_two_power_cuts_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    cut_again_and_again(tmp_path / "disk", cuts=2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(4))
def test_twenty_power_cuts_lose_nothing_that_was_acknowledged(tmp_path: Path, part: int) -> None:
    cut_again_and_again(tmp_path / "disk", cuts=5)


def test_without_syncing_the_same_power_cut_does_lose_data(tmp_path: Path) -> None:
    """durability="os" promises less, and the test above can fail."""
    rng = random.Random(fresh_seed())
    with mounted(tmp_path / "disk", size_mib=1024) as disk:
        ledger = Ledger()
        cut_once(disk, ledger, rng, run=0, durability="os")
        with pytest.raises((AssertionError, penstock.CorruptError)):  # noqa: SIM117
            with penstock.open(disk.path / "data") as db:
                ledger.verify(db)
