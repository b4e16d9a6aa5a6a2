"""Files in a bucket, announced by its events, into a table in a bucket."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import boto3
import pytest
from deltalake import DeltaTable

import penstock
from penstock.errors import NotFoundError
from penstock.source.memoryqueue import MemoryQueue
from penstock.source.queueport import Received
from penstock.source.requests import GetSource, ListFiles
from penstock.spark import Ingest
from penstock.spark.ingest.delta import storage_options
from unit.spark.ingest.world import InProcessSpark


class Bucket:
    def __init__(self, location: str) -> None:
        self.location = location
        self.name, _, self.prefix = location.removeprefix("s3://").partition("/")
        self._client = boto3.client(
            "s3", endpoint_url=os.environ["AWS_ENDPOINT"], region_name="us-east-1"
        )

    def put(self, key: str, data: bytes) -> str:
        self._client.put_object(Bucket=self.name, Key=f"{self.prefix}/{key}", Body=data)
        return f"{self.prefix}/{key}"

    def names(self) -> list[str]:
        found = self._client.list_objects_v2(Bucket=self.name, Prefix=self.prefix + "/")
        return [each["Key"] for each in found["Contents"]]

    def event(self, *keys: str, name: str = "ObjectCreated:Put") -> str:
        return json.dumps(
            {
                "Records": [
                    {
                        "eventName": name,
                        "s3": {"bucket": {"name": self.name}, "object": {"key": quote_plus(key)}},
                    }
                    for key in keys
                ]
            }
        )


def rows(table: str, *names: str) -> list[tuple[Any, ...]]:
    found = DeltaTable(table, storage_options=storage_options(table)).to_pyarrow_table()
    return sorted(tuple(row[name] for name in names) for row in found.to_pylist())


def test_objects_into_a_table_beside_them(bucket: str, tmp_path: Path) -> None:
    files = Bucket(bucket)
    keys = [
        files.put("in/plain.json", b'{"id":1}\n{"id":2}\n'),
        files.put("in/ä b+c%20.json", b'{"id":3}\n'),
        files.put("in/empty.json", b""),
    ]
    queue = MemoryQueue()
    queue.send(files.event(*keys))
    queue.send(files.event(keys[0]))
    queue.send(files.event(keys[0], name="ObjectRemoved:Delete"))
    queue.send(files.event(f"{files.prefix}/in/missing.json"))
    table = f"{bucket}/table"
    report = Ingest(
        tmp_path / "d",
        queue,
        table,
        retry_delay=0,
        spark=InProcessSpark(),  # type: ignore[arg-type]
    ).run(once=True)
    assert (report.files, report.rows, report.duplicates, report.failed) == (3, 3, 1, 1)
    assert rows(table, "id", "_file", "_position") == [
        (1, f"{bucket}/in/plain.json", 0),
        (2, f"{bucket}/in/plain.json", 9),
        (3, f"{bucket}/in/ä b+c%20.json", 0),
    ]
    assert len(queue) == 0


def test_a_location_in_a_bucket_that_is_not_there_has_no_queue_and_is_not_made(
    bucket: str, tmp_path: Path
) -> None:
    files = Bucket(bucket)
    files.put("in/a.json", b"{}\n")
    ingest = Ingest(f"{bucket}/typo", "q", tmp_path / "table", spark=InProcessSpark())  # type: ignore[arg-type]

    async def from_a_notebook() -> None:  # whose cells run in a loop
        ingest.run(once=True)

    with pytest.raises(NotFoundError, match="there is no Penstock location"):
        asyncio.run(from_a_notebook())
    assert files.names() == [f"{files.prefix}/in/a.json"]


def test_an_event_of_many_objects_is_acknowledged_after_the_last(
    bucket: str, tmp_path: Path
) -> None:
    files = Bucket(bucket)
    keys = [files.put(f"{n}.json", b'{"id":%d}\n' % n) for n in range(3)]
    seen: list[set[str]] = []

    class Watched(MemoryQueue):
        def acknowledge(self, received: Sequence[Received]) -> list[bool]:
            with penstock.open(tmp_path / "d") as database:
                source = database.sources.ask(GetSource(f"{bucket}/table"))
                shards = database.sources.ask(ListFiles(source.id)).shards
            seen.append({shard.phase for shard in shards})
            return super().acknowledge(received)

    queue = Watched()
    queue.send(files.event(*keys, f"{files.prefix}/missing.json"))
    report = Ingest(
        tmp_path / "d",
        queue,
        f"{bucket}/table",
        max_files=1,
        retry_delay=0,
        spark=InProcessSpark(),  # type: ignore[arg-type]
    ).run(once=True)
    assert (report.files, report.publishes, report.failed) == (3, 3, 1)
    assert seen == [{"eof", "failed"}]
    assert len(queue) == 0


def test_large_objects_by_position_and_new_versions_by_etag(bucket: str, tmp_path: Path) -> None:
    files = Bucket(bucket)
    text = b"".join(b'{"id":%d}\n' % n for n in range(300))
    key = files.put("large.json", text)
    queue = MemoryQueue()
    table = f"{bucket}/table"

    def load() -> int:
        queue.send(files.event(key))
        ingest = Ingest(
            tmp_path / "d",
            queue,
            table,
            identity="version",
            chunk_bytes=700,
            spark=InProcessSpark(),  # type: ignore[arg-type]
        )
        return ingest.run(once=True).rows

    assert load() == 300
    assert load() == 0
    files.put("large.json", b'{"id":1000}\n')
    assert load() == 1
    assert [row[0] for row in rows(table, "id")] == [*range(300), 1000]
    with penstock.open(tmp_path / "d") as database:
        source = database.sources.ask(GetSource(table))
        shards = database.sources.ask(ListFiles(source.id)).shards
    assert sorted((shard.phase, shard.rows) for shard in shards) == [("eof", 1), ("eof", 300)]


def test_splits_of_a_refused_publish_leave_the_bucket(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Bucket(bucket)
    key = files.put("a.json", b'{"id":1}\n')
    queue = MemoryQueue()
    queue.send(files.event(key))
    spark = InProcessSpark()
    seen: list[int] = []

    def move_the_schema() -> None:
        if seen:
            return
        seen.append(1)
        from penstock.source.requests import GetSchema, PutSchema

        with penstock.open(tmp_path / "d") as database:
            source = database.sources.ask(GetSource(f"{bucket}/table"))
            stored = database.sources.ask(GetSchema(source.id))
            schema = json.loads(stored.schema or '{"type":"struct","fields":[]}')
            new = {"name": "new", "type": "string", "nullable": True, "metadata": {}}
            schema["fields"].append(new)
            database.sources.ask(PutSchema(source.id, stored.version, json.dumps(schema)))

    spark.before = move_the_schema
    ingest = Ingest(
        tmp_path / "d",
        queue,
        f"{bucket}/table",
        schema='{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,'
        '"metadata":{}}]}',
        spark=spark,  # type: ignore[arg-type]
    )
    assert ingest.run(once=True).rows == 1
    assert rows(f"{bucket}/table", "id", "new") == [(1, None)]
    assert len([key for key in files.names() if key.endswith(".parquet")]) == 1
