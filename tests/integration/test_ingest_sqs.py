"""Files in a bucket that notifies a queue of SQS, both behind a real server, loaded by `Ingest`."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import deltalake
import pytest

import penstock
from integration.children import Child
from integration.plainspark import PlainSpark
from penstock.client.database import Database
from penstock.source.requests import GetSource, ListFiles
from penstock.spark import Ingest
from penstock.spark.ingest.report import Report

_numbers = count(1)
PATIENCE_SECONDS = 120.0
#: A message whose receiver was killed comes again after this, and its files are stale after twice.
SECONDS = 1


class Notified:
    """A bucket, and the queue that it tells of new objects."""

    def __init__(self, folder: Path) -> None:
        self._s3 = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT"])
        self._sqs = boto3.client("sqs", endpoint_url=os.environ["AWS_ENDPOINT"])
        self.bucket = f"uploads-{next(_numbers)}"
        self._s3.create_bucket(Bucket=self.bucket)
        self.url = self._sqs.create_queue(
            QueueName=self.bucket, Attributes={"VisibilityTimeout": str(SECONDS)}
        )["QueueUrl"]
        self.table = folder / "table"
        self.location = folder / "data"
        self._notify()

    def _notify(self) -> None:
        found = self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["QueueArn"])
        arn = found["Attributes"]["QueueArn"]
        self._s3.put_bucket_notification_configuration(
            Bucket=self.bucket,
            NotificationConfiguration={
                "QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]
            },
        )

    def put(self, key: str, rows: int) -> None:
        lines = "".join(f'{{"key": "{key}", "row": {i}}}\n' for i in range(rows))
        self._s3.put_object(Bucket=self.bucket, Key=key, Body=lines.encode())

    def send(self, body: str) -> None:
        self._sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def waiting(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return sum(int(found["Attributes"][name]) for name in names)

    def arguments(self) -> dict[str, Any]:
        return {
            "location": str(self.location),
            "queue": self.url.replace("http://", "sqs://"),
            "table": str(self.table),
            "commit_timeout": SECONDS,
            "linger": 0.05,
            "retry_delay": 0.05,
        }

    def run(self) -> Report:
        return Ingest(**self.arguments(), spark=PlainSpark()).run(once=True)  # type: ignore[arg-type]

    def settle(self) -> Report:
        total: Counter[str] = Counter()
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            report = self.run()
            total.update({name: getattr(report, name) for name in report.__struct_fields__})
            if self.waiting() == 0:
                return Report(**total)
            assert time.monotonic() < until, total

    def rows(self) -> Counter[tuple[str, int]]:
        found = deltalake.DeltaTable(self.table).to_pyarrow_table()
        return Counter(zip(found["key"].to_pylist(), found["row"].to_pylist(), strict=True))


@pytest.fixture
def notified(server: None, tmp_path: Path) -> Notified:
    return Notified(tmp_path)


@pytest.fixture
def database(notified: Notified) -> Iterator[Database]:
    with penstock.open(notified.location) as database:
        yield database


def wanted(**rows: int) -> Counter[tuple[str, int]]:
    return Counter((key, i) for key, number in rows.items() for i in range(number))


KEYS = ("plain.json", "with space & ünï+100%.json", "a/b.json")


def test_objects_that_a_bucket_announces_are_loaded_once(
    notified: Notified, database: Database
) -> None:
    for key in KEYS:
        notified.put(key, 4)
    notified.send(f"s3://{notified.bucket}/plain.json")  # and one of them twice
    notified.send('{"Service": "Amazon S3", "Event": "s3:TestEvent"}')
    report = notified.settle()
    assert (report.files, report.rows, report.failed) == (3, 12, 0)
    assert report.duplicates == 1
    assert notified.rows() == wanted(**dict.fromkeys(KEYS, 4))


def test_a_message_that_cannot_be_read_is_acknowledged_and_listed_and_keeps_nothing_back(
    notified: Notified, database: Database
) -> None:
    notified.send("{")
    notified.send("no file at all")
    notified.send(f"s3://{notified.bucket}/missing.json")
    notified.put("plain.json", 4)
    report = notified.settle()
    assert (report.files, report.failed) == (1, 3)
    assert notified.rows() == wanted(**{"plain.json": 4})
    source = database.sources.ask(GetSource(str(notified.table)))
    failed = database.sources.ask(ListFiles(source.id, phase="failed")).shards
    assert sorted(each.kind for each in failed) == ["announcement", "announcement", "file"]
    assert all(each.error for each in failed)


def test_a_killed_runner_s_message_comes_again_and_its_file_is_loaded_by_another_one(
    notified: Notified, database: Database
) -> None:
    notified.put("plain.json", 4)
    with Child("ingester", "before Publish", json.dumps(notified.arguments())) as victim:
        assert victim.hear() == "at before Publish"
        victim.kill()
    assert notified.waiting() == 1
    report = notified.settle()
    assert (report.files, report.rows) == (1, 4)
    assert notified.rows() == wanted(**{"plain.json": 4})
