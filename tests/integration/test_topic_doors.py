"""Topics through their doors: stock Redis clients, other processes, brokers that come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import penstock
from integration.children import PATIENCE_SECONDS, Child
from integration.resp_server import RespServer
from penstock.broker.topicanswers import Polled
from penstock.topic.item import slot_of

ONCE = Retry(NoBackoff(), 0)


@pytest.fixture
def served() -> Iterator[RespServer]:
    with RespServer() as server:
        yield server


def as_map(found: Any) -> dict[str, Any]:
    """A map of RESP3, or RESP2's flat list of it."""
    pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
    return {key.decode(): value for key, value in pairs}


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.005)


# ---- redis-py ---------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_takes_messages_through_their_life(served: RespServer, protocol: int) -> None:
    with redis.Redis(port=served.port, protocol=protocol, retry=ONCE) as client:
        ask = client.execute_command
        for words in (("TOPIC.PUSH", "t", "NOCREATE", "x"), ("TOPIC.STATS", "t")):
            with pytest.raises(redis.ResponseError, match=r"^NOTFOUND"):
                ask(*words)
        assert ask("TOPIC.PUSH", "t", "KEY", "k", "SLOTS", 4, b"\x00\xff") == 0
        assert ask("TOPIC.PUSHMANY", "t", "k", "1", "", "2", "l", "3") == [1, 3]
        with pytest.raises(redis.ResponseError, match=r"^INVALID"):
            ask("TOPIC.PUSH", "t", "SLOTS", 5, "x")
        stats = as_map(ask("TOPIC.STATS", "t"))
        assert (stats["inserted"], stats["routed"], stats["waiting"]) == (4, 0, 4)
        joined = as_map(ask("TOPIC.JOIN", "t", "c", "HEARTBEAT", 60_000))
        token = joined["token"]
        assert (joined["slots"], joined["heartbeat"]) == ([0, 1, 2, 3], 60_000)
        assert as_map(ask("TOPIC.BEAT", "t", "c", token))["slots"] == [0, 1, 2, 3]
        found = [as_map(each) for each in ask("TOPIC.POLL", "t", "c", token, 10)]
        assert [(each["offset"], each["key"], each["data"]) for each in found] == [
            (0, b"k", b"\x00\xff"),
            (1, b"k", b"1"),
            (2, None, b"2"),
            (3, b"l", b"3"),
        ]
        assert found[0]["slot"] == found[1]["slot"] == slot_of(b"k", 4)
        refs = [each["ref"] for each in found]
        assert ask("TOPIC.POLL", "t", "c", token, 10, "WAIT", 1) == []
        # One is done and two things happen with it, one has failed, one is given back.
        answer = ask(
            "TOPIC.ACK", "t", "c", token, refs[0], "ATTEMPTS", 1, "FAILED", refs[1], "no disk",
            "WRITE", "s", "tag", "x", "PUSH", "u", "", "y",
        )  # fmt: skip
        assert answer == [1, b"errored"]
        assert ask("TOPIC.ACK", "t", "c", token, refs[0]) == [0]
        assert ask("TREAD", "s", 0, 10) == [[b"tag", b"x"]] or ask("TLEN", "s") == 1
        assert as_map(ask("TOPIC.STATS", "u"))["inserted"] == 1
        with pytest.raises(redis.ResponseError, match=r"^NOTFOUND"):
            ask("TOPIC.ACK", "t", "c", token, refs[2], "PUBLISH", 3, "x", "TO", "nowhere")
        assert ask("TOPIC.RELEASE", "t", "c", token, refs[3]) == [1]
        (again,) = map(as_map, ask("TOPIC.POLL", "t", "c", token, 10, "DONE", refs[2]))
        assert again["offset"] == 3
        assert ask("TOPIC.ACK", "t", "c", token, again["ref"]) == [1]
        (error,) = map(as_map, ask("TOPIC.ERRORS", "t"))
        assert (error["offset"], error["error"], error["data"]) == (1, b"no disk", b"1")
        assert (error["consumer"], error["attempts"], error["final"]) == (b"c", 1, b"yes")
        # Replays, pauses, what is there.
        assert ask("TOPIC.REPLAY", "t", "OFFSET", 2)[1:] == [2, 4]
        replayed: list[Any] = []
        while len(replayed) < 2:
            replayed += ask("TOPIC.POLL", "t", "c", token, 10, "WAIT", 5000)
        maps = [as_map(each) for each in replayed]
        assert [(each["offset"], each["replay"] > 0) for each in maps] == [(2, True), (3, True)]
        assert ask("TOPIC.ACK", "t", "c", token, *(each["ref"] for each in maps)) == [1, 1]
        assert ask("TOPIC.PAUSE", "t") == 1
        ask("TOPIC.PUSH", "t", "x")
        assert ask("TOPIC.POLL", "t", "c", token, 10) == []
        assert ask("TOPIC.PLAY", "t") == b"OK"
        polled = ask("TOPIC.POLL", "t", "c", token, 10, "WAIT", 5000, "PACKED", "SETTLE")
        (part,) = msgspec.msgpack.decode(polled, type=Polled).parts
        assert part.data == [b"x"]
        stats = as_map(ask("TOPIC.STATS", "t"))
        assert (stats["inserted"], stats["acked"], stats["errored"]) == (5, 4, 1)
        (consumer,) = map(as_map, ask("TOPIC.CONSUMERS", "t"))
        assert (consumer["id"], consumer["zombie"]) == (b"c", b"no")
        assert len(ask("TOPIC.SHARDS", "t")) == 4
        assert ask("TOPIC.REBALANCE", "t") == 0
        assert ask("TOPIC.CONFIG", "t", "MAXLEN", 100) == b"OK"
        assert as_map(ask("TOPIC.INFO", "t"))["maxlen"] == 100
        assert ask("TOPIC.LEAVE", "t", "c", token) == 1
        with pytest.raises(redis.ResponseError, match=r"^NOTFOUND"):
            ask("TOPIC.BEAT", "t", "c", token)
        with pytest.raises(redis.ResponseError, match=r"^NOTFOUND"):
            ask("TOPIC.POLL", "t", "c", token, 1)
        assert ask("TOPIC.LS") == [b"t", b"u"]
        assert ask("TOPIC.DEL", "t") == b"OK"
        with pytest.raises(redis.ResponseError, match=r"^NOTFOUND"):
            ask("TOPIC.DEL", "t")


def test_a_poll_whose_client_is_gone_gives_its_messages_back(served: RespServer) -> None:
    with redis.Redis(port=served.port, retry=ONCE) as client:
        ask = client.execute_command
        token = as_map(ask("TOPIC.JOIN", "t", "c", "HEARTBEAT", 60_000))["token"]
        gone: Any = redis.Redis(port=served.port, retry=ONCE, socket_timeout=0.2)
        with pytest.raises(redis.TimeoutError):
            gone.execute_command("TOPIC.POLL", "t", "c", token, 10, "WAIT", 60_000)
        gone.close()
        until(lambda: client.info("clients")["blocked_clients"] == 0)
        ask("TOPIC.PUSH", "t", "x")
        (found,) = ask("TOPIC.POLL", "t", "c", token, 10, "WAIT", 5000)
        assert as_map(found)["offset"] == 0


# ---- brokers that end -------------------------------------------------------------------------


def test_a_consumer_goes_on_when_its_broker_is_killed(tmp_path: Path) -> None:
    with Child("holder") as holder:
        holder.tell(f"open {tmp_path / 'd'}")
        assert holder.hear() == "done"
        with penstock.open(tmp_path / "d") as db:
            topic = db.topic("t")
            seen: list[int] = []
            with topic.tail(lambda message: seen.append(message.offset), consumer="c") as consumer:
                topic.push_many([("k", b"%d" % i) for i in range(10)])
                until(lambda: topic.stats().acked == 10)
                holder.kill()
                until(lambda: topic.push_many([("k", b"")] * 10) and True)
                until(lambda: topic.stats().acked == 20)
                assert [each.id for each in topic.consumers()] == ["c"]
            assert sorted(set(seen)) == list(range(20))
            assert consumer.lost <= 10


def slots_of(location: Path, keys: list[str]) -> dict[str | None, int]:
    """As a consumer sees them."""
    found: dict[str | None, int] = {}

    def note(message: penstock.TopicMessage) -> None:
        assert found.setdefault(message.shard_key, message.slot) == message.slot

    with penstock.open(location) as db:
        topic = db.topic("t")
        topic.push_many([(key, b"") for key in keys])
        with topic.tail(note):
            until(lambda: topic.stats().waiting + topic.stats().running == 0)
    return found


def test_keys_have_their_slots_after_every_opening(tmp_path: Path) -> None:
    keys = [f"key-{i}" for i in range(200)]
    expected = {key: slot_of(key.encode(), 32) for key in keys}
    assert slots_of(tmp_path / "d", keys) == expected
    assert slots_of(tmp_path / "d", keys) == expected
