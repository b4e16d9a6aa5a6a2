"""The rules of leases, L1 to L5, and which receipts count."""

from __future__ import annotations

import msgspec
import pytest

from penstock.codec.attempts import Ending
from penstock.codec.keys import KeyType
from penstock.codec.queueoperation import PageKind
from penstock.errors import InvalidError
from penstock.queue.admin import alter_step
from penstock.queue.expire import clear_step
from penstock.queue.item import Item
from penstock.queue.lease import claim_step
from penstock.queue.lists import read_attempts, redrive_step
from penstock.queue.state import page_state_key, queue_name
from unit.queue.driver import Lease, Q, QueueDriver, messages, small_pages


async def test_claims_come_by_priority_then_visible_at_then_id() -> None:
    driver = await QueueDriver.start()
    now = driver.clock.ms
    ids = await driver.publish(
        Item(b"a", headers={"priority": "7"}),
        Item(b"b", visible_at_ms=now),
        Item(b"c", visible_at_ms=now - 5),
        Item(b"d", visible_at_ms=now - 5),
        Item(b"e", headers={"priority": "7"}, visible_at_ms=now - 9),
        Item(b"f", delay_ms=1),
    )
    claimed = [lease.message_id for lease in await driver.claim(10)]
    assert claimed == [ids[i] for i in (4, 0, 2, 3, 1)]
    driver.clock.ms += 1
    assert [lease.message_id for lease in await driver.claim(10)] == [ids[5]]
    await driver.clean()


async def test_l1_a_lease_whose_deadline_is_reached_is_over() -> None:
    driver = await QueueDriver.start()
    await driver.publish(b"x")
    (lease,) = await driver.claim(1, lease_ms=10)
    driver.clock.ms += 10
    assert await driver.ack(lease) == [False]
    await driver.clean()


async def test_l1_also_for_leases_that_this_request_did_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_pages(monkeypatch)
    monkeypatch.setattr("penstock.queue.lease.ENDED_PAGES", 1)
    driver = await QueueDriver.start()
    await driver.publish(*messages(12))
    leases = await driver.claim(12, lease_ms=10)
    driver.clock.ms += 10
    assert await driver.ack(*leases) == [False] * 12
    assert len(await driver.ids(PageKind.IN_FLIGHT)) > 0, "some wait for the next request"
    await driver.clean()


async def test_a_lease_lives_until_the_millisecond_before_its_deadline() -> None:
    driver = await QueueDriver.start()
    await driver.publish(b"x")
    (lease,) = await driver.claim(1, lease_ms=10)
    driver.clock.ms += 9
    assert await driver.ack(lease) == [True]


async def test_l2_l3_expiry_and_reports_are_attempts_and_the_last_one_fails_for_good() -> None:
    driver = await QueueDriver.start(max_attempts=2)
    (message_id,) = await driver.publish(b"x")
    (lease,) = await driver.claim(1, lease_ms=10, consumer="first")
    driver.clock.ms += 10
    (lease,) = await driver.claim(1, consumer="second")
    assert await driver.fail(lease, reason="no") == [True]
    assert await driver.ids(PageKind.FAILED) == [message_id]
    history = await read_attempts(await driver.rows_alone(), Q, message_id)
    assert [(a.consumer, a.ending, a.reason) for a in history] == [
        ("first", Ending.EXPIRED, ""),
        ("second", Ending.FAILED, "no"),
    ]
    assert await driver.claim(1) == []
    await driver.clean()


async def test_l3_a_failed_message_waits_as_long_as_it_is_told() -> None:
    driver = await QueueDriver.start(backoff=0.05)
    await driver.publish(b"x")
    await driver.fail(*await driver.claim(1))
    driver.clock.ms += 49
    assert await driver.claim(1) == []
    driver.clock.ms += 1
    (lease,) = await driver.claim(1)
    await driver.fail(lease, delay_ms=7)
    driver.clock.ms += 6
    assert await driver.claim(1) == []
    driver.clock.ms += 1
    assert len(await driver.claim(1)) == 1


async def test_a_delay_beyond_all_time_is_never() -> None:
    driver = await QueueDriver.start()
    await driver.publish(b"x")
    assert await driver.fail(*await driver.claim(1), delay_ms=1 << 70) == [True]
    assert (await driver.stats()).delayed == 1


async def test_l4_past_its_retention_it_may_be_acked_and_never_comes_again() -> None:
    driver = await QueueDriver.start()
    await driver.publish(*messages(3, retention_s=1))
    kept, failed, released = await driver.claim(3)
    driver.clock.ms += 1001
    assert await driver.ack(kept) == [True]
    assert await driver.fail(failed) == [True]
    assert await driver.release(released) == [True]
    stats = await driver.stats()
    assert (stats.acked, stats.expired, stats.available, stats.failed) == (1, 2, 0, 0)
    assert await driver.keys(KeyType.ATTEMPTS) == []
    await driver.clean()


async def test_a_message_can_be_claimed_in_the_last_millisecond_of_its_retention() -> None:
    driver = await QueueDriver.start()
    await driver.publish(*messages(2, retention_s=1))
    driver.clock.ms += 1000
    assert len(await driver.claim(1)) == 1
    driver.clock.ms += 1
    assert await driver.claim(1) == []
    assert (await driver.stats()).expired == 1


async def test_l5_attempts_count_claims_and_a_release_takes_its_own_one_back() -> None:
    driver = await QueueDriver.start(max_attempts=2)
    await driver.publish(b"x")
    for _ in range(5):
        await driver.release(*await driver.claim(1))
    claimed = await driver.do(claim_step(Q, 1, consumer="me"))
    assert claimed.entries["attempts"].tolist() == [1]
    await driver.clean()


async def test_attempts_saturate_instead_of_starting_again() -> None:
    driver = await QueueDriver.start(max_attempts=0)
    await driver.publish(b"x")
    (page,) = await driver.pages(PageKind.AVAILABLE)
    entries = page.entries.copy()
    entries["attempts"] = 65535
    key = page_state_key((await driver.queue()).id, PageKind.AVAILABLE, page.number)
    driver.states[key] = msgspec.structs.replace(page, entries=entries)
    claimed = await driver.do(claim_step(Q, 1, consumer="me"))
    assert claimed.entries["attempts"].tolist() == [65535]


async def test_a_lease_that_is_named_twice_counts_once() -> None:
    driver = await QueueDriver.start()
    await driver.publish(b"x")
    (lease,) = await driver.claim(1)
    assert await driver.ack(lease, lease) == [True, False]
    assert (await driver.stats()).acked == 1


@pytest.mark.parametrize("foreign_first", [True, False])
async def test_a_receipt_of_another_queue_spoils_no_good_one(foreign_first: bool) -> None:
    """Lease numbers begin at 1 in every queue."""
    driver = await QueueDriver.start()
    await driver.create("other")
    await driver.publish(b"x", b"y")
    (good, _), (foreign,) = await driver.claim(2), await driver.claim(1, "other")
    assert good.number == foreign.number
    leases = [foreign, good] if foreign_first else [good, foreign]
    assert await driver.ack(*leases) == [lease is good for lease in leases]
    await driver.clean()


async def test_a_receipt_of_a_deleted_queue_is_stale_in_the_next_one_of_that_name() -> None:
    driver = await QueueDriver.start()
    await driver.publish(b"x")
    (old,) = await driver.claim(1)
    await driver.delete()
    await driver.create("q")
    await driver.publish(b"y")
    (new,) = await driver.claim(1)
    assert old.number == new.number
    assert await driver.ack(Lease(old.queue, new.message_id, new.number)) == [False]
    assert await driver.ack(old, new) == [False, True]


@pytest.mark.parametrize("how", ["release", "expire", "redrive", "purge", "ack", "fail"])
async def test_a_receipt_is_stale_for_ever_after(how: str) -> None:
    driver = await QueueDriver.start(max_attempts=1 if how == "redrive" else 5)
    await driver.publish(b"x")
    (lease,) = await driver.claim(1, lease_ms=10)
    match how:
        case "release":
            await driver.release(lease)
        case "expire":
            driver.clock.ms += 10
        case "redrive":
            await driver.fail(lease)
            await driver.do(redrive_step(Q, None))
        case "purge":
            await driver.purge()
        case "ack":
            await driver.ack(lease)
        case "fail":
            await driver.fail(lease)
    for _ in range(2):
        assert await driver.ack(lease) == [False]
        assert await driver.fail(lease) == [False]
        assert await driver.release(lease) == [False]
        assert await driver.extend(lease, ms=10) == [False]
        await driver.claim(1)
    driver = await driver.restarted()
    assert await driver.ack(lease) == [False]
    await driver.clean()


async def test_an_extension_counts_from_now_and_keeps_the_holder() -> None:
    driver = await QueueDriver.start()
    await driver.publish(b"x", b"y")
    await driver.claim(1, consumer="other")
    (lease,) = await driver.claim(1, lease_ms=100, consumer="holder")
    driver.clock.ms += 50
    assert await driver.extend(lease, ms=100) == [True]
    driver.clock.ms += 99
    assert await driver.extend(lease, ms=1) == [True], "it may become shorter"
    driver.clock.ms += 1
    assert await driver.ack(lease) == [False]
    (attempt,) = await read_attempts(await driver.rows_alone(), Q, lease.message_id)
    assert attempt.consumer == "holder"
    await driver.clean()


@pytest.mark.parametrize("lease_ms", [0, 1001])
async def test_a_lease_outside_the_limits_is_refused_and_changes_nothing(lease_ms: int) -> None:
    driver = await QueueDriver.start(lease_ms=10, max_lease_ms=1000)
    await driver.publish(b"x")
    (lease,) = await driver.claim(1)
    with pytest.raises(InvalidError):
        await driver.extend(lease, ms=lease_ms)
    with pytest.raises(InvalidError):
        await driver.claim(1, lease_ms=lease_ms)
    assert await driver.ack(lease) == [True]


async def test_a_paused_queue_gives_nothing_and_settles_everything() -> None:
    driver = await QueueDriver.start()
    await driver.publish(b"x", b"y")
    (lease,) = await driver.claim(1)
    await driver.do(alter_step(Q, {"paused": True}))
    assert await driver.claim(1) == []
    assert await driver.ack(lease) == [True]
    await driver.publish(b"z")
    await driver.do(alter_step(Q, {"paused": False}))
    assert len(await driver.claim(5)) == 2


async def test_a_look_that_finds_an_extended_lease_leaves_a_hint_for_the_next_one() -> None:
    driver = await QueueDriver.start()
    await driver.publish(b"x")
    (lease,) = await driver.claim(1, lease_ms=10)
    await driver.extend(lease, ms=1000)
    driver.clock.ms += 10
    driver.timers.clear()
    assert await driver.do(clear_step(Q)) is False
    assert [(t.at_ms, t.what) for t in driver.timers] == [(driver.clock.ms + 990, ("lease", "q"))]


async def test_queues_share_a_message_and_settle_it_apart() -> None:
    driver = await QueueDriver.start()
    await driver.create("other", max_attempts=1)
    (message_id,) = await driver.publish(b"x")
    (mine,), (theirs,) = await driver.claim(1), await driver.claim(1, "other")
    assert mine.message_id == theirs.message_id == message_id
    assert await driver.ack(mine) == [True]
    assert await driver.ack(mine, name="other") == [False]
    assert await driver.ack(theirs, name="other") == [True]
    assert await driver.ids(PageKind.DONE) == await driver.ids(PageKind.DONE, "other")
    assert queue_name("other") != Q
    await driver.clean()


async def test_attempts_never_exceed_a_maximum_that_was_lowered() -> None:
    driver = await QueueDriver.start(max_attempts=5)
    await driver.publish(b"x")
    for _ in range(3):
        await driver.fail(*await driver.claim(1))
    await driver.do(alter_step(Q, {"max_attempts": 2}))
    claimed = await driver.do(claim_step(Q, 1, consumer="me"))
    assert (claimed.entries["attempts"] <= 2).all()
