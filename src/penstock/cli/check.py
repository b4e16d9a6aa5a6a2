"""`penstock check`: verify the checksums and invariants of a location.

Contract     Opens the location as its one writer, replaying its journal: a folder that is open
             elsewhere is refused, unless by a broker that a command started, which is asked to end
             and waited for; a bucket is taken over. Creates no location. Exit 0 when nothing
             is wrong, 1 when something is; bytes that do not even open are a CorruptError, exit 7.
             Leftovers of crashes are no findings: `--repair` shows them, asks, and removes them;
             with `--json` it asks nobody: without `--yes` it shows them and is an InvalidError.
             Damage is not repaired here: what is gone has to come from a backup.
Not here     The invariants themselves (check.py of log/ and of every view).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from penstock.broker.lock import FolderLock
from penstock.cli.bench import mib
from penstock.cli.check_leftovers import Leftover, find_leftovers, remove
from penstock.cli.opening import require_there
from penstock.cli.options import LOCATION_DEFAULT, Json, Location, Yes, confirm
from penstock.cli.output import print_json, printable, result_console
from penstock.cli.rendering import print_fields
from penstock.client.host import take_lock
from penstock.client.places import SCHEME
from penstock.clock import SystemClock
from penstock.codec.keys import Kind
from penstock.errors import ConflictError, CorruptError, InvalidError, UnavailableError
from penstock.graph.check import check_graphs
from penstock.log.catalogue import list_names
from penstock.log.check import Checker, Finding
from penstock.queue.check import check_queues
from penstock.source.check import check_sources
from penstock.store.location import STORE, folder_of, nothing_written, open_store
from penstock.store.objects import Objects, open_objects
from penstock.store.port import Store
from penstock.stream.check import check_groups
from penstock.topic.check import check_topics
from penstock.words import counted

OPEN_SECONDS = 30.0
#: What is counted: a name each.
_VIEWS = {
    "streams": Kind.STREAM,
    "queues": Kind.QUEUE,
    "topics": Kind.TOPIC,
    "sources": Kind.SOURCE,
    "graphs": Kind.GRAPH,
}


class CheckResult(msgspec.Struct, frozen=True):
    location: str
    head: int  # number of the newest commit
    streams: int
    queues: int
    topics: int
    sources: int
    graphs: int
    entries: int  # of all of them, in whole nodes, so a few evicted ones may be among them
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
            print_result(result, repair=repair)
        if not repair or not result.leftovers:
            return False
        if as_json and (result.findings or not yes):
            print_json(result)  # now: what follows refuses
        if result.findings:
            raise ConflictError(
                f"{location} is damaged: nothing is removed", hint="restore it from a backup first"
            )
        question = f"Remove {counted(len(result.leftovers), 'leftover')}?"
        if as_json and not yes:
            raise InvalidError(f"{question} --json asks nobody", hint="repeat it with --yes")
        confirm(question, yes)
        return True

    with nothing_written():
        result = asyncio.run(inspect(location, sure))
    if as_json:
        print_json(result)
    elif result.removed:
        words = counted(len(result.leftovers), "leftover is gone", "leftovers are gone")
        result_console().print(words)
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
    if location.startswith(SCHEME):
        raise InvalidError(
            f"{location} is a broker's address, and a check opens the files themselves",
            hint="name the folder or the bucket, and end the broker first",
        )
    folder = folder_of(location)
    # Before the lock: taking it would leave a file in whatever a misspelt location names.
    if folder is not None:
        require_there(folder)
    clock = SystemClock()
    lock = None
    if folder is not None:
        lock = await take_lock(folder, clock=clock, deadline=OPEN_SECONDS, on_wait=say_wait)
    try:
        return await open_store(location, clock=clock, create=False), lock
    except BaseException:
        if lock is not None:
            lock.release()
        raise


def say_wait() -> None:
    Console(stderr=True, highlight=False).print(
        "waiting for the broker that another command started; it ends when nobody uses it"
    )


async def inspect_store(location: str, store: Store, objects: Objects) -> CheckResult:
    checker = Checker(store)
    names: dict[str, set[str]] = {view: set() for view in _VIEWS}
    leftovers: list[Leftover] = []
    try:
        # First, so that what is damaged further on is not told as a location without anything.
        async with asyncio.timeout(OPEN_SECONDS):
            for view, kind in _VIEWS.items():
                names[view] = {name async for name, _ in list_names(store, kind)}
        # A check may take long, but not stand still: a store retries what it cannot read for ever.
        await _while_it_moves(checker, store)
        async with asyncio.timeout(OPEN_SECONDS):
            leftovers, missing = await find_leftovers(store, objects)
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
        streams=len(names["streams"]),
        queues=len(names["queues"]),
        topics=len(names["topics"]),
        sources=len(names["sources"]),
        # Each of their processors has a name: graph/processor.
        graphs=len({name.rpartition("/")[0] for name in names["graphs"]}),
        entries=checker.summary.entries,
        bytes=checker.summary.stored_bytes,
        findings=[with_paths(finding, location) for finding in checker.findings],
        leftovers=leftovers,
    )


def with_paths(finding: Finding, location: str) -> Finding:
    """SlateDB names files without the leading slash, or by the folder's descriptor (slate.py)."""
    if (folder := folder_of(location)) is None:
        return finding
    store = re.escape(f"{folder}/{STORE}/"[1:])
    shown = f"{folder}/{STORE}/"
    what = re.sub(rf"(?<!/)\b(?:{store}|proc/self/fd/\d+/)", lambda _: shown, finding.what)
    return Finding(finding.where, what)


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


def print_result(result: CheckResult, *, repair: bool = False) -> None:
    print_fields(
        {
            "commit": result.head,
            **{view: getattr(result, view) for view in _VIEWS},
            "entries": result.entries,
            "stored": mib(result.bytes),
            "findings": len(result.findings),
        },
        title=result.location,
    )
    console = result_console()
    for finding in result.findings:
        words = printable(f"{finding.where}: {finding.what}")
        console.print(words, markup=False, style="red", soft_wrap=True)
    for leftover in result.leftovers:
        words = printable(f"{leftover.where}: {leftover.what}")
        console.print(words, markup=False, style="yellow", soft_wrap=True)
    if result.leftovers and not result.findings and not repair:
        console.print("harmless; --repair removes what crashes left behind")
