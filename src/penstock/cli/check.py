"""`penstock check`: verify the checksums and invariants of a location.

Contract     Opens the location as its one writer, replaying its journal: a folder that is open
             elsewhere is refused, a bucket is taken over. Creates no location. Exit 0 when nothing
             is wrong, 1 when something is; bytes that do not even open are a CorruptError, exit 7.
             Leftovers of crashes are no findings: `--repair` shows them, asks, and removes them.
             Damage is not repaired here: what is gone has to come from a backup.
Not here     The invariants themselves (check.py of log/ and of every view).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from penstock.broker.lock import FolderLock
from penstock.cli.bench import mib
from penstock.cli.check_leftovers import Leftover, find_leftovers, remove
from penstock.cli.options import LOCATION_DEFAULT, Json, Location, Yes, confirm
from penstock.cli.output import print_json, result_console
from penstock.clock import SystemClock
from penstock.codec.keys import Kind, names_prefix, prefix_end
from penstock.errors import ConflictError, CorruptError, UnavailableError
from penstock.graph.check import check_graphs
from penstock.log.check import Checker, Finding
from penstock.queue.check import check_queues
from penstock.source.check import check_sources
from penstock.store.folder import require_location
from penstock.store.location import folder_of, nothing_written, open_store
from penstock.store.objects import Objects, open_objects
from penstock.store.port import Store
from penstock.stream.check import check_groups
from penstock.topic.check import check_topics

OPEN_SECONDS = 30.0


class CheckResult(msgspec.Struct, frozen=True):
    location: str
    head: int  # number of the newest commit
    streams: int
    entries: int  # in whole nodes, so a few evicted ones may be among them
    bytes: int  # as stored
    findings: list[Finding]
    leftovers: list[Leftover]  # of crashes: harmless
    removed: bool = False  # those


def check(
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove what crashes left behind, after asking.")
    ] = False,
    yes: Yes = False,
    location: Location = LOCATION_DEFAULT,
    as_json: Json = False,
) -> None:
    """Verify the checksums and invariants of a location; exit 1 if anything is wrong.

    A folder must not be open elsewhere. A bucket is taken over: whoever has it open is fenced.
    """

    def sure(result: CheckResult) -> bool:
        if not as_json:
            print_result(result)
        if not repair or not result.leftovers:
            return False
        if result.findings:
            raise ConflictError(
                f"{location} is damaged: nothing is removed", hint="restore it from a backup first"
            )
        confirm(f"Remove {len(result.leftovers):,} leftovers?", yes)
        return True

    with nothing_written():
        result = asyncio.run(inspect(location, sure))
    if as_json:
        print_json(result)
    elif result.removed:
        result_console().print(f"{len(result.leftovers):,} leftovers are gone")
    if result.findings:
        raise typer.Exit(1)


async def inspect(
    location: str, sure: Callable[[CheckResult], bool] = lambda _: False
) -> CheckResult:
    """Look; and where somebody is sure, remove the leftovers that were found."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            store, lock = await _open(location)
    except TimeoutError:
        raise UnavailableError(f"{location} did not open in {OPEN_SECONDS:.0f} s") from None
    try:
        objects = open_objects(location)
        result = await inspect_store(location, store, objects)
        if sure(result):
            await remove(result.leftovers, objects)
            result = msgspec.structs.replace(result, removed=True)
        return result
    finally:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await store.close()
        except TimeoutError:
            await store.abandon()  # it was only read
        if lock is not None:
            lock.release()


async def _open(location: str) -> tuple[Store, FolderLock | None]:
    folder = folder_of(location)
    # Before the lock: taking it would leave a file in whatever a misspelt location names.
    if folder is not None:
        require_location(folder)
    lock = None if folder is None else FolderLock(folder)
    try:
        return await open_store(location, clock=SystemClock(), create=False), lock
    except BaseException:
        if lock is not None:
            lock.release()
        raise


async def inspect_store(location: str, store: Store, objects: Objects) -> CheckResult:
    checker = Checker(store)
    streams = 0
    leftovers: list[Leftover] = []
    try:
        # A check may take long, but not stand still: a store retries what it cannot read for ever.
        await _while_it_moves(checker, store)
        low = names_prefix(Kind.STREAM)
        async with asyncio.timeout(OPEN_SECONDS):
            async for rows in store.scan(low, prefix_end(low)):
                streams += len(rows)
            leftovers, missing = await find_leftovers(location, store, objects)
            checker.findings += missing
    except TimeoutError:
        checker.findings.append(
            Finding(
                "store", f"it gave no answer in {OPEN_SECONDS:.0f} s; the rest was not looked at"
            )
        )
    except CorruptError as error:
        # The store itself cannot read a block: what was found before that is still worth showing.
        checker.findings.append(Finding("store", str(error)))
    return CheckResult(
        location=location,
        head=store.head().n,
        streams=streams,
        entries=checker.summary.entries,
        bytes=checker.summary.stored_bytes,
        findings=checker.findings,
        leftovers=leftovers,
    )


async def _run_checks(checker: Checker, store: Store) -> None:
    await checker.run()
    checker.findings += await check_groups(store, checker.look)
    checker.findings += await check_queues(store, checker.look)
    checker.findings += await check_topics(store, checker.look)
    checker.findings += await check_sources(store, checker.look)
    checker.findings += await check_graphs(store, checker.look)


async def _while_it_moves(checker: Checker, store: Store) -> None:
    """Run them; TimeoutError when they looked at no further row for a while."""
    task = asyncio.get_running_loop().create_task(_run_checks(checker, store))
    try:
        looked = -1
        while not task.done():
            await asyncio.wait([task], timeout=OPEN_SECONDS)
            if not task.done() and checker.looked == looked:
                raise TimeoutError
            looked = checker.looked
        task.result()
    finally:
        task.cancel()


def print_result(result: CheckResult) -> None:
    table = Table(title=result.location)
    for name in ("commit", "streams", "entries", "stored", "findings"):
        table.add_column(name, justify="right")
    table.add_row(
        f"{result.head:,}",
        f"{result.streams:,}",
        f"{result.entries:,}",
        mib(result.bytes),
        f"{len(result.findings):,}",
    )
    console = result_console()
    console.print(table)
    for finding in result.findings:
        console.print(f"{finding.where}: {finding.what}", markup=False, style="red")
    for leftover in result.leftovers:
        console.print(f"{leftover.where}: {leftover.what}", markup=False, style="yellow")
    if result.leftovers and not result.findings:
        console.print("harmless; --repair removes what crashes left behind")
