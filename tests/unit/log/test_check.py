"""Each invariant of log/check.py, broken once by hand, is found and named."""

from __future__ import annotations

import pytest

from penstock.codec.catalogue import CatalogueRow, encode_catalogue_row
from penstock.codec.keys import (
    Kind,
    Scope,
    hold_key,
    ids_key,
    log_key,
    name_key,
    node_key,
    once_key,
    staged_key,
    staging_key,
)
from penstock.codec.logrow import LogRow, encode_log
from penstock.codec.node import node_value
from penstock.codec.once import encode_hold
from penstock.log.batch import build_bodies
from penstock.log.catalogue import Ids
from penstock.log.check import Checker, check_log
from penstock.log.link import link_step
from penstock.log.once import once_value
from penstock.log.staging import begin_step, stage_step
from unit.log.driver import LogDriver, stream

NODE = node_value(build_bodies([b"x"] * 1000)[0], 1000, 0)
SHORT = node_value(build_bodies([b"x"] * 999)[0], 1000, 0)
FLIPPED = NODE[:-1] + bytes([NODE[-1] ^ 1])


async def sample() -> LogDriver:
    """A log of three nodes and a fragment, another one with a link, an open staging."""
    driver = await LogDriver.open()
    await driver.append(stream("a"), [b"x"] * 3000)
    await driver.append(stream("a"), [b"y"])
    linked = await driver.do(begin_step())
    await driver.do(stage_step(linked, 0, 0, build_bodies([b"s"])))
    await driver.do(link_step(linked, [(stream("b"), [0])]))
    opened = await driver.do(begin_step())
    await driver.do(stage_step(opened, 5, 0, build_bodies([b"s", b"t"])))
    return driver


async def test_a_sound_store_has_no_findings_and_is_counted() -> None:
    driver = await sample()
    checker = Checker(driver.store)
    await checker.run()
    assert checker.findings == []
    assert (checker.summary.logs, checker.summary.nodes, checker.summary.entries) == (2, 5, 3002)


@pytest.mark.parametrize(
    ("key", "value", "finding"),
    [
        (node_key(1, 1000), None, "leaves a gap"),
        (node_key(1, 1000), SHORT, "node 2000 leaves a gap"),
        (node_key(1, 1500), NODE, "overlaps"),
        (node_key(1, 1000), FLIPPED, "checksum of the body"),
        (node_key(1, 1000), b"", "header needs 48 bytes"),
        (node_key(1, 1000), node_value(build_bodies([b"x"] * 1000)[0], 7, 0), "first offset is 7"),
        (node_key(9, 0), NODE, "there is no such log"),
        (log_key(1), b"\x02", "version"),
        (log_key(1), None, "there is no such log"),
        (log_key(1), encode_log(LogRow(settled=3001)), "a fragment below the settled offset"),
        (log_key(1), encode_log(LogRow(settled=1500)), "reaches over the settled offset"),
        (log_key(1), encode_log(LogRow(settled=1000)), "bytes lie below the settled offset"),
        (log_key(1), encode_log(LogRow(first=1000)), "nothing will collect it"),
        (log_key(1), encode_log(LogRow(first=3002)), "ends at 3001, below its edge 3002"),
        (log_key(1), encode_log(LogRow(first=5, lowest=1)), "overlaps"),
        (staged_key(1, 0, 0), None, "its staged node is missing"),
        (staged_key(1, 0, 0), NODE, "count is 1000, its link says 1"),
        (staging_key(1), None, "its staged node is missing"),
        (staging_key(1), b"\x02\x09", "phase"),
        (staged_key(2, 5, 0), None, "node 0 of writer 5 is missing"),
        (staged_key(2, 5, 0), NODE, "1000 entries, its staging says 2"),
        (staged_key(2, 5, 1), NODE, "no staging counts it"),
        (staged_key(3, 0, 0), NODE, "no staging counts it"),
        (hold_key(9, b"h"), encode_hold(0), "a hold on log 9"),
        (hold_key(1, b"h"), b"", "hold row"),
        (once_key(Scope.PRODUCER, 9, b"p"), once_value(0, b"", 0), "a producer of log 9"),
        (once_key(Scope.PRODUCER, 1, b"p"), b"\x01", "once row"),
        (
            name_key(Kind.STREAM, b"c"),
            encode_catalogue_row(CatalogueRow(9, 0)),
            "stream 'c': log 9 does not exist",
        ),
        (name_key(Kind.STREAM, b"a"), b"", "catalogue row"),
        (name_key(Kind.STREAM, b"a"), None, "no name leads to it"),
        (ids_key(Ids.NAMED), None, "id 2 is in use"),
        (ids_key(Ids.STAGING), b"", "id block"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_is_broken_is_found(key: bytes, value: bytes | None, finding: str) -> None:
    driver = await sample()
    n = driver.store.head().n + 1
    await driver.store.commit(n, [(key, value)], time_ms=0, epoch=driver.store.epoch)
    findings = await check_log(driver.store)
    assert any(finding in found.what for found in findings), findings
