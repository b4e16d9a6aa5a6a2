"""The queue API, each way to a broker: in this process, over a socket, with asyncio."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import Backoff, Publish
from penstock.client.link import Link


def payloads(found: Any) -> list[bytes | None]:
    return [message.payload for message in found]


def ids(found: Any) -> list[int]:
    return [message.id for message in found]


def test_a_message_is_published_claimed_and_done(db: penstock.Database) -> None:
    queue = db.create_queue("eu", filter="region = 'eu'", lease=30)
    assert queue.name == "eu"
    before = datetime.now(UTC) - timedelta(seconds=1)
    first = db.publish(b"hello", headers={"region": "eu", "priority": "7"})
    db.publish(b"elsewhere", {"region": "us"})
    (message,) = queue.claim(10, consumer="w1")
    assert (message.id, message.payload, message.uri) == (first, b"hello", None)
    assert message.headers == {"region": "eu", "priority": "7"}
    assert (message.priority, message.attempts) == (7, 1)
    assert before < message.created_at == message.received_at <= message.claimed_at
    assert message.lease_deadline - message.claimed_at == timedelta(seconds=30)
    assert message.receipt
    assert queue.stats().in_flight == 1
    assert message.extend(60) is True
    assert message.ack() is True
    assert message.ack() is False
    assert message.fail() is False
    assert message.release() is False
    assert message.extend(1) is False
    (done,) = queue.done()
    assert (done.id, done.attempts) == (first, 1)
    assert done.done_at >= before
    assert queue.claim() == []
    stats = queue.stats()
    assert (stats.available, stats.delayed, stats.in_flight) == (0, 0, 0)
    assert (stats.done, stats.failed) == (1, 0)


def test_headers_that_a_consumer_was_given_are_its_own(db: penstock.Database) -> None:
    """Whatever it does to them, the next message that has none has none, and is stored so."""
    queue, other = db.create_queue("q"), db.create_queue("other")
    for _ in range(3):
        db.publish(b"none")
    db.publish(b"some", {"hop": "1"})
    for message in queue.claim(10):
        headers: Any = message.headers
        headers["seen"] = "yes"
    db.publish(b"later")
    assert [each.headers for each in other.claim(10)] == [{}, {}, {}, {"hop": "1"}, {}]
    assert [each.headers for each in queue.claim(10)] == [{}]


def test_batches_answer_for_each_message(db: penstock.Database) -> None:
    queue = db.create_queue("q")
    published = db.publish_many([(b"0", {"a": "b"}), b"1", Publish(b"2", to="q"), b"3", b"4"])
    messages = queue.claim(10, lease=5)
    assert ids(messages) == published
    assert queue.extend(messages, 60) == [True] * 5
    assert queue.ack(messages[:2]) == [True, True]
    assert queue.ack([*messages[:3], "nothing"]) == [False, False, True, False]
    assert queue.fail([messages[3].receipt], delay=0, reason="no") == [True]
    assert queue.release([messages[4]]) == [True]
    assert queue.release([messages[4]]) == [False]
    assert queue.ack([]) == []
    again = queue.claim(10)
    assert [(m.payload, m.attempts) for m in sorted(again, key=lambda m: m.id)] == [
        (b"3", 2),
        (b"4", 1),
    ]
    assert queue.ack(again[0]) == [True], "one message is a list of one"
    assert queue.ack(again[1].receipt) == [True]


def test_a_failed_message_has_a_history_and_is_redriven(db: penstock.Database) -> None:
    queue = db.create_queue("q", max_attempts=2, backoff=0)
    number = db.publish(b"x", {"k": "v"})
    for consumer in ("w1", "w2"):
        (message,) = queue.claim(consumer=consumer)
        assert message.fail(reason=f"{consumer} ü") is True
    assert queue.claim() == []
    (failed,) = queue.failed()
    assert (failed.id, failed.payload, failed.headers) == (number, b"x", {"k": "v"})
    assert failed.attempts == 2
    assert [attempt.reason for attempt in failed.history] == ["w1 ü", "w2 ü"]
    attempts = queue.attempts(number)
    assert [(each.consumer, each.reason, each.ending) for each in attempts] == [
        ("w1", "w1 ü", "failed"),
        ("w2", "w2 ü", "failed"),
    ]
    assert attempts[0].time.tzinfo is not None
    assert attempts[0].time <= attempts[1].time
    assert queue.attempts(number + 1) == []
    assert queue.redrive([number + 1]) == 0
    redriven = queue.redrive()
    assert (redriven, redriven.expired) == (1, 0)
    (message,) = queue.claim()
    assert (message.id, message.attempts) == (number, 1)
    assert len(queue.attempts(number)) == 2, "the history stays"


def test_settings_are_described_altered_and_refused(db: penstock.Database) -> None:
    backoff = Backoff(base=0.1, factor=3, cap=1 / 3, jitter=0.25)
    queue = db.create_queue(
        "q",
        filter="a = 'b'",
        priority="CASE WHEN vip = 'yes' THEN 1 ELSE 5 END",
        lease=1.5,
        max_lease=60,
        max_attempts=0,
        backoff=backoff,
        done_retention=10.2,
    )
    info = queue.describe()
    assert (info.name, info.filter) == ("q", "a = 'b'")
    assert info.priority is not None
    assert (info.lease, info.max_lease, info.max_attempts) == (1.5, 60, 0)
    assert (info.backoff, info.done_retention, info.paused) == (backoff, 11, False)
    assert info.created_at <= datetime.now(UTC) + timedelta(seconds=1)
    queue.alter(filter=None, lease=2, backoff=None)
    info = queue.describe()
    assert (info.filter, info.lease, info.backoff) == (None, 2, Backoff())
    assert info.max_lease == 60
    with pytest.raises(penstock.ConflictError):
        db.create_queue("q", lease=7)
    with pytest.raises(penstock.InvalidError):
        queue.alter(lease=61)
    with pytest.raises(penstock.InvalidError, match=r"[Ff]ilter|column|position"):
        db.create_queue("bad", filter="a = = b")
    assert db.queues() == ["q"]


def test_the_same_settings_are_the_same_queue(db: penstock.Database) -> None:
    options: dict[str, Any] = {"backoff": Backoff(0.1, 1.7, 0.3, 1 / 3), "lease": 0.001}
    db.create_queue("q", **options)
    db.create_queue("q", **options)


def test_queues_are_listed_and_deleted(db: penstock.Database) -> None:
    for name in ("jobs", "mails", "ü\x00'\"🎉"):
        db.create_queue(name)
    assert db.queues() == ["jobs", "mails", "ü\x00'\"🎉"]
    assert db.queues("m*") == ["mails"]
    assert db.delete_queue("mails") is True
    assert db.delete_queue("mails") is False
    assert db.queues() == ["jobs", "ü\x00'\"🎉"]
    for call in (
        lambda: db.queue("mails").claim(),
        lambda: db.queue("mails").claim(wait=60),
        lambda: db.queue("mails").stats(),
        lambda: db.queue("mails").describe(),
        lambda: db.queue("mails").alter(lease=5),
        lambda: db.queue("mails").pause(),
        lambda: db.queue("mails").purge(),
        lambda: list(db.queue("mails").done()),
        lambda: list(db.queue("mails").failed()),
        lambda: db.queue("mails").redrive(),
        lambda: db.queue("mails").peek(),
        lambda: db.publish(b"x", to="mails"),
        lambda: db.publish_many([b"x", Publish(b"y", to="mails")]),
    ):
        with pytest.raises(penstock.NotFoundError):
            call()
    assert db.queue("jobs").stats().available == 0, "nothing of the batch was published"


def test_pause_play_peek_and_purge(db: penstock.Database) -> None:
    queue = db.create_queue("q")
    numbers = db.publish_many([b"a", b"b", Publish(b"c", delay=60)])
    queue.pause()
    assert queue.describe().paused
    assert queue.claim() == []
    queue.play()
    assert not queue.describe().paused
    assert ids(queue.peek(10)) == numbers[:2]
    (peeked,) = queue.peek()
    assert (peeked.payload, peeked.attempts) == (b"a", 0)
    assert not hasattr(peeked, "receipt")
    (message,) = queue.claim()
    stats = queue.stats()
    assert (stats.available, stats.delayed, stats.in_flight) == (1, 1, 1)
    assert queue.purge() == 3
    assert message.ack() is False
    assert queue.stats().purged == 3


def test_options_of_a_message_arrive(db: penstock.Database) -> None:
    queue = db.create_queue("q", filter="false")
    moment = datetime(2020, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    db.publish(penstock.URI("s3://bucket/key?ü"), to="q", created_at=moment, retention=3600)
    db.publish(b"hidden", to="q", visible_at=datetime.now(UTC) + timedelta(hours=1))
    (message,) = queue.claim(5)
    assert (message.payload, message.uri) == (None, "s3://bucket/key?ü")
    assert message.created_at == moment
    assert message.received_at > moment
    assert queue.stats().delayed == 1


def test_the_same_dedup_id_is_the_same_message(db: penstock.Database) -> None:
    queue = db.create_queue("q")
    first = db.publish(b"x", dedup_id="d")
    assert db.publish(b"x", dedup_id="d") == first
    assert db.publish_many([Publish(b"x", dedup_id=d) for d in ("d", "e", "e")])[0] == first
    assert queue.stats().available == 2


def test_arrow_batches_are_published(db: penstock.Database) -> None:
    queue = db.create_queue("q", filter="region = 'eu'")
    headers = pa.array([[("region", "eu")], None], pa.map_(pa.string(), pa.string()))
    table = pa.table({"payload": [b"a", b"b"], "headers": headers, "to": [None, "q"]})
    assert ids(queue.claim(5)) == []
    published = db.publish_many(table)
    assert payloads(queue.claim(5)) == [b"a", b"b"]
    assert len(published) == 2
    assert db.publish_many([]) == []


def test_a_claim_waits_for_the_first_message(db: penstock.Database) -> None:
    queue = db.create_queue("q")
    assert queue.claim(wait=0.01) == []
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(queue.claim, 5, wait=wait) for wait in (60, math.inf)]
        db.publish(b"one")
        db.publish(b"two")
        found = [each.result() for each in waiting]
    assert sorted(payloads(found[0]) + payloads(found[1])) == [b"one", b"two"]  # type: ignore[type-var]


def test_large_payloads_and_large_batches_come_whole(
    db: penstock.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.remote_queues.REQUEST_BYTES", 1000)
    monkeypatch.setattr("penstock.client.remote_queues.REQUEST_WORDS", 50)
    queue = db.create_queue("q")
    sizes = [0, 65_535, 65_536, 1 << 20, (1 << 20) + 1, 3 << 20, *([10] * 120)]
    data = [b"%d" % (n % 10) * size for n, size in enumerate(sizes)]
    numbers = db.publish_many(data)
    assert len(set(numbers)) == len(data)
    messages = queue.claim(1000)
    assert {m.id: m.payload for m in messages} == dict(zip(numbers, data, strict=True))
    assert queue.ack(messages) == [True] * len(data)
    assert sorted(ids(queue.done())) == sorted(numbers)
    with pytest.raises(penstock.InvalidError, match="message 200"):
        db.publish_many([*([b"x"] * 200), (b"y", {"_id": "5"})])
    assert queue.stats().available == 0, "nothing of a wrong batch is published"


def test_headers_at_their_limits(db: penstock.Database) -> None:
    queue = db.create_queue("q")
    headers = {f"h{n}": "v" for n in range(255)}
    db.publish(b"x", headers)
    (message,) = queue.claim()
    assert message.headers == headers
    for wrong in ({f"h{n}": "v" for n in range(256)}, {"_x": "y"}, {"": "y"}, {"\udcff": "x"}):
        with pytest.raises(penstock.InvalidError):
            db.publish(b"x", wrong)
    with pytest.raises(penstock.InvalidError):
        db.publish(b"x", {"a": "\udcff"})


def test_reclaim_is_configured(db: penstock.Database) -> None:
    db.configure(reclaim="retention")
    db.configure(reclaim="done")


# Wrong arguments.

WRONG_DURATIONS: list[Any] = [-1, -0.001, math.nan, -math.inf, "1", True, 1e300]


@pytest.mark.parametrize(
    "call",
    [
        *(lambda db, q, w=w: q.claim(wait=w) for w in [*WRONG_DURATIONS, None]),
        *(lambda db, q, w=w: q.claim(lease=w) for w in [*WRONG_DURATIONS, 0, math.inf]),
        *(lambda db, q, w=w: q.extend(["r"], w) for w in [*WRONG_DURATIONS, None, math.inf]),
        *(lambda db, q, w=w: q.fail(["r"], delay=w) for w in [*WRONG_DURATIONS, math.inf]),
        *(lambda db, q, w=w: q.alter(lease=w) for w in [*WRONG_DURATIONS, None, 0, math.inf]),
        *(lambda db, q, w=w: db.publish(b"x", delay=w) for w in WRONG_DURATIONS),
        *(lambda db, q, w=w: db.create_queue("n", backoff=w) for w in WRONG_DURATIONS),
        lambda db, q: q.claim(-1),
        lambda db, q: q.claim(1.5),
        lambda db, q: q.claim(True),
        lambda db, q: q.claim(consumer=5),
        lambda db, q: q.claim(consumer=""),
        lambda db, q: q.claim(consumer="x" * 256),
        lambda db, q: q.claim(lease=86_400),
        lambda db, q: q.peek(-1),
        lambda db, q: q.peek("1"),
        lambda db, q: q.ack(5),
        lambda db, q: q.ack([5]),
        lambda db, q: q.ack(None),
        lambda db, q: q.ack(b"receipt"),
        lambda db, q: q.fail(["r"], reason=5),
        lambda db, q: q.attempts(-1),
        lambda db, q: q.attempts("1"),
        lambda db, q: q.redrive(5),
        lambda db, q: q.redrive(["1"]),
        lambda db, q: q.redrive([-1]),
        lambda db, q: q.alter(max_attempts=-1),
        lambda db, q: q.alter(max_attempts=65_536),
        lambda db, q: q.alter(filter=5),
        lambda db, q: q.alter(filter=" "),
        lambda db, q: q.alter(priority=5),
        lambda db, q: q.alter(backoff="soon"),
        lambda db, q: q.alter(backoff=Backoff(base=5, cap=1)),
        lambda db, q: q.alter(done_retention=-1),
        lambda db, q: q.alter(done_retention=1 << 40),
        lambda db, q: q.consume(prefetch=0),
        lambda db, q: q.consume(prefetch="1"),
        lambda db, q: q.consume(consumer=5),
        lambda db, q: q.consume(lease=-1),
        lambda db, q: q.consume(heartbeat=-1),
        lambda db, q: q.consume(idle=-1),
        lambda db, q: db.create_queue(""),
        lambda db, q: db.create_queue("x" * 256),
        lambda db, q: db.create_queue(5),
        lambda db, q: db.create_queue("n", start="middle"),
        lambda db, q: db.create_queue("n", filter="no such function(a)"),
        lambda db, q: db.create_queue("n", lease=61, max_lease=60),
        lambda db, q: db.queue(""),
        lambda db, q: db.queues(5),
        lambda db, q: db.delete_queue(5),
        lambda db, q: db.configure(reclaim="never"),
        lambda db, q: db.publish("text"),
        lambda db, q: db.publish(None),
        lambda db, q: db.publish(b"x", headers=[("a", "b")]),
        lambda db, q: db.publish(b"x", dedup_id=""),
        lambda db, q: db.publish(b"x", dedup_id="x" * 256),
        lambda db, q: db.publish(b"x", retention=1 << 40),
        lambda db, q: db.publish(penstock.URI("")),
        lambda db, q: db.publish_many(b"text"),
        lambda db, q: db.publish_many([b"x", None]),
    ],
)
def test_a_wrong_argument_changes_nothing(
    shared_db: penstock.Database, name: str, call: Any
) -> None:
    db = shared_db
    queue = db.create_queue(name)
    before = queue.describe()
    with pytest.raises(penstock.InvalidError):
        call(db, queue)
    assert queue.describe() == before
    assert queue.stats().routed == 0
    assert db.queues() == [name]
    db.delete_queue(name)


# What goes on by itself when the broker is lost.


@pytest.mark.parametrize(
    ("call", "again"),
    [
        (lambda db, q: q.claim(), True),
        (lambda db, q: q.peek(), True),
        (lambda db, q: q.extend(["r"], 5), True),
        (lambda db, q: q.stats(), True),
        (lambda db, q: q.describe(), True),
        (lambda db, q: list(q.done()), True),
        (lambda db, q: list(q.failed()), True),
        (lambda db, q: q.attempts(1), True),
        (lambda db, q: q.pause(), True),
        (lambda db, q: q.play(), True),
        (lambda db, q: db.queues(), True),
        (lambda db, q: db.publish(b"x", dedup_id="d"), True),
        (lambda db, q: db.publish_many([Publish(b"x", dedup_id="d")]), True),
        (lambda db, q: db.publish(b"x"), False),
        (lambda db, q: db.publish_many([Publish(b"x", dedup_id="d"), b"y"]), False),
        (lambda db, q: q.ack(["r"]), False),
        (lambda db, q: q.fail(["r"]), False),
        (lambda db, q: q.release(["r"]), False),
        (lambda db, q: q.purge(), False),
        (lambda db, q: q.redrive(), False),
        (lambda db, q: q.alter(lease=5), False),
        (lambda db, q: db.create_queue("n"), False),
        (lambda db, q: db.delete_queue("q"), False),
        (lambda db, q: db.configure(reclaim="done"), False),
    ],
)
def test_only_what_does_no_harm_is_asked_again(
    call: Any, again: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Link.run_queues
    seen: list[bool] = []

    def watched(self: Link, errand: Any, *, again: bool, block_ms: int | None = 0) -> Any:
        seen.append(again)
        return run(self, errand, again=again, block_ms=block_ms)

    with penstock.open(f"memory://{tmp_path.name}") as db:
        queue = db.create_queue("q")
        monkeypatch.setattr(Link, "run_queues", watched)
        call(db, queue)
    assert seen == [again]


def test_closed_handles_say_so(db: penstock.Database) -> None:
    queue = db.create_queue("q")
    db.publish(b"x")
    (message,) = queue.claim()
    queue.close()
    for call in (
        queue.claim,
        queue.stats,
        queue.done,
        queue.consume,
        message.ack,
        lambda: queue.ack([message]),
        lambda: message.extend(1),
    ):
        with pytest.raises(penstock.InvalidError, match="closed"):
            call()
    assert db.queue("q").ack([message]) == [True], "another handle does"


def test_what_is_claimed_shows_itself(db: penstock.Database) -> None:
    queue = db.create_queue("q")
    db.publish_many([b"four", penstock.URI("s3://x")])
    shown = [repr(getattr(m, "_handle", m)).replace("Async", "") for m in queue.claim(2)]
    assert shown == [
        "<penstock.ClaimedMessage 1, 4 bytes, attempts=1>",
        "<penstock.ClaimedMessage 2, uri='s3://x', attempts=1>",
    ]
