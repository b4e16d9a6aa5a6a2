"""From what is published to the table: whoever published it, and whatever became of them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.errors import ConflictError, FencedError, PenstockError, UnavailableError
from penstock.source.queueport import Received
from penstock.spark.ingest.delta import DeltaTarget
from unit.spark.ingest.world import InProcessSpark, World

ID = pa.schema([("id", pa.int64())])


class Killed(BaseException):
    """What a test does instead of kill -9."""


def killed_before_its_export(world: World) -> None:
    """Another process: it takes what is announced, publishes it, and is no more."""

    def die(self: object, handle: object, rows: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaTarget, "_commit", die)
        with pytest.raises(Killed):
            world.ingest(schema=ID, spark=InProcessSpark()).run(once=True)
    source = world.source()
    assert source.published == source.exported + 1


def at_the_first_receive(world: World, happens: Callable[[], object]) -> None:
    """A run that has begun, and exported what there was."""
    receive = world.queue.receive
    begun: list[int] = []

    def received(max_messages: int, wait: float) -> list[Received]:
        if not begun:
            begun.append(1)
            happens()
        return receive(max_messages, wait)

    world.queue.receive = received  # type: ignore[method-assign]


def watched(world: World) -> list[list[Any]]:
    """-> what the table had, at every acknowledgement"""
    acknowledge = world.queue.acknowledge
    found: list[list[Any]] = []

    def acknowledged(received: Sequence[Received]) -> list[bool]:
        found.append(world.ids())
        return acknowledge(received)

    world.queue.acknowledge = acknowledged  # type: ignore[method-assign]
    return found


def test_a_message_is_acknowledged_when_the_table_has_its_rows(world: World) -> None:
    world.write("a.json", {"id": 1})
    had = watched(world)
    world.ingest().run(once=True)
    assert had == [[1]]


def test_what_a_killed_process_published_is_exported_by_who_gets_its_message(world: World) -> None:
    world.write("a.json", {"id": 1})
    had = watched(world)

    def other() -> None:
        killed_before_its_export(world)
        world.clock.moved += 200  # the message comes again

    at_the_first_receive(world, other)
    report = world.ingest(schema=ID).run(once=True)
    assert (report.files, report.duplicates) == (0, 1)
    assert had == [[1]]
    assert world.source().exported == 1
    assert len(world.queue) == 0


def test_a_run_that_ends_exports_what_is_published_though_its_message_is_held(world: World) -> None:
    world.write("a.json", {"id": 1})
    at_the_first_receive(world, lambda: killed_before_its_export(world))
    assert world.ingest(schema=ID).run(once=True).files == 0
    assert world.ids() == [1]
    assert len(world.queue) == 1


def test_a_run_that_goes_on_exports_what_is_published_though_no_message_comes(
    world: World,
) -> None:
    world.ingest(schema=ID).run(once=True)
    world.write("a.json", {"id": 1})
    at_the_first_receive(world, lambda: killed_before_its_export(world))
    ingest = world.ingest(schema=ID, linger=0.01, commit_timeout=0.1)
    runs = threading.Thread(target=ingest.run)
    runs.start()
    try:
        for _ in range(2000):
            if world.source().exported == 1:
                break
            threading.Event().wait(0.01)
    finally:
        ingest.stop()
        runs.join()
    assert world.ids() == [1]
    assert len(world.queue) == 1


def test_a_table_that_has_everything_is_not_opened_again_and_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a.json", {"id": 1})
    world.ingest(schema=ID).run(once=True)
    export, exports = DeltaTarget.export, []

    def counted(self: DeltaTarget, *rest: Any) -> int:
        exports.append(1)
        return export(self, *rest)

    monkeypatch.setattr(DeltaTarget, "export", counted)
    for _ in range(3):
        world.queue.send(str(world.files / "a.json"))
        world.queue.send(str(world.files / "missing.json"))
    assert world.ingest(schema=ID).run(once=True).duplicates == 5
    assert len(exports) == 1  # at the start


@pytest.mark.parametrize("error", [UnavailableError, FencedError])
def test_an_acknowledgement_that_meets_no_broker_ends_nothing(
    world: World, error: type[PenstockError]
) -> None:
    """Its shards are terminal: when the message comes again, it is acknowledged at once."""
    world.write("a.json", {"id": 1})
    acknowledge = world.queue.acknowledge

    def lost(received: Sequence[Received]) -> list[bool]:
        world.queue.acknowledge = acknowledge  # type: ignore[method-assign]
        raise error("another process serves this location")

    world.queue.acknowledge = lost  # type: ignore[method-assign]
    assert world.ingest().run(once=True).files == 1
    assert world.ids() == [1]
    assert len(world.queue) == 1
    world.clock.moved += 200
    assert world.ingest().run(once=True).duplicates == 1
    assert len(world.queue) == 0


def test_a_location_restored_without_its_table_is_refused_at_once_and_told_why(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a.json", {"id": 1})
    world.ingest(schema=ID).run(once=True)
    world.database.close()
    shutil.copytree(world.location, world.folder / "backup")
    world.database = penstock.open(world.location)
    world.write("b.json", {"id": 2})
    world.ingest(schema=ID).run(once=True)
    world.database.close()
    shutil.rmtree(world.location)
    shutil.copytree(world.folder / "backup", world.location)
    world.database = penstock.open(world.location)
    tries: list[int] = []
    export_some = DeltaTarget._export_some

    def counted(self: DeltaTarget, *rest: Any) -> int:
        tries.append(1)
        assert len(tries) < 3
        return export_some(self, *rest)

    monkeypatch.setattr(DeltaTarget, "_export_some", counted)
    with pytest.raises(ConflictError, match="the table is newer than the location") as refused:
        world.ingest(schema=ID).run(once=True)
    assert "was the location restored?" in str(refused.value.hint)
    assert len(tries) == 1
    assert world.ids() == [1, 2]
