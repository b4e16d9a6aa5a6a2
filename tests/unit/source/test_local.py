"""What a runner has in its hands: nothing is acknowledged before all of it is terminal."""

from __future__ import annotations

import msgspec
import pytest

from penstock.source.coordinate import Course, course_of, takeovers
from penstock.source.local import Local, Through, Work
from penstock.source.queueport import Received
from penstock.source.requests import Shard, Takeover

MINE = Shard(
    id="a",
    uri="a",
    kind="file",
    phase="open",
    position="BOF",
    token="me",
    mine=True,
    stale=False,
    rows=0,
    failures=0,
    error="",
    etag=None,
    announced_by="",
    text="",
    opened_ms=0,
    updated_ms=0,
)


def mine(shard_id: str, **changes: object) -> Shard:
    return msgspec.structs.replace(MINE, id=shard_id, uri=shard_id, **changes)


def done(shard_id: str) -> Shard:
    return mine(shard_id, phase="eof", position="EOF", mine=False)


def failed(shard_id: str) -> Shard:
    return mine(shard_id, phase="failed", mine=False)


def foreign(shard_id: str) -> Shard:
    return mine(shard_id, mine=False, token="other")


def message(message_id: str, handle: int = 1) -> Received:
    return Received(message_id, b"", handle, handle, 100.0)


def ids(through: Through) -> tuple[list[str], list[str]]:
    return [each.id for each in through.acknowledge], [each.id for each in through.drop]


# -- what to do with a shard


@pytest.mark.parametrize(
    ("shard", "course"),
    [
        (mine("a"), Course.READ),
        (mine("a", stale=True), Course.READ),
        (done("a"), Course.DONE),
        (mine("a", phase="eof"), Course.DONE),
        (failed("a"), Course.DONE),
        (foreign("a"), Course.DROP),
        (mine("a", mine=False, token="other", stale=True), Course.ACQUIRE),
    ],
)
def test_what_is_done_with_a_shard(shard: Shard, course: Course) -> None:
    assert course_of(shard) is course


def test_stale_shards_are_acquired_from_the_owner_they_were_seen_with() -> None:
    stale = mine("b", mine=False, token="other", stale=True)
    assert takeovers([mine("a"), stale, foreign("c")]) == [Takeover("b", "other")]


# -- messages and their shards


def test_a_message_is_acknowledged_when_all_its_shards_are_terminal() -> None:
    local = Local()
    assert ids(local.add(message("m"), [mine("a"), mine("b"), done("c")])) == ([], [])
    local.take(10)
    local.sent(["a", "b"])
    assert ids(local.end(["a"])) == ([], [])
    assert ids(local.end(["b"])) == (["m"], [])
    assert local.idle


def test_what_was_sent_and_is_read_once_more_can_be_sent_again() -> None:
    local = Local()
    local.add(message("m"), [mine("a"), mine("b")])
    local.take(10)
    local.sent(["a", "b"])
    local.resume(["a", "b"])
    assert [each.id for each in local.working(Work.READING)] == ["a", "b"]
    assert local.take(10) == []
    local.sent(["a"])
    assert ids(local.end(["a", "b"])) == (["m"], [])


def test_a_message_whose_shards_are_all_terminal_is_acknowledged_at_once() -> None:
    local = Local()
    assert ids(local.add(message("m"), [done("a"), failed("b")])) == (["m"], [])
    assert ids(local.add(message("nothing"), [])) == (["nothing"], [])
    assert local.take(10) == []


def test_a_fresh_foreign_shard_blocks_the_acknowledgement_only() -> None:
    local = Local()
    assert ids(local.add(message("m"), [mine("a"), foreign("b")])) == ([], [])
    assert [each.id for each in local.take(10)] == ["a"]
    assert ids(local.end(["a"])) == ([], ["m"])


def test_a_message_with_nothing_but_foreign_shards_is_dropped_at_once() -> None:
    assert ids(Local().add(message("m"), [foreign("a")])) == ([], ["m"])


def test_a_shard_that_is_lost_or_failed_once_lets_its_messages_come_again() -> None:
    local = Local()
    local.add(message("m"), [mine("a"), mine("b")])
    local.take(10)
    assert ids(local.drop(["a"])) == ([], [])
    assert ids(local.end(["b"])) == ([], ["m"])
    assert ids(local.end(["a"])) == ([], []), "it is not here any more"


def test_a_shard_is_read_once_however_many_messages_name_it() -> None:
    local = Local()
    local.add(message("m1"), [mine("a")])
    assert [each.id for each in local.take(10)] == ["a"]
    local.add(message("m2"), [mine("a")])
    assert local.take(10) == []
    assert sorted(each.id for each in local.messages_of("a")) == ["m1", "m2"]
    acknowledged, dropped = ids(local.end(["a"]))
    assert (sorted(acknowledged), dropped) == (["m1", "m2"], [])


def test_a_message_that_is_delivered_again_is_acknowledged_with_its_newest_lease() -> None:
    local = Local()
    local.add(message("m", handle=1), [mine("a")])
    local.take(10)
    local.add(message("m", handle=2), [mine("a")])
    assert [each.handle for each in local.held()] == [2]
    assert [each.handle for each in local.end(["a"]).acknowledge] == [2]


def test_what_blocked_a_message_may_be_over_when_it_comes_again() -> None:
    local = Local()
    local.add(message("m"), [mine("a"), foreign("b")])
    local.take(10)
    local.add(message("m", handle=2), [mine("a"), done("b")])
    assert ids(local.end(["a"])) == (["m"], [])


def test_shards_go_from_ready_to_reading_to_awaiting_and_back() -> None:
    local = Local()
    local.add(message("m"), [mine("a"), mine("b"), mine("c")])
    assert [each.id for each in local.take(2)] == ["a", "b"]
    assert [each.id for each in local.working(Work.READY)] == ["c"]
    local.sent(["a"])
    assert [each.id for each in local.working(Work.AWAITING)] == ["a"]
    local.again([mine("a", position="00000000000000000005")])
    assert [(each.id, each.position) for each in local.take(1)] == [("a", "00000000000000000005")]
    assert [each.id for each in local.working()] == ["a", "b", "c"]


def test_what_was_not_read_cannot_await_its_commit() -> None:
    local = Local()
    local.add(message("m"), [mine("a")])
    with pytest.raises(AssertionError, match="a is ready"):
        local.sent(["a"])


def test_what_is_held_and_what_is_remembered_are_bounded() -> None:
    local = Local(capacity=3, remembered=2)
    local.add(message("m"), [mine("a"), mine("b")])
    assert local.room == 1
    local.add(message("n"), [mine("c"), mine("d")])
    assert local.room == 0
    local.end(["a", "b", "c"])
    assert local.room == 2
    assert [local.completed(each) for each in "abcd"] == [False, True, True, False]
