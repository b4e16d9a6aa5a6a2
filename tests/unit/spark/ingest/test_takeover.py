"""Who loads a file when several processes want it, and what a killed one leaves."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PythonException

from penstock.errors import CorruptError, NotFoundError, UnavailableError
from penstock.source import publish
from penstock.source.identity import shard_id
from penstock.source.requests import (
    AcquireShards,
    FinishStagings,
    ListFiles,
    OpenShards,
    OpenSource,
    Publish,
    Published,
    PutSchema,
    Refused,
    ReleaseShards,
    RevokeStagings,
    ShardOpen,
    Takeover,
    position_text,
)
from penstock.spark.ingest import announced, loader, readers, shared, sparkjob, task
from penstock.spark.ingest.coordinator import Coordinator
from penstock.spark.ingest.delta import DeltaTarget
from penstock.spark.ingest.files import Stat, stat
from penstock.spark.ingest.keeper import Keeper
from penstock.spark.ingest.schema import to_text
from penstock.spark.ingest.shared import Shared
from penstock.spark.ingest.task import Job, TaskResult
from unit.spark.ingest.world import InProcessSpark, World

FOREIGN = "f" * 32
ID = pa.schema([("id", pa.int64())])


class Killed(BaseException):
    """What a test does instead of kill -9."""


def claim(world: World, path: Path, *, stale_ms: int = 3_600_000) -> None:
    """Another process has this file."""
    source = world.database.sources.ask(
        OpenSource(str(world.table_path), str(world.table_path), max_failures=3)
    )
    uri = f"file://{path}"
    (shard,) = world.database.sources.ask(
        OpenShards(source.id, FOREIGN, stale_ms, [ShardOpen(uri, uri)])
    ).shards
    assert shard.token == FOREIGN


def until(condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not come to pass")


def no_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeper, "_send_beat", lambda self: 3600.0)


def test_a_file_that_another_process_works_on_is_dropped_not_acknowledged(world: World) -> None:
    path = world.write("a.json", {"id": 1})
    world.write("b.json", {"id": 2})
    claim(world, path)
    report = world.ingest().run(once=True)
    assert (report.files, report.rows) == (1, 1)
    assert world.ids() == [2]
    assert len(world.queue) == 1
    assert world.shards()["a.json"].token == FOREIGN
    assert world.ingest().run(once=True).files == 0  # leased: it does not wait for it


def test_a_stale_file_is_taken_over_when_its_message_comes_again(world: World) -> None:
    path = world.write("a.json", {"id": 1})
    claim(world, path, stale_ms=1)
    until(lambda: world.shards()["a.json"].stale)
    assert world.ingest().run(once=True).files == 1
    assert world.ids() == [1]
    assert len(world.queue) == 0


def test_a_taken_over_file_goes_on_at_its_position(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a.json", *({"id": n} for n in range(300)))
    published: list[Any] = []
    publish = loader.Loader._publish

    def twice(self: Any, *arguments: Any) -> Any:
        if len(published) == 2:
            raise Killed
        published.append(publish(self, *arguments))
        return published[-1]

    monkeypatch.setattr(loader.Loader, "_publish", twice)
    # Killed: nobody releases anything.
    monkeypatch.setattr(Coordinator, "_release", lambda self: None)
    with pytest.raises(Killed):
        world.ingest(chunk_bytes=500, schema=ID, commit_timeout=0.05).run(once=True)
    monkeypatch.undo()
    position = world.shards()["a.json"].position
    assert position == position_text(int(position)) != position_text(0)
    world.clock.moved += 31
    until(lambda: world.shards()["a.json"].stale)
    report = world.ingest(chunk_bytes=500, schema=ID).run(once=True)
    assert 0 < report.rows < 300
    assert world.ids() == list(range(300))
    assert len(world.queue) == 0


def test_of_two_who_read_the_same_file_one_commits_and_the_other_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_beats(monkeypatch)
    world.write("a.json", {"id": 1})
    world.write("b.json", {"id": 2})
    other = InProcessSpark()
    reports: list[Any] = []

    def meanwhile() -> None:
        """While the first one reads, it is silent for too long, and the second one takes over."""
        if reports:
            return
        until(lambda: all(shard.stale for shard in world.shards().values()))
        world.clock.moved += 31  # the leases of the messages are over, too
        reports.append(None)
        reports[0] = world.ingest(schema=ID, spark=other).run(once=True)

    world.spark.before = meanwhile
    slow = world.ingest(schema=ID, commit_timeout=0.05).run(once=True)
    assert reports[0].files == 2
    assert (slow.files, slow.rows) == (0, 0)
    assert world.ids() == [1, 2]
    assert len(world.splits()) == DeltaTable(world.table_path).get_add_actions().num_rows
    assert len(world.queue) == 0


def test_who_lost_a_file_while_reading_does_not_acknowledge_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_beats(monkeypatch)
    world.write("a.json", {"id": 1})

    def steal() -> None:
        until(lambda: world.shards()["a.json"].stale)
        shard = world.shards()["a.json"]
        request = AcquireShards(
            world.source().id, FOREIGN, 3_600_000, [Takeover(shard.id, shard.token)]
        )
        assert world.database.sources.ask(request).shards[0].mine

    world.spark.before = steal
    report = world.ingest(schema=ID, commit_timeout=0.05).run(once=True)
    assert (report.files, report.rows) == (0, 0)
    assert world.shards()["a.json"].token == FOREIGN
    assert len(world.queue) == 1
    assert world.splits() == []


def test_a_file_found_late_does_not_acknowledge_for_a_file_of_another_process(
    world: World,
) -> None:
    busy = world.write("busy.json", {"id": 1}, announce=False)
    late = world.files / "late.json"
    records = [
        {
            "eventName": "ObjectCreated:Put",
            "s3": {"bucket": {"name": "b"}, "object": {"key": path.name}},
        }
        for path in (busy, late)
    ]
    world.write("other.json", {"id": 3})
    world.queue.send(json.dumps({"Records": records}))
    claim_by_version(world, "s3://b/busy.json", "v1")
    versions = {"s3://b/busy.json": "v1"}

    def look(uri: str) -> Stat:
        if uri.startswith("s3:"):
            if uri not in versions:
                raise NotFoundError(f"{uri}: there is no such file")
            return Stat(0, versions[uri])
        return stat(uri)

    def arrive() -> None:
        versions["s3://b/late.json"] = "v2"

    world.spark.before = arrive
    with pytest.MonkeyPatch.context() as patch:
        for module in (announced, loader, readers):
            patch.setattr(module, "stat", look)
        patch.setattr(readers, "open_text", lambda uri, data=None: open_local(world, uri))
        world.ingest(schema=ID, identity="version").run(once=True)
    shards = world.shards()
    assert shards["late.json#v2"].phase == "eof"
    assert shards["busy.json#v1"].phase == "open"
    assert len(world.queue) == 1


@contextlib.contextmanager
def open_local(world: World, uri: str) -> Iterator[IO[bytes]]:
    yield io.BytesIO(b'{"id":2}\n')


def claim_by_version(world: World, uri: str, version: str) -> None:
    source = world.database.sources.ask(
        OpenSource(str(world.table_path), str(world.table_path), "version")
    )
    world.database.sources.ask(
        OpenShards(source.id, FOREIGN, 3_600_000, [ShardOpen(shard_id(uri, version), uri, version)])
    )


def test_a_revoked_staging_is_not_published_and_the_files_are_read_again(world: World) -> None:
    world.write("a.json", {"id": 1})
    revoked: list[int] = []

    def revoke() -> None:
        if revoked:
            return
        source = world.source()
        request = RevokeStagings(source.id, world_token(world), [1])
        revoked.extend(each.id for each in world.database.sources.ask(request).stagings)

    world.spark.before = revoke
    report = world.ingest(schema=ID).run(once=True)
    assert revoked == [1]
    assert report.files == 1
    assert world.ids() == [1]
    assert len(world.splits()) == 1


def test_what_is_written_after_others_cleared_the_staging_away_is_removed(world: World) -> None:
    world.write("a.json", {"id": 1})
    cleared: list[int] = []

    def clear() -> None:
        if not cleared:
            source = world.source().id
            ask = world.database.sources.ask
            revoked = ask(RevokeStagings(source, world_token(world), [1])).stagings
            finished = ask(FinishStagings(source, [each.id for each in revoked])).stagings
            cleared.extend(each.id for each in finished)

    world.spark.before = clear
    assert world.ingest(schema=ID).run(once=True).files == 1
    assert cleared == [1]
    assert world.ids() == [1]
    assert len(world.splits()) == 1
    assert not list((world.table_path / "splits").glob("*-1"))


def test_who_was_stopped_after_its_job_and_wakes_up_drops_what_others_have_loaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a.json", {"id": 1})
    # Stopped: no signs of life.
    monkeypatch.setattr(Keeper, "_send_beat", lambda self: 3600.0)
    run_job, stopped = sparkjob.run_job, [True]

    def stop(spark: Any, runner: Any) -> Any:
        done = run_job(spark, runner)
        if stopped and spark is world.spark:
            stopped.clear()
            until(lambda: world.shards()["a.json"].stale)
            world.clock.moved += 31
            other = world.ingest(schema=ID, spark=InProcessSpark())
            assert other.run(once=True).files == 1
        return done

    monkeypatch.setattr(loader, "run_job", stop)
    report = world.ingest(schema=ID, commit_timeout=0.05).run(once=True)
    assert not stopped
    assert (report.files, report.rows, report.failed) == (0, 0, 0)
    assert world.ids() == [1]
    assert len(world.splits()) == 1


def test_a_repeated_publish_that_nobody_remembers_deletes_nothing_of_the_table(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, and who sent it slept for longer than answers are kept."""
    world.write("a.json", {"id": 1})
    monkeypatch.setattr(publish, "REMEMBERED_MS", 0)
    monkeypatch.setattr(shared, "_PAUSE_SECONDS", 0.0)
    init, answers = Shared.__init__, list[Any]()

    def unsteady(self: Shared, *arguments: Any, ask: Any, **more: Any) -> None:
        def lose(request: Any) -> Any:
            answer = ask(request)
            if isinstance(request, Publish):
                answers.append(answer)
                if len(answers) == 1:
                    raise UnavailableError("the answer was lost")
            return answer

        init(self, *arguments, ask=lose, **more)

    monkeypatch.setattr(Shared, "__init__", unsteady)
    world.ingest(schema=ID).run(once=True)
    assert isinstance(answers[0], Published)
    assert isinstance(answers[1], Refused)
    assert world.ids() == [1]
    assert len(world.splits()) == 1
    world.clock.moved += 200
    assert world.ingest(schema=ID).run(once=True).duplicates == 1
    assert len(world.queue) == 0


def world_token(world: World) -> str:
    """Of the process that has the first file."""
    return next(iter(world.shards().values())).token


def test_a_schema_that_changed_meanwhile_is_used_in_a_second_reading(world: World) -> None:
    world.write("a.json", {"id": 1, "name": "n"})
    changed: list[int] = []

    def change() -> None:
        if not changed:
            changed.append(1)
            wider = pa.schema([*ID, ("name", pa.string())])
            answer = world.database.sources.ask(PutSchema(world.source().id, 1, to_text(wider)))
            assert answer.written

    world.spark.before = change
    report = world.ingest(schema=ID).run(once=True)
    assert (report.files, report.rows) == (1, 1)
    assert world.rows("id", "name", "_rescued_data") == [(1, "n", None)]
    assert len(world.splits()) == 1


def test_killed_between_publish_and_acknowledgement(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a.json", {"id": 1})

    def die(self: object, received: object) -> None:
        raise Killed

    monkeypatch.setattr(Coordinator, "_acknowledge", die)
    with pytest.raises(Killed):
        world.ingest().run(once=True)
    monkeypatch.undo()
    assert world.shards()["a.json"].phase == "eof"
    assert len(world.queue) == 1
    world.clock.moved += 200  # its last extension was for twice the commit timeout
    jobs = world.spark.jobs
    report = world.ingest().run(once=True)
    assert (report.files, report.duplicates) == (0, 1)
    assert world.spark.jobs == jobs  # nothing was read again
    assert world.ids() == [1]
    assert len(world.queue) == 0


def test_killed_between_publish_and_export(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.write("a.json", {"id": 1})

    def die(self: object, handle: object, rows: object) -> None:
        raise Killed

    monkeypatch.setattr(DeltaTarget, "_commit", die)
    with pytest.raises(Killed):
        world.ingest().run(once=True)
    monkeypatch.undo()
    assert world.source().published == 1
    assert world.rows() == []
    assert world.ingest().run(once=True).files == 0
    assert world.ids() == [1]
    assert world.source().exported == 1


def test_killed_between_the_commit_of_the_table_and_its_mark(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a.json", {"id": 1})

    def die(self: object, sequence: int) -> None:
        raise Killed

    monkeypatch.setattr(Shared, "mark", die)
    with pytest.raises(Killed):
        world.ingest().run(once=True)
    monkeypatch.undo()
    assert world.ids() == [1]
    assert world.source().exported == 0
    world.write("b.json", {"id": 2})
    world.ingest().run(once=True)
    assert world.ids() == [1, 2]
    assert world.source().exported == 2


def test_killed_while_reading_leaves_splits_that_the_next_one_clears_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a.json", {"id": 1})

    def die(self: object, *arguments: object) -> None:
        raise Killed

    monkeypatch.setattr(loader.Loader, "_publish", die)
    with pytest.raises(Killed):
        world.ingest(commit_timeout=0.05).run(once=True)
    monkeypatch.undo()
    (left,) = world.splits()
    world.clock.moved += 31

    def loaded() -> bool:
        world.ingest().run(once=True)
        return left not in world.splits()

    until(loaded)
    assert world.ids() == [1]
    assert len(world.splits()) == 1
    assert not list((world.table_path / "splits").glob("*-1"))


def test_four_exporters_at_once_and_an_unknown_outcome(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, commit = DeltaTarget.export, DeltaTarget._commit
    monkeypatch.setattr(DeltaTarget, "export", lambda self, *rest: 0)
    for n in range(6):
        world.write(f"{n}.json", {"id": n})
        world.ingest(schema=ID).run(once=True)
    monkeypatch.undo()
    assert (world.source().published, world.source().exported) == (6, 0)
    assert not world.table_path.joinpath("_delta_log").exists()
    monkeypatch.setattr("penstock.spark.ingest.delta.PUBLISHES_MAX", 2)
    lost: list[int] = []

    def lose_the_answer(self: DeltaTarget, handle: Any, rows: Any) -> None:
        commit(self, handle, rows)
        if len(lost) < 2:
            lost.append(1)
            raise OSError("the connection was lost")

    monkeypatch.setattr(DeltaTarget, "_commit", lose_the_answer)
    start = threading.Barrier(4)

    def together(self: DeltaTarget, *rest: Any) -> int:
        start.wait()
        return original(self, *rest)

    monkeypatch.setattr(DeltaTarget, "export", together)
    threads = [threading.Thread(target=world.ingest(schema=ID).run, args=(True,)) for _ in "1234"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == [1, 1]
    assert world.ids() == list(range(6))
    assert world.source().exported == 6


def test_a_file_that_kills_its_task_fails_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        world.write(f"{n}.json", {"id": n})
    run_task = task.run_task

    def poisoned(job: Job, pieces: Any) -> TaskResult:
        if any(piece.uri.endswith("3.json") for piece in pieces):
            raise PythonException("the worker ended")
        return run_task(job, pieces)

    monkeypatch.setattr(task, "run_task", poisoned)
    report = world.ingest(schema=ID, max_failures=2).run(once=True)
    assert (report.files, report.failed) == (5, 1)
    assert world.ids() == [0, 1, 2, 4, 5]
    assert "the worker ended" in world.shards()["3.json"].error
    assert len(world.splits()) == DeltaTable(world.table_path).get_add_actions().num_rows


def test_spark_that_cannot_run_anything_is_nobodys_fault(world: World) -> None:
    world.write("a.json", {"id": 1})

    def broken() -> None:
        raise PythonException("no module named penstock")

    world.spark.before = broken
    with pytest.raises(UnavailableError, match="Spark cannot run Python tasks: no module"):
        world.ingest().run(once=True)
    shard = world.shards()["a.json"]
    assert (shard.phase, shard.failures, shard.token) == ("open", 0, "")
    assert len(world.queue) == 1


def test_a_table_that_cannot_be_written_is_no_failure_of_a_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("a.json", {"id": 1})

    def full(table: str, path: str, data: object) -> None:
        raise UnavailableError("no space left on device")

    monkeypatch.setattr(task, "put", full)
    with pytest.raises(UnavailableError, match="no space left"):
        world.ingest().run(once=True)
    monkeypatch.undo()
    shard = world.shards()["a.json"]
    assert (shard.phase, shard.failures, shard.token) == ("open", 0, "")
    world.clock.moved += 31
    assert world.ingest().run(once=True).files == 1
    assert world.ids() == [1]


def test_a_log_that_lost_its_end_is_completed_again(world: World) -> None:
    for n in range(3):
        world.write(f"{n}.json", {"id": n})
        world.ingest(schema=ID).run(once=True)
    log = world.table_path / "_delta_log"
    for path in sorted(log.glob("*.json"))[-2:]:
        path.unlink()
    assert world.ids() == [0]
    world.ingest(schema=ID).run(once=True)
    assert world.ids() == [0, 1, 2]


def test_an_old_copy_of_a_table_is_not_taken_for_the_table(world: World) -> None:
    for n in range(3):
        world.write(f"{n}.json", {"id": n})
        world.ingest(schema=ID).run(once=True)
    for path in sorted((world.table_path / "_delta_log").glob("*.json"))[-2:]:
        path.unlink()
    shutil.rmtree(world.table_path / "splits" / newest(world.table_path / "splits"))
    world.write("3.json", {"id": 3})
    with pytest.raises(CorruptError, match="is older than it was"):
        world.ingest(schema=ID).run(once=True)
    assert len(world.queue) == 1


def newest(folder: Path) -> str:
    return max(folder.iterdir(), key=lambda path: int(path.name.rsplit("-", 1)[1])).name


@pytest.mark.parametrize("fresh", [False, True])
def test_a_file_that_was_not_found_by_a_killed_run_leaves_nothing_open(
    world: World, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    path = world.files / "late.json"
    world.queue.send(str(path))
    with monkeypatch.context() as patched:

        def killed(*_: object) -> None:
            raise Killed

        patched.setattr(Coordinator, "_fail", killed)
        patched.setattr(Coordinator, "_release", lambda self: None)
        with pytest.raises(Killed):
            world.ingest(identity="version", schema=ID, commit_timeout=0.001).run(once=True)
    path.write_text('{"id": 1}\n')
    (left,) = world.database.sources.ask(ListFiles(world.source().id)).shards
    assert left.phase == "open"
    if fresh:  # somebody may be at work on it: then the message has to come once more
        asked = AcquireShards(
            world.source().id, FOREIGN, 3_600_000, [Takeover(left.id, left.token)]
        )
        (owned,) = world.database.sources.ask(asked).shards
        assert owned.token == FOREIGN
        world.clock.moved += 31
        assert world.ingest(identity="version", schema=ID).run(once=True).files == 1
        assert len(world.queue) == 1
        world.database.sources.ask(ReleaseShards(world.source().id, FOREIGN, [left.id]))
    world.clock.moved += 200  # the last lease of a message is longer than the others
    world.ingest(identity="version", schema=ID).run(once=True)
    assert world.ids() == [1]
    assert {each.phase for each in world.shards().values()} == {"eof"}
    assert len(world.queue) == 0
