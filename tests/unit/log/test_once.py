from __future__ import annotations

import pytest

from penstock.codec.keys import KeyType, Scope, once_key, prefix, prefix_end
from penstock.codec.once import OnceRow
from penstock.errors import InvalidError
from penstock.log.decision import Decision, Step
from penstock.log.once import EXPIRE_ROWS, check, once_value, plan_expire
from unit.log.driver import LogDriver


def test_the_table_tells_fresh_repeated_and_lower_apart() -> None:
    row = once_value(5, b"answer", 1000, 100)
    assert check(None, 5, 1000) is None
    assert check(row, 6, 1000) is None
    assert check(row, 5, 1099) == OnceRow(5, 1100, b"answer")
    with pytest.raises(InvalidError, match="sequence 4 is below 5"):
        check(row, 4, 1099)
    assert check(row, 4, 1100) is None


async def test_expired_rows_are_removed_in_parts_and_renewed_ones_stay() -> None:
    driver = await LogDriver.open()
    count = EXPIRE_ROWS + 300
    keys = [once_key(Scope.DEDUP, 1, b"%05d" % i) for i in range(count)]
    rows = {key: once_value(0, b"", 0, 10 if i % 2 else 10**9) for i, key in enumerate(keys)}
    await driver.do(Step(lambda view, now: Decision(writes={**rows})))
    driver.clock.ms = 20
    step, after = await plan_expire(driver.store, b"", 20)
    assert after is None
    assert step is not None
    renewed = {keys[1]: once_value(0, b"", 20, 10)}
    await driver.do(Step(lambda view, now: Decision(writes={**renewed})))
    assert await driver.do(step) == count // 2 - 1
    low = prefix(KeyType.ONCE)
    left = sum([len(found) async for found in driver.store.scan(low, prefix_end(low))])
    assert left == count - count // 2 + 1
