"""A child that loads announced files as an ingest does, without Spark, until it is told or killed.

    python -m integration.source_runner LOCATION TABLE SEED

A file is a URI `file:///N`; it has no bytes: its rows are `N.0`, `N.1`, … A split is a text file in
the folder TABLE, one row per line. It waits for a line, opens and says `open`; it says `published`
after each publish, `refused` after a refused one, and `empty` when no announcement is left at all.
A second line ends it, with `end` as its last word. Whoever opens first serves, so any of them may
be the broker that is killed.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import TypeVar

import penstock
from integration.children import say
from penstock.source.coordinate import takeovers
from penstock.source.local import Local, Through
from penstock.source.messages import read_announcement
from penstock.source.queueport import Received
from penstock.source.requests import (
    BOF,
    EOF,
    AcquireShards,
    Ask,
    BeginStaging,
    FinishStagings,
    Move,
    OpenShards,
    OpenSource,
    Publish,
    Published,
    RevokeStagings,
    Shard,
    ShardOpen,
    Split,
    position_text,
    token_text,
)

R = TypeVar("R")

SOURCE, QUEUE = "files", "announced"
STALE_MS = 400
LEASE_SECONDS = 0.4


def rows_of(uri: str) -> list[str]:
    """Of 0, 3, 6 and 9 rows: some are empty."""
    number = int(uri.rpartition("/")[2])
    return [f"{number}.{i}" for i in range(3 * (number % 4))]


class Runner:
    def __init__(self, db: penstock.Database, table: Path, rng: random.Random) -> None:
        self._db = db
        self._table = table
        self._rng = rng
        self._token = token_text(os.urandom(16))
        self._queue = db.queue(QUEUE)
        self._local = Local()
        self._source = self._ask(OpenSource(SOURCE, str(table))).id

    def _ask(self, request: Ask[R]) -> R:
        while True:
            try:
                return self._db.sources.ask(request)
            except penstock.UnavailableError:
                continue  # the same one: every request may be repeated

    def work(self) -> None:
        self._receive()
        if shards := self._local.take(self._rng.choice((1, 4, 10))):
            self._load(shards)
        if self._rng.random() < 0.1:
            self.clean()

    def _receive(self) -> None:
        try:
            claimed = self._queue.claim(5, wait=0.05)
            if not claimed:
                stats = self._queue.stats()
                if not (stats.available or stats.delayed or stats.in_flight):
                    say("empty")
        except penstock.UnavailableError:
            return
        for message in claimed:
            received = Received(str(message.id), message.payload or b"", 1, message.receipt, 0.0)
            wanted = [
                ShardOpen(uri, uri, announced_by=received.id)
                for uri in read_announcement(received.body).files
            ]
            opened = self._ask(OpenShards(self._source, self._token, STALE_MS, wanted)).shards
            stale = takeovers(opened)
            if stale:
                asked = AcquireShards(self._source, self._token, STALE_MS, stale)
                taken = {each.id: each for each in self._ask(asked).shards}
                opened = [taken.get(each.id, each) for each in opened]
            self._through(self._local.add(received, opened))

    def _load(self, shards: list[Shard]) -> None:
        key = os.urandom(8).hex()
        asked = BeginStaging(self._source, self._token, STALE_MS, key)
        (staging,) = self._ask(asked).stagings
        moves, rows = [], []
        for shard in shards:
            content = rows_of(shard.uri)
            start = 0 if shard.position == BOF else int(shard.position)
            end = min(len(content), start + self._rng.choice((2, 5, 100)))
            rows += content[start:end]
            place = EOF if end == len(content) else position_text(end)
            moves.append(Move(shard.id, shard.position, place, end - start))
        splits = []
        if rows:
            name = f"{staging.id}-{key}.txt"
            (self._table / name).write_text("\n".join(rows))
            splits.append(Split(name, len(rows), 1))
        # Some are so slow that their files are taken from them.
        time.sleep(self._rng.choice((0.0, 0.0, 0.01, 0.05, 0.6)))
        answer = self._ask(Publish(self._source, self._token, key, staging.id, 0, splits, moves))
        if isinstance(answer, Published):
            say(f"published {len(moves)}")
            on = {move.id: move.end for move in moves if move.end != EOF}
            self._again([shard for shard in shards if shard.id in on])
            self._through(self._local.end([move.id for move in moves if move.end == EOF]))
            return
        say(f"refused {answer.reason}")
        self._remove(staging.id)
        self._again(shards)

    def _again(self, shards: list[Shard]) -> None:
        """As they are by now: on from where they stand, if they are still ours."""
        wanted = [ShardOpen(each.id, each.uri) for each in shards]
        opened = self._ask(OpenShards(self._source, self._token, STALE_MS, wanted)).shards
        self._local.again([each for each in opened if each.mine and each.phase == "open"])
        self._through(self._local.end([each.id for each in opened if each.phase != "open"]))
        gone = [each.id for each in opened if not each.mine and each.phase == "open"]
        self._through(self._local.drop(gone))

    def clean(self) -> int:
        """-> how many stagings of others were removed"""
        found = self._ask(RevokeStagings(self._source, self._token)).stagings
        for staging in found:
            self._remove(staging.id)
        return len(found)

    def _remove(self, staging_id: int) -> None:
        for path in self._table.glob(f"{staging_id}-*"):
            path.unlink(missing_ok=True)
        self._ask(FinishStagings(self._source, [staging_id]))

    def _through(self, through: Through) -> None:
        receipts = [each.handle for each in through.acknowledge]
        try:
            if receipts:
                self._queue.ack(receipts)
        except penstock.UnavailableError:
            pass  # it comes again, and is acknowledged then


def main(location: str, table: str, seed: int) -> None:
    sys.stdin.readline()
    with penstock.open(location) as db:
        say("open")
        done = threading.Event()

        def end_when_told() -> None:
            sys.stdin.readline()
            done.set()

        threading.Thread(target=end_when_told, daemon=True).start()
        runner = Runner(db, Path(table), random.Random(seed))
        while not done.is_set():
            runner.work()
    say("end")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
