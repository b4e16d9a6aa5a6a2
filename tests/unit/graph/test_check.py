"""Each invariant of graph/check.py, broken once by hand, is found and named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.codec.backing import AttemptRow, ChoiceRow, SnapshotRow, encode_backing
from penstock.codec.keys import Kind, backing_key, hold_key, name_key, processor_key
from penstock.codec.once import encode_hold
from penstock.codec.processor import encode_processor
from penstock.errors import CorruptError
from penstock.graph.check import check_graphs
from penstock.graph.requests import Range, Start, Started, TakeSnapshot
from penstock.graph.state import ProcessorState, holder, read_processor
from penstock.log.decision import Decision, Step
from unit.graph.driver import GraphDriver, function_of, topology, with_inputs


class Broken:
    """A store with one pipe in it, for tests that damage rows."""

    def __init__(self, driver: GraphDriver, state: ProcessorState) -> None:
        self.driver = driver
        self.state = state
        self.id = state.id

    @classmethod
    async def made(cls, *, under_way: bool = False) -> Broken:
        driver = await with_inputs()
        await driver.run(topology("pipe"), function_of("pipe"))
        found = await driver.raw(Start(topology("pipe")))
        assert isinstance(found, Started)
        if under_way:
            await driver.write("left", b"l-9")
            await driver.raw(
                TakeSnapshot(found.processor, found.epoch, found.tail, [Range("left", 5, 6)])
            )
        assert await check_graphs(driver.store) == []
        state = await read_processor(driver.store, found.processor)
        assert state is not None
        return cls(driver, state)

    async def found(self, writes: dict[bytes, bytes | None]) -> str:
        await self.driver.do(Step(lambda view, now: Decision(writes=writes)))
        return " | ".join(f"{f.where}: {f.what}" for f in await check_graphs(self.driver.store))

    def row(self, **fields: Any) -> dict[bytes, bytes | None]:
        changed = msgspec.structs.replace(self.state.row, **fields)
        return {processor_key(self.id): encode_processor(changed)}


async def test_a_name_without_its_processor_and_a_processor_without_its_name_are_found() -> None:
    broken = await Broken.made()
    assert "its name is None" in await broken.found({name_key(Kind.GRAPH, b"g/p"): None})
    broken = await Broken.made()
    assert "calls itself 'g/q'" in await broken.found(broken.row(name="g/q"))
    broken = await Broken.made()
    found = await broken.found({processor_key(broken.id): None})
    assert "graph 'g/p': its processor is missing" in found
    assert "backing queue" in found
    assert "no processor has it" in found


async def test_a_gap_in_a_backing_queue_is_found() -> None:
    broken = await Broken.made()
    n = broken.state.records[0][0]
    assert "its row says" in await broken.found({backing_key(broken.id, n): None})
    broken = await Broken.made()
    assert "its row says" in await broken.found(broken.row(tail=broken.state.row.tail + 1))


async def test_a_hold_that_is_missing_or_elsewhere_is_found() -> None:
    broken = await Broken.made()
    (each,) = broken.state.row.inputs
    key = hold_key(each.stream_id, holder(broken.id))
    assert "stands at 5 of 'left', which is held at None" in await broken.found({key: None})
    assert "held at 3" in await broken.found({key: encode_hold(3)})
    other = hold_key(each.stream_id, holder(77))
    found = await broken.found({key: encode_hold(5), other: encode_hold(0)})
    assert found == f"hold of graph:77 on log {each.stream_id}: no processor has it"


async def test_an_attempt_whose_output_is_missing_is_found() -> None:
    broken = await Broken.made()
    n, attempt = broken.state.records[-1]
    assert isinstance(attempt, AttemptRow)
    (written,) = attempt.outputs
    moved = msgspec.structs.replace(written, meta=bytes(16))
    changed = msgspec.structs.replace(attempt, outputs=(moved,))
    found = await broken.found({backing_key(broken.id, n): encode_backing(changed)})
    assert "its outputs are missing" in found


async def test_what_is_under_way_begins_at_the_positions_with_the_steps_number() -> None:
    broken = await Broken.made(under_way=True)
    n, snapshot = broken.state.records[-1]
    assert isinstance(snapshot, SnapshotRow)
    key = backing_key(broken.id, n)
    later = msgspec.structs.replace(snapshot, step=snapshot.step + 1)
    assert "is under way, and the row says" in await broken.found({key: encode_backing(later)})
    ranges = (msgspec.structs.replace(snapshot.ranges[0], start=1, end=2),)
    moved = msgspec.structs.replace(snapshot, ranges=ranges)
    assert "1 to 2 of 'left' is under way" in await broken.found({key: encode_backing(moved)})
    alone = encode_backing(ChoiceRow(1, 0, 5))
    rows: dict[bytes, bytes | None] = {
        backing_key(broken.id, at): None for at, _ in broken.state.records[:-1]
    }
    found = await broken.found(broken.row(head=n) | rows | {key: alone})
    assert "a choice without its snapshot" in found


@pytest.mark.parametrize("damage", ["processor", "backing", "hold", "key"])
async def test_bytes_that_cannot_be_read_are_findings(damage: str) -> None:
    broken = await Broken.made()
    (each,) = broken.state.row.inputs
    key = {
        "processor": processor_key(broken.id),
        "backing": backing_key(broken.id, broken.state.row.tail - 1),
        "hold": hold_key(each.stream_id, holder(broken.id)),
        "key": processor_key(broken.id)[:-3],
    }[damage]
    assert await broken.found({key: b"\x09damaged"}) != ""


async def test_records_of_other_inputs_are_corrupt() -> None:
    broken = await Broken.made(under_way=True)
    n, snapshot = broken.state.records[-1]
    assert isinstance(snapshot, SnapshotRow)
    ranges = (msgspec.structs.replace(snapshot.ranges[0], alias="x"),)
    moved = msgspec.structs.replace(snapshot, ranges=ranges)
    found = await broken.found({backing_key(broken.id, n): encode_backing(moved)})
    assert "of other inputs" in found
    found = await broken.found({backing_key(broken.id, n): encode_backing(ChoiceRow(1, 9, 5))})
    assert "chose no input" in found
    broken.driver.forget()
    with pytest.raises(CorruptError):
        await broken.driver.raw(Start(topology("pipe")))
