from __future__ import annotations

import msgspec
import numpy as np
import pytest

from penstock.codec.keys import KeyType, key_type, prefix, prefix_end, staging_key
from penstock.codec.node import HEADER_BYTES, LINK, decode_header
from penstock.codec.staging import Part, StagingRow, encode_staging
from penstock.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from penstock.log.batch import build_bodies
from penstock.log.check import check_log
from penstock.log.chores import pending_chores
from penstock.log.evict import delete_step, evict_step
from penstock.log.fold import FOLD_BYTES, plan_fold
from penstock.log.link import link_step
from penstock.log.merge import plan_merge
from penstock.log.staging import (
    STAGE_BYTES_MAX,
    begin_step,
    revoke_step,
    stage_step,
)
from penstock.log.state import SETTLE_ROWS
from unit.log.driver import LogDriver, data_of, stream

A, B = stream("a"), stream("b")


async def begun(lease_ms: int = 1000) -> tuple[LogDriver, int]:
    driver = await LogDriver.open()
    return driver, await driver.do(begin_step(lease_ms=lease_ms))


async def stage(driver: LogDriver, staging_id: int, writer: int, *entries: bytes) -> None:
    row = driver.states.get(("staging", staging_id))
    n = 0 if row is None else len(dict(row.writers).get(writer, ()))
    await driver.do(stage_step(staging_id, writer, n, build_bodies(list(entries))))


async def rows_of(driver: LogDriver, kind: KeyType) -> int:
    scan = driver.store.scan(prefix(kind), prefix_end(prefix(kind)))
    return sum([len(rows) async for rows in scan])


async def test_what_is_staged_is_hidden_until_it_is_linked() -> None:
    driver, staging_id = await begun()
    await driver.append(A, [b"before"])
    await stage(driver, staging_id, 1, b"x", b"y")
    assert await data_of(driver, A) == [b"before"]
    driver.clock.ms += 5
    assert await driver.do(link_step(staging_id, [(A, [1])])) == (range(1, 3),)
    found = await driver.read(A, 0, 10)
    assert [m and m.data for m in found] == [b"before", b"x", b"y"]
    assert [m and m.time_ms for m in found] == [1_000_000, 1_000_005, 1_000_005]


async def test_winners_go_in_the_order_named_into_several_logs_in_one_commit() -> None:
    driver, staging_id = await begun()
    for writer, data in enumerate([b"0", b"1", b"2", b"3"]):
        await stage(driver, staging_id, writer, data, data)
        await stage(driver, staging_id, writer, data)
    commits = len(driver.written)
    ranges = await driver.do(link_step(staging_id, [(A, [2, 0]), (B, [3])]))
    assert ranges == (range(0, 6), range(0, 3))
    assert len(driver.written) == commits + 1
    assert await data_of(driver, A) == [b"2"] * 3 + [b"0"] * 3
    assert await data_of(driver, B) == [b"3"] * 3
    assert await check_log(driver.store) == []


async def test_linking_copies_nothing() -> None:
    driver, staging_id = await begun()
    await driver.do(stage_step(staging_id, 0, 0, build_bodies([bytes(900_000)])))
    await driver.do(link_step(staging_id, [(A, [0])]))
    nodes = [v for k, v in driver.written[-1].items() if key_type(k) is KeyType.NODE]
    assert [len(value or b"") for value in nodes] == [HEADER_BYTES + 24]


async def test_a_link_ends_the_active_run_of_its_log() -> None:
    driver, staging_id = await begun()
    await driver.append(A, [b"before"])
    await stage(driver, staging_id, 0, b"linked")
    await driver.do(link_step(staging_id, [(A, [0])]))
    await driver.append(A, [b"after"])
    state = await driver.state(A)
    assert state is not None
    assert [run.entries for run in (*state.closed, state.run)] == [1, 1]
    for _ in range(2):
        state = await driver.state(A)
        assert state is not None
        step = await plan_merge(driver.store, state, active=True)
        assert step is not None
        assert await driver.do(step) is True
    assert await data_of(driver, A) == [b"before", b"linked", b"after"]
    assert await check_log(driver.store) == []


@pytest.mark.parametrize("folded", [False, True])
async def test_linking_again_gives_the_first_answer(folded: bool) -> None:
    driver, staging_id = await begun()
    await stage(driver, staging_id, 0, b"x")
    step = link_step(staging_id, [(A, [0])])
    assert await driver.submit(step, step) == [(range(0, 1),), (range(0, 1),)]
    await driver.append(A, [b"y"])
    if folded:
        await driver.chore(("staging", staging_id))
    driver.forget()
    assert await driver.do(step) == (range(0, 1),)
    assert driver.written[-1] == {}
    assert await data_of(driver, A) == [b"x", b"y"]


async def test_an_unknown_id_is_not_found() -> None:
    driver, _ = await begun()
    with pytest.raises(NotFoundError):
        await driver.do(stage_step(99, 0, 0, build_bodies([b"x"])))
    with pytest.raises(NotFoundError):
        await driver.do(link_step(99, [(A, [0])]))
    assert await driver.do(revoke_step(99)) is False


async def test_a_revoked_id_can_be_neither_staged_nor_linked() -> None:
    driver, staging_id = await begun()
    await stage(driver, staging_id, 0, b"x")
    driver.clock.ms += 1000
    assert await driver.do(revoke_step(staging_id)) is True
    for restart in (False, True):
        if restart:
            driver.forget()
        with pytest.raises(ConflictError, match="is revoked"):
            await driver.do(link_step(staging_id, [(A, [0])]))
        with pytest.raises(ConflictError, match="is revoked"):
            await driver.do(stage_step(staging_id, 0, 1, build_bodies([b"y"])))
    assert await driver.state(A) is None
    await driver.chore(("collect", None))
    assert await rows_of(driver, KeyType.STAGED) == await rows_of(driver, KeyType.STAGING) == 0
    with pytest.raises(NotFoundError):
        await driver.do(link_step(staging_id, [(A, [0])]))


async def test_staging_renews_the_lease() -> None:
    driver, staging_id = await begun(lease_ms=1000)
    for _ in range(5):
        driver.clock.ms += 900
        await stage(driver, staging_id, 0, b"x")
        assert await driver.do(revoke_step(staging_id)) is False
    driver.clock.ms += 999
    assert await driver.do(revoke_step(staging_id)) is False
    driver.clock.ms += 1
    assert await driver.do(revoke_step(staging_id)) is True


async def test_a_linked_staging_is_never_revoked() -> None:
    driver, staging_id = await begun()
    await stage(driver, staging_id, 0, b"x")
    await driver.do(link_step(staging_id, [(A, [0])]))
    driver.clock.ms += 10**9
    assert await driver.do(revoke_step(staging_id, force=True)) is False
    with pytest.raises(ConflictError, match="is linked"):
        await driver.do(stage_step(staging_id, 0, 1, build_bodies([b"y"])))


async def test_an_expired_staging_can_be_linked_until_it_is_revoked() -> None:
    driver, staging_id = await begun()
    await stage(driver, staging_id, 0, b"x")
    driver.clock.ms += 5000
    assert await driver.do(link_step(staging_id, [(A, [0])])) == (range(0, 1),)


async def test_nodes_of_a_writer_are_dense_and_may_be_repeated() -> None:
    driver, staging_id = await begun()
    one, two = build_bodies([b"1"]), build_bodies([b"2", b"2"])
    with pytest.raises(InvalidError, match="leaves a gap"):
        await driver.do(stage_step(staging_id, 0, 1, one))
    assert await driver.do(stage_step(staging_id, 0, 0, one)) == 1
    assert await driver.do(stage_step(staging_id, 0, 0, one)) == 1
    assert await driver.do(stage_step(staging_id, 0, 0, [*one, *two])) == 2
    with pytest.raises(ConflictError, match="staged other nodes at 1"):
        await driver.do(stage_step(staging_id, 0, 1, one))
    await driver.do(link_step(staging_id, [(A, [0])]))
    assert await data_of(driver, A) == [b"1", b"2", b"2"]


async def test_a_commit_of_staging_is_bounded() -> None:
    bodies = build_bodies([np.random.default_rng(i).bytes(900_000) for i in range(6)])
    assert sum(len(body.stored) for body in bodies) > STAGE_BYTES_MAX
    with pytest.raises(InvalidError, match="at most"):
        stage_step(1, 0, 0, bodies)
    stage_step(1, 0, 0, bodies[:4])
    stage_step(1, 0, 0, build_bodies([np.random.default_rng(0).bytes(5 << 20)]))


def test_wrong_arguments_are_invalid() -> None:
    with pytest.raises(InvalidError, match="named twice"):
        link_step(1, [(A, [0]), (B, [0])])
    with pytest.raises(InvalidError, match="lease"):
        begin_step(lease_ms=0)
    with pytest.raises(InvalidError, match="writer -1"):
        stage_step(1, -1, 0, [])


async def test_a_writer_that_staged_nothing_is_refused_and_nothing_is_linked() -> None:
    driver, staging_id = await begun()
    await stage(driver, staging_id, 0, b"x")
    with pytest.raises(NotFoundError, match="writer 7 staged nothing"):
        await driver.do(link_step(staging_id, [(A, [0, 7])]))
    assert await driver.state(A) is None
    assert await driver.do(link_step(staging_id, [(A, [0])])) == (range(0, 1),)


async def test_folding_makes_nodes_of_links_and_removes_everything_staged() -> None:
    driver, staging_id = await begun()
    await driver.append(A, [b"run"])
    for i in range(12):
        await stage(driver, staging_id, i % 2, np.random.default_rng(i).bytes(900_000))
    await driver.do(link_step(staging_id, [(A, [1])]))
    before = await driver.read(A, 0, 100)
    commits = len(driver.written)
    driver.forget()
    await driver.chore(("staging", staging_id))
    assert await driver.read(A, 0, 100) == before
    assert await rows_of(driver, KeyType.STAGED) == await rows_of(driver, KeyType.STAGING) == 0
    for writes in driver.written[commits:]:
        assert sum(len(value or b"") for value in writes.values()) < 2 * FOLD_BYTES
    nodes = [
        decode_header(value, "node").flags & LINK
        async for rows in driver.store.scan(prefix(KeyType.NODE), prefix_end(prefix(KeyType.NODE)))
        for _, value in rows
    ]
    assert nodes == [0] * 7
    assert await check_log(driver.store) == []


async def test_folding_below_the_settled_offset_keeps_the_bytes_right() -> None:
    driver, staging_id = await begun()
    await stage(driver, staging_id, 0, b"x")
    await driver.do(link_step(staging_id, [(A, [0])]))
    for _ in range(SETTLE_ROWS):
        await driver.append(A, [b"y"] * 1000)
    state = await driver.state(A)
    assert state is not None
    assert state.settled > 1
    await driver.chore(("staging", staging_id))
    assert await check_log(driver.store) == []
    folded = await driver.state(A)
    driver.forget()
    again = await driver.state(A)
    assert folded is not None
    assert again is not None
    assert again.stored_bytes == folded.stored_bytes


@pytest.mark.parametrize("how", ["evicted", "deleted"])
async def test_folding_what_is_gone_only_removes_it(how: str) -> None:
    driver, staging_id = await begun()
    await stage(driver, staging_id, 0, b"x", b"y")
    await driver.do(link_step(staging_id, [(A, [0])]))
    step = await plan_fold(driver.store, staging_id)
    assert step is not None
    await driver.do(evict_step(A, up_to=1) if how == "evicted" else delete_step(A))
    assert await driver.do(step) is False
    assert not any(
        value is not None and key_type(key) is KeyType.NODE
        for key, value in driver.written[-1].items()
    )
    await driver.chore(("collect", None))
    assert await rows_of(driver, KeyType.NODE) == await rows_of(driver, KeyType.STAGED) == 0
    assert await check_log(driver.store) == []


async def test_a_staging_row_with_a_part_of_an_unknown_writer_is_corrupt() -> None:
    driver, staging_id = await begun()
    await stage(driver, staging_id, 0, b"x")
    await driver.do(link_step(staging_id, [(A, [0])]))
    row: StagingRow = driver.states["staging", staging_id]
    damaged = msgspec.structs.replace(row, parts=(Part(row.parts[0].log_id, 7, 0),))
    await driver.store.commit(
        driver.store.head().n + 1,
        [(staging_key(staging_id), encode_staging(damaged))],
        time_ms=driver.clock.ms,
        epoch=driver.store.epoch,
    )
    with pytest.raises(CorruptError, match=f"staging {staging_id}: .* unknown writer 7"):
        await plan_fold(driver.store, staging_id)


async def test_open_linked_and_revoked_stagings_are_found_after_a_restart() -> None:
    driver, open_id = await begun(lease_ms=777)
    linked_id = await driver.do(begin_step())
    revoked_id = await driver.do(begin_step())
    await stage(driver, linked_id, 0, b"x")
    await driver.do(link_step(linked_id, [(A, [0])]))
    await driver.do(revoke_step(revoked_id, force=True))
    driver.forget()
    timers = {timer.what: timer.at_ms async for timer in pending_chores(driver.store)}
    assert timers == {
        ("collect", None): 0,
        ("staging", open_id): 1_000_777,
        ("staging", linked_id): 0,
    }


async def test_a_staging_has_so_many_writers_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.staging.WRITERS_MAX", 2)
    driver, staging_id = await begun()
    for writer in (1, 2):
        await stage(driver, staging_id, writer, b"x")
    with pytest.raises(InvalidError, match="no more"):
        await stage(driver, staging_id, 3, b"x")
    await driver.do(stage_step(staging_id, 1, 1, build_bodies([b"y"])))
    assert await driver.do(link_step(staging_id, [(A, [2, 1])])) == (range(3),)
