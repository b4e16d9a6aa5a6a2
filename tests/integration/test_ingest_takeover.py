"""Runners of one source that die, stop and come back, at every moment that matters.

Leases and signs of life really end: tests wait for what follows from that, not for a time. A runner
in a process of its own waits at a moment, and is killed there with -9, or stopped with SIGSTOP.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import pytest

from integration.ingest_world import PATIENCE_SECONDS, SHORT, World, report_of
from penstock.source.memoryqueue import MemoryQueue
from penstock.source.queueport import Received
from penstock.source.requests import BOF


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as world:
        yield world


def test_an_undisturbed_run_loads_every_row_once(world: World) -> None:
    world.put_and_announce("a.json", "b.json")
    world.announce("a.json")
    report = world.run()
    assert (report.files, report.rows, report.duplicates, report.failed) == (2, 6, 1, 0)
    assert world.waiting() == 0
    world.check()


# ---- whose shard it is ------------------------------------------------------------------------


def test_a_fresh_foreign_shard_is_dropped_without_an_acknowledgement(world: World) -> None:
    world.put_and_announce("a.json")
    with world.child("before Publish") as owner:
        assert owner.hear() == "at before Publish"
        world.announce("a.json")
        report = world.run()
        assert (report.files, report.rows) == (0, 0)
        assert world.waiting() == 2  # the owner's own, and the one that was dropped
        assert world.counts() == {}
        owner.tell("go")
        assert report_of(owner).files == 1
    world.settle()
    world.check()


def test_what_is_loaded_is_acknowledged_without_reading_it_again(world: World) -> None:
    world.put_and_announce("a.json")
    world.run()
    (world.folder / "in" / "a.json").unlink()
    world.announce("a.json", "a.json")
    report = world.run()
    assert (report.files, report.duplicates, report.failed) == (0, 2, 0)
    assert world.waiting() == 0
    world.check()


def test_a_stale_shard_is_resumed_at_its_position(world: World) -> None:
    world.put_and_announce("a.json", rows=40)
    with world.child("before Publish", SHORT, chunk_bytes=400, times=3) as owner:
        assert owner.hear() == "at before Publish"
        owner.kill()
    shard = world.shards()["a.json"]
    assert shard.phase == "open"
    assert shard.position not in (BOF, "EOF")
    assert 0 < shard.rows < 40
    report = world.settle(SHORT, chunk_bytes=400)
    assert (report.files, report.rows) == (1, 40 - shard.rows)
    world.check()
    positions = world.loaded()["_position"].to_pylist()
    assert len(set(positions)) == 40


def test_of_two_that_acquire_a_stale_shard_one_has_it(world: World) -> None:
    world.put_and_announce("a.json")
    with world.child("before Publish", SHORT) as owner:
        owner.hear()
        owner.kill()
    with ExitStack() as stack:
        rivals = [
            stack.enter_context(world.child("before AcquireShards", SHORT, once=False))
            for _ in range(2)
        ]
        # Whoever has the one message waits; then there is another one for the other rival.
        select.select([rival.output for rival in rivals], [], [], PATIENCE_SECONDS)
        world.announce("a.json")
        for rival in rivals:
            assert rival.hear() == "at before AcquireShards"
        for rival in rivals:
            rival.tell("go")
        world.settle()
        for rival in rivals:
            rival.kill()
    assert world.source().published == 1
    world.settle(SHORT)
    world.check()


@pytest.mark.parametrize("moment", ["after job", "before Publish"])
def test_a_process_that_was_stopped_before_its_publish_loses_to_the_one_that_took_over(
    world: World, moment: str
) -> None:
    world.put_and_announce("a.json", "b.json")
    with world.child(moment, SHORT) as stopped:
        assert stopped.hear() == f"at {moment}"
        stopped.stop()
        assert (world.table / "splits").is_dir()  # its rows are written, and not published
        report = world.settle(SHORT)
        assert (report.files, report.rows) == (2, 6)
        stopped.resume()
        stopped.tell("go")
        late = report_of(stopped)
    assert (late.files, late.rows, late.failed) == (0, 0, 0)
    world.check()


def test_a_process_that_was_stopped_and_lost_nothing_goes_on(world: World) -> None:
    """Nobody took over: its shards are stale, but they are its own."""
    world.put_and_announce("a.json")
    with world.child("before Publish", SHORT) as stopped:
        stopped.hear()
        stopped.stop()
        world.until(lambda: world.shards()["a.json"].stale)
        stopped.resume()
        stopped.tell("go")
        assert report_of(stopped).files == 1
    world.settle()
    world.check()


def test_a_runner_takes_no_more_than_it_is_about_to_load(world: World) -> None:
    """What it holds, others cannot load; and all of it needs signs of life."""

    class Asked(MemoryQueue):
        asked: ClassVar[list[int]] = []

        def receive(self, max_messages: int, wait: float) -> list[Received]:
            self.asked.append(max_messages)
            return super().receive(max_messages, wait)

    queue = Asked()
    for i in range(20):
        queue.send(world.put(f"{i}.json"))
    assert world.run(queue=queue, max_files=3).files == 20
    assert 1 <= min(Asked.asked) <= max(Asked.asked) == 6
    assert len(queue) == 0
    world.check()


# ---- the moment of death ----------------------------------------------------------------------


def test_killed_before_publish_nothing_is_acknowledged_and_another_one_loads_it(
    world: World,
) -> None:
    world.put_and_announce("a.json")
    with world.child("before Publish", SHORT) as victim:
        victim.hear()
        victim.kill()
    assert (world.waiting(), world.queue.stats().done) == (1, 0)
    assert world.settle(SHORT).rows == 3
    world.check()


def test_killed_between_publish_and_acknowledgement_it_is_acknowledged_later_and_not_read(
    world: World,
) -> None:
    world.put_and_announce("a.json")
    with world.child("after Publish", SHORT) as victim:
        assert victim.hear() == "at after Publish"
        assert (world.waiting(), world.queue.stats().done) == (1, 0)
        victim.kill()
    (world.folder / "in" / "a.json").unlink()
    report = world.settle(SHORT)
    assert (report.files, report.rows, report.duplicates, report.failed) == (0, 0, 1, 0)
    world.check()


def test_killed_between_publish_and_export_the_next_run_exports_at_its_start(world: World) -> None:
    world.put_and_announce("a.json")
    with world.child("before export", SHORT, times=2) as victim:  # the first is at its start
        assert victim.hear() == "at before export"
        victim.kill()
    assert world.waiting() == 1  # what tells others that there is something to do
    assert world.counts() == {}
    assert world.run(SHORT).files == 0
    assert len(world.counts()) == 3
    world.settle(SHORT)
    world.check()


def test_killed_between_the_commit_of_the_table_and_its_mark_nothing_comes_twice(
    world: World,
) -> None:
    world.put_and_announce("a.json")
    with world.child("before MarkExported", SHORT) as victim:
        assert victim.hear() == "at before MarkExported"
        victim.kill()
    source = world.source()
    assert (source.published, source.exported) == (1, 0)
    assert len(world.counts()) == 3
    world.put_and_announce("b.json")
    assert world.settle(SHORT).files == 1
    world.check()


def test_killed_before_the_commit_of_the_table_it_is_exported_by_the_next_one(
    world: World,
) -> None:
    world.put_and_announce("a.json")
    with world.child("before commit", SHORT) as victim:
        victim.hear()
        victim.kill()
    world.settle(SHORT)
    world.check()


# ---- the table --------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before prepare", "before commit"])
def test_four_processes_make_the_table_and_export_to_it_at_once(world: World, moment: str) -> None:
    """Each holds the state that the table had before any of them, and has something to export."""
    with ExitStack() as stack:
        children = [stack.enter_context(world.child(moment, once=False)) for _ in range(4)]
        ahead = {child.output: child for child in children}
        for i in range(4):
            world.put_and_announce(f"{i}.json")
            ready, _, _ = select.select(list(ahead), [], [], PATIENCE_SECONDS)
            assert ahead.pop(ready[0]).hear() == f"at {moment}"
        assert world.counts() == {}
        for child in children:
            child.tell("go")
        world.until(lambda: world.waiting() == 0)
        world.until(lambda: world.source().exported == world.source().published)
        for child in children:
            child.kill()
    world.check()


def test_two_that_read_the_same_mark_do_not_both_commit(world: World) -> None:
    """The slower one has an old handle of the table; what it wants to add is there already."""
    world.put_and_announce("a.json")
    with world.child("before commit") as slow:
        assert slow.hear() == "at before commit"
        world.run()
        assert len(world.counts()) == 3
        slow.tell("go")
        assert report_of(slow).files == 1
    world.check()
