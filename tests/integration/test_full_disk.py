"""A full disk: every call answers, reads go on, and with the space writing comes back by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from integration.calls import DEADLINE_SECONDS, answer_of, write_noted, write_until_accepted
from integration.children import Child
from integration.ledger import Ledger, entries
from integration.lossyfs import Kind, mounted

BIG = 4000  # entries of some 90 bytes: a journal segment takes some forty such batches


def write_until_refused(stream: penstock.Stream, ledger: Ledger, name: str) -> None:
    for number in range(2000):
        try:
            write_noted(stream, ledger, f"{name}.{number}", BIG)
        except penstock.UnavailableError:
            return
    raise AssertionError("the disk was never full")


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_on_a_full_disk_every_call_answers_and_writing_comes_back(
    tmp_path: Path, kind: Kind
) -> None:
    ledger = Ledger()
    with mounted(tmp_path / "disk", kind=kind, size_mib=128) as disk:
        with penstock.open(disk.path / "data", deadline=DEADLINE_SECONDS) as db:
            stream = db.stream("mixed")
            for run in range(2):
                write_until_accepted(stream, ledger, f"before{run}")
                disk.fill()
                write_until_refused(stream, ledger, f"full{run}")
                for _ in range(3):
                    with pytest.raises(penstock.UnavailableError):
                        answer_of(lambda: stream.write_many(entries("x", BIG)))
                assert answer_of(lambda: stream.read(0, 7)) == stream.read(0, 7)
                assert [m.data for m in stream.read(0, 7) if m] == entries("before0.0", 7)
                disk.drain()
                write_until_accepted(stream, ledger, f"after{run}")
            ledger.verify(db)
        with penstock.open(disk.path / "data", deadline=DEADLINE_SECONDS) as db:
            ledger.verify(db)


def test_a_kill_on_a_full_disk_loses_nothing_and_opening_waits_for_space(tmp_path: Path) -> None:
    ledger = Ledger()
    with mounted(tmp_path / "disk", size_mib=128) as disk:
        with Child("crash_writer", disk.path / "data", 1) as child:
            child.tell("0 0")
            ledger.note(child.hear_until("open"))
            ledger.note(child.hear_until("ack"))
            disk.fill()
            # The writer ends with the first refusal, or is killed while the journal has room left.
            ledger.note(child.drain(1.0))
            ledger.note(child.kill())
        disk.fill()  # also what the dead process let go of
        with pytest.raises(penstock.UnavailableError):
            answer_of(lambda: penstock.open(disk.path / "data", deadline=DEADLINE_SECONDS))
        disk.drain()
        with penstock.open(disk.path / "data", deadline=DEADLINE_SECONDS) as db:
            ledger.verify(db)
            write_until_accepted(db.stream("mixed"), ledger, "after")
            ledger.verify(db)
