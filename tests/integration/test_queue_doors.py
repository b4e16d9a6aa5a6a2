"""Queues through their doors: stock Redis clients, other processes, brokers that come and go."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import penstock
from integration.children import Child
from integration.resp_server import RespServer, Wire
from penstock.broker.queueanswers import QueueMessage
from penstock.queue.state import queue_name

Q = queue_name("q")
ONCE = Retry(NoBackoff(), 0)


@pytest.fixture
def served() -> Iterator[RespServer]:
    with RespServer() as server:
        yield server


def as_map(found: Any) -> dict[str, Any]:
    """A map of RESP3, or RESP2's flat list of it."""
    pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
    return {key.decode(): value for key, value in pairs}


# ---- redis-py ---------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_takes_a_message_through_its_life(served: RespServer, protocol: int) -> None:
    with redis.Redis(port=served.port, protocol=protocol, retry=ONCE) as client:
        ask = client.execute_command
        assert (
            ask(
                "QUEUE.CREATE", "eu", "FILTER", "region = 'eu'", "LEASE", 5000,
                "MAXATTEMPTS", 2, "BACKOFF", 0,
            )
            == b"OK"
        )  # fmt: skip
        number = ask("QUEUE.PUBLISH", b"\x00\xff", "HEADERS", 1, "region", "eu")
        ask("QUEUE.PUBLISH", "elsewhere", "HEADERS", 1, "region", "us")
        others = ask(
            "QUEUE.PUBLISHMANY", "PAYLOAD", "a", "TO", "eu", "URI", "s3://x", "TO", "eu",
            "PAYLOAD", "late", "TO", "eu", "DELAY", 3_600_000,
        )  # fmt: skip
        assert len(others) == 3
        peeked = [as_map(found) for found in ask("QUEUE.PEEK", "eu", 10)]
        assert [found["id"] for found in peeked] == [number, *others[:2]]
        assert peeked[0]["receipt"] is None
        claimed = [as_map(found) for found in ask("QUEUE.CLAIM", "eu", 10, "CONSUMER", "w")]
        first, second, third = claimed
        assert (first["id"], first["payload"], first["attempts"]) == (number, b"\x00\xff", 1)
        assert as_map(first["headers"]) == {"region": b"eu"}
        assert first["lease_deadline"] - first["claimed_at"] == 5000
        assert (third["payload"], third["uri"]) == (None, b"s3://x")
        assert ask("QUEUE.EXTEND", "eu", 60_000, first["receipt"], "old") == [1, 0]
        assert ask("QUEUE.ACK", "eu", first["receipt"]) == [1]
        assert ask("QUEUE.ACK", "eu", first["receipt"]) == [0]
        assert ask("QUEUE.FAIL", "eu", "REASON", "no disk", second["receipt"]) == [1]
        assert ask("QUEUE.RELEASE", "eu", third["receipt"]) == [1]
        stats = as_map(ask("QUEUE.STATS", "eu"))
        assert (stats["available"], stats["delayed"], stats["done"]) == (2, 1, 1)
        again = {
            found["id"]: found
            for found in map(as_map, ask("QUEUE.CLAIM", "eu", 10, "CONSUMER", "v"))
        }
        assert again[second["id"]]["attempts"] == 2
        assert again[third["id"]]["attempts"] == 1
        assert ask("QUEUE.FAIL", "eu", again[second["id"]]["receipt"]) == [1]
        (lost,) = map(as_map, ask("QUEUE.FAILED", "eu"))
        assert (lost["id"], lost["payload"]) == (second["id"], b"a")
        attempts = [as_map(found) for found in ask("QUEUE.ATTEMPTS", "eu", second["id"])]
        assert [(each["consumer"], each["reason"]) for each in attempts] == [
            (b"w", b"no disk"),
            (b"v", b""),
        ]
        assert ask("QUEUE.REDRIVE", "eu", number) == 0
        assert ask("QUEUE.REDRIVE", "eu") == 1
        cursor, done = ask("QUEUE.DONE", "eu", 0)
        assert (cursor, [as_map(each)["id"] for each in done]) == (0, [number])
        assert ask("QUEUE.PAUSE", "eu") == b"OK"
        assert ask("QUEUE.CLAIM", "eu", 1) == []
        assert ask("QUEUE.PLAY", "eu") == b"OK"
        assert ask("QUEUE.ALTER", "eu", "FILTER", "", "LEASE", 7000) == b"OK"
        info = as_map(ask("QUEUE.INFO", "eu"))
        assert (info["filter"], info["lease"], info["max_attempts"]) == (None, 7000, 2)
        assert ask("QUEUE.PURGE", "eu") == 3
        assert ask("QUEUE.CONFIG", "RECLAIM", "retention") == b"OK"
        assert ask("QUEUE.LS", "e*") == [b"eu"]
        assert ask("QUEUE.DEL", "eu") == b"OK"
        for words in (
            ("QUEUE.DEL", "eu"),
            ("QUEUE.CLAIM", "eu", 1),
            ("QUEUE.PUBLISH", "x", "TO", "eu"),
        ):
            with pytest.raises(redis.ResponseError, match=r"^NOTFOUND"):
                ask(*words)
        for words in (("QUEUE.CLAIM", "eu", -1), ("QUEUE.CREATE", "x", "FILTER", "a = = b")):
            with pytest.raises(redis.ResponseError, match=r"^INVALID"):
                ask(*words)


def test_redis_py_learns_about_the_commands(served: RespServer) -> None:
    with redis.Redis(port=served.port) as client:
        assert client.command()["queue.claim"]["arity"] == -3
        assert client.command_getkeys("QUEUE.ACK", "q", "r") in (["q"], [b"q"])
    with served.connect() as wire:  # redis-py takes the answer for another one
        assert wire.ask(b"COMMAND", b"DOCS", b"QUEUE.PUBLISH") == b"*2"
        assert (wire.line(), wire.line()) == (b"$13", b"queue.publish")


def test_a_pipeline_of_queue_commands_is_answered_in_order(served: RespServer) -> None:
    with redis.Redis(port=served.port) as client, client.pipeline(transaction=False) as pipeline:
        pipeline.execute_command("QUEUE.CREATE", "q")
        for n in range(50):
            pipeline.execute_command("QUEUE.PUBLISH", str(n))
        pipeline.execute_command("QUEUE.CLAIM", "q", 100)
        _, *numbers, claimed = pipeline.execute()
        assert [as_map(found)["id"] for found in claimed] == numbers
        assert [as_map(found)["payload"] for found in claimed] == [b"%d" % n for n in range(50)]


# ---- claims that wait -------------------------------------------------------------------------


def blocked(served: RespServer, wire: Wire, *words: bytes) -> None:
    wire.words(b"QUEUE.CLAIM", b"q", b"5", b"WAIT", *(words or (b"inf",)))
    served.until(lambda: served.server.counts.blocked == 1)


def test_a_claim_waits_for_a_message_and_no_longer_than_it_said(served: RespServer) -> None:
    with served.connect() as wire, redis.Redis(port=served.port) as client:
        client.execute_command("QUEUE.CREATE", "q")
        blocked(served, wire)
        client.execute_command("QUEUE.PUBLISH", "x")
        assert wire.line() == b"*1"
        assert client.execute_command("QUEUE.CLAIM", "q", 5, "WAIT", 10) == []


@pytest.mark.parametrize(("how", "reply"), [(b"TIMEOUT", b"*0"), (b"ERROR", b"-UNBLOCKED")])
def test_a_claim_that_waits_is_unblocked(served: RespServer, how: bytes, reply: bytes) -> None:
    with served.connect() as wire, served.connect() as other:
        assert other.ask(b"QUEUE.CREATE", b"q") == b"+OK"
        wire.words(b"CLIENT", b"ID")
        number = wire.line().removeprefix(b":")
        blocked(served, wire)
        assert other.ask(b"CLIENT", b"UNBLOCK", number, how) == b":1"
        assert wire.line().startswith(reply)
        assert wire.ask(b"PING") == b"+PONG"


def vanish(wire: Wire) -> None:
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()


def test_a_claim_whose_client_left_takes_nothing(served: RespServer) -> None:
    with redis.Redis(port=served.port) as client:
        client.execute_command("QUEUE.CREATE", "q")
        wire = served.connect()
        blocked(served, wire)
        vanish(wire)
        served.until(lambda: served.server.counts.blocked == 0)
        client.execute_command("QUEUE.PUBLISH", "x")
        (found,) = client.execute_command("QUEUE.CLAIM", "q", 5)
        assert as_map(found)["attempts"] == 1


class LateClaims:
    """The broker's claims, whose answers are held back, also from those who were cancelled."""

    def __init__(self, served: RespServer) -> None:
        queues = served.broker.queues
        claim = queues.claim
        self.claimed = asyncio.Event()
        self.go_on = asyncio.Event()

        async def late(*arguments: Any, **options: Any) -> list[QueueMessage]:
            found = await claim(*arguments, **options)
            self.claimed.set()
            while not self.go_on.is_set():
                try:
                    await self.go_on.wait()
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    assert task is not None
                    task.uncancel()  # what was found goes to whom it was found for
            return found

        queues.claim = late  # type: ignore[method-assign]


@pytest.mark.parametrize("words", [(), (b"WAIT", b"60000")])
def test_what_was_claimed_for_a_client_who_is_gone_by_then_is_released(
    served: RespServer, words: tuple[bytes, ...]
) -> None:
    with redis.Redis(port=served.port) as client:
        client.execute_command("QUEUE.CREATE", "q")
        client.execute_command("QUEUE.PUBLISHMANY", "PAYLOAD", "x", "PAYLOAD", "y")
        late = served.call(lambda: LateClaims(served))
        before = served.server.connections
        wire = served.connect()
        wire.words(b"QUEUE.CLAIM", b"q", b"5", *words)
        served.until(late.claimed.is_set)
        assert served.call(lambda: served.broker.queues.stats(Q)).in_flight == 2
        vanish(wire)
        served.until(lambda: served.server.connections == before)
        served.call(late.go_on.set)
        found: list[Any] = []
        while len(found) < 2:
            found += client.execute_command("QUEUE.CLAIM", "q", 5, "WAIT", 1000)
        assert [as_map(each)["attempts"] for each in found] == [1, 1]


def test_a_closing_server_leaves_no_claim_behind(served: RespServer) -> None:
    with served.connect() as wire:
        assert wire.ask(b"QUEUE.CREATE", b"q") == b"+OK"
        blocked(served, wire)
        served.call(served.server.close)
        assert wire.rest() == b""


# ---- other processes --------------------------------------------------------------------------


def tell(child: Child, **command: Any) -> Any:
    child.tell(json.dumps(command))
    return json.loads(child.hear())


def test_processes_share_a_queue(tmp_path: Path) -> None:
    with Child("queuer", str(tmp_path)) as one, Child("queuer", str(tmp_path)) as two:
        assert (one.hear(), two.hear()) == ("open", "open")
        assert tell(one, do="create", lease=60) == "done"
        assert tell(two, do="publish", texts=["a", "b", "c"]) == [1, 2, 3]
        assert tell(one, do="claim", n=1) == ["a"]
        assert tell(two, do="claim", n=5) == ["b", "c"]
        assert tell(one, do="ack") == [True]
        assert tell(one, do="claim", n=5) == []
        assert tell(two, do="ack") == [True, True]
        assert tell(one, do="stats")["done"] == 3


def test_claims_consumers_and_receipts_survive_their_broker(tmp_path: Path) -> None:
    with Child("queuer", str(tmp_path)) as broker:
        assert broker.hear() == "open"
        assert tell(broker, do="create", lease=600) == "done"
        with penstock.open(tmp_path) as db, ThreadPoolExecutor(2) as pool:
            assert db._session.link.broker is None
            queue = db.queue("q")
            db.publish_many([b"0", b"1", b"2"])
            (held,) = queue.claim()
            consumer = queue.consume(consumer="c", prefetch=2)
            assert next(consumer).payload == b"1"
            waiting = pool.submit(queue.claim, 5, wait=60)
            broker.kill()
            assert db.publish(b"late", dedup_id="d") == db.publish(b"late", dedup_id="d")
            assert [message.payload for message in waiting.result()] == [b"late"]
            assert held.ack() is True, "the key of receipts is in the store"
            assert next(consumer).payload == b"2"
            consumer.stop()
            assert list(consumer) == []
            assert consumer.lost == 0
            assert queue.stats().done == 3


def test_a_consumer_that_dies_gives_its_messages_to_others(tmp_path: Path) -> None:
    with penstock.open(tmp_path) as db, Child("queuer", str(tmp_path)) as worker:
        assert worker.hear() == "open"
        queue = db.create_queue("q", lease=1)
        db.publish_many([b"0", b"1", b"2"])
        worker.tell(json.dumps({"do": "consume", "prefetch": 3}))
        assert json.loads(worker.hear()) == "0"
        worker.kill()
        found: list[Any] = []
        while len(found) < 3:
            found += queue.claim(5, wait=60)
        assert {message.attempts for message in found} == {2}
        (attempt,) = queue.attempts(found[0].id)
        assert attempt.ending == "expired"
