"""The invariants of graphs, looked at row by row: for tests, the simulator and `penstock check`.

Contract     `check_graphs(store)` reads every row of processors, backing queues and holds and
             returns what is wrong; an empty list is a clean store. It never raises for stored
             bytes.
Invariants   N1  a name of a graph leads to a processor that has this name, and each has one
             N2  the records of a backing queue lie dense from head to tail; what is under way
                 begins with a snapshot, of the step that the row says
             N3  every input is held at the processor's position; nothing else is held for graphs
             N4  what is under way begins at the positions (at_most_once: ends there)
             N5  the outputs of the last attempt are in their streams, or evicted from them
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.codec.backing import SnapshotRow
from penstock.codec.keys import KeyType, Kind, open_key, prefix, prefix_end
from penstock.codec.once import decode_hold
from penstock.errors import CorruptError
from penstock.graph.recovery import judge
from penstock.graph.start import read_back
from penstock.graph.state import ProcessorState, holder, last_pending, read_processor
from penstock.log.catalogue import list_names
from penstock.log.check import Finding
from penstock.log.pages import Tail
from penstock.log.rowview import RowView
from penstock.log.state import read_log
from penstock.store.port import Store

_HOLDER = b"graph:"
#: (log id, holder) -> offset
_Holds = dict[tuple[int, bytes], int]


async def check_graphs(store: Store, look: Callable[[], None] = lambda: None) -> list[Finding]:
    """`look` is called for every row: whether it goes on."""
    try:
        holds = await _graph_holds(store, look)
        names = {row.id: name async for name, row in list_names(store, Kind.GRAPH)}
    except CorruptError as error:
        return [Finding("graphs", str(error))]
    findings: list[Finding] = []
    found: set[int] = set()
    for processor_id in await _ids(store, KeyType.PROCESSOR, look, findings):
        found.add(processor_id)
        where = f"processor {processor_id}"
        try:
            state = await read_processor(store, processor_id)
            assert state is not None, "its row was there, and nobody else writes"
            wrong = await _check(store, state, names.get(processor_id), holds)
        except CorruptError as error:
            wrong = [str(error)]
        findings += [Finding(where, what) for what in wrong]
    for processor_id in names.keys() - found:
        findings.append(Finding(f"graph {names[processor_id]!r}", "its processor is missing"))
    for processor_id in await _ids(store, KeyType.BACKING, look, findings) - found:
        findings.append(Finding(f"backing queue {processor_id}", "there is no such processor"))
    findings += [
        Finding(f"hold of {name.decode(errors='replace')} on log {log_id}", "no processor has it")
        for log_id, name in holds
    ]
    return findings


async def _graph_holds(store: Store, look: Callable[[], None]) -> _Holds:
    """Of logs that exist: those of others are garbage."""
    holds: _Holds = {}
    low = prefix(KeyType.HOLD)
    async for rows in store.scan(low, prefix_end(low)):
        for key, value in rows:
            look()
            reader = open_key(key, KeyType.HOLD)
            log_id, name = reader.u64_key("log id"), reader.terminated("holder")
            if name.startswith(_HOLDER) and await read_log(store, log_id) is not None:
                holds[log_id, name] = decode_hold(value)
    return holds


async def _ids(
    store: Store, kind: KeyType, look: Callable[[], None], findings: list[Finding]
) -> set[int]:
    ids: set[int] = set()
    low = prefix(kind)
    async for rows in store.scan(low, prefix_end(low)):
        for key, _ in rows:
            look()
            try:
                ids.add(open_key(key, kind).u64_key("processor id"))
            except CorruptError as error:
                findings.append(Finding(key.hex(), str(error)))
    return ids


async def _check(store: Store, state: ProcessorState, name: str | None, holds: _Holds) -> list[str]:
    row, wrong = state.row, []
    if name != row.name:
        wrong.append(f"calls itself {row.name!r}, and its name is {name!r}")
    for each in row.inputs:
        log = await read_log(store, each.stream_id)
        held = holds.pop((each.stream_id, holder(state.id)), None)
        # A stream that was deleted is told to whoever starts the processor.
        if log is not None and held != each.position:
            wrong.append(f"stands at {each.position} of {each.stream!r}, which is held at {held}")
    verdict = judge(state, await read_back(RowView(store, Tail()), state))
    if verdict.denied:
        wrong.append(f"the last attempt delivered step {row.step - 1}, and its outputs are missing")
    if state.under_way:
        wrong += _check_under_way(state)
    return wrong


def _check_under_way(state: ProcessorState) -> list[str]:
    pending = last_pending(state)
    if pending is None:
        return ["a choice without its snapshot"]
    steps = [record.step for _, record in state.records if isinstance(record, SnapshotRow)]
    wrong = []
    if steps[-1] != state.row.step:
        wrong.append(f"step {steps[-1]} is under way, and the row says {state.row.step}")
    positions = {each.alias: each.position for each in state.row.inputs}
    for each in pending.ranges:
        if positions.get(each.alias) not in (each.start, each.end):
            wrong.append(
                f"{each.start} to {each.end} of {each.alias!r} is under way, and the position is "
                f"{positions.get(each.alias)}"
            )
    return wrong
