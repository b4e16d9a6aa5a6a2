"""A location as a checkpoint pinned it, for processes that only read.

Contract     `open_reader(location, checkpoint_id)` needs no broker and disturbs none: what it shows
             is the state of the checkpoint, in every process and for as long as the checkpoint is
             kept, whatever is written, merged or removed meanwhile. The broker makes checkpoints,
             renews and drops them (port.py).
Errors       NotFoundError: there is no such location, or the checkpoint has expired or was dropped,
             maybe while it was read. CorruptError: a table is missing, short or damaged; in a
             bucket that it is short is found when it cannot be read, after some ten seconds.
             InvalidError for memory://, which other processes cannot see. A bucket that does not
             answer this process is told within OPEN_SECONDS (reach.py).
Not here     what the rows mean, and their own checksums: log/columns.py.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from penstock.errors import CorruptError, InvalidError, NotFoundError, UnavailableError
from penstock.store.folder import require_location
from penstock.store.location import (
    bucket_place,
    bucket_tables,
    folder_of,
    nothing_written,
    reach_bucket,
)
from penstock.store.port import Reader
from penstock.store.slate import Place, SlateReader, writer_epoch
from penstock.store.tables import require_in_folder

#: SlateDB itself would wait for a bucket for ever.
OPEN_SECONDS = 60.0


async def open_reader(location: str, checkpoint_id: str) -> Reader:
    if location.startswith("memory://"):
        raise InvalidError(
            f"{location} is in the memory of one process", hint="read it there, without checkpoint"
        )
    folder = folder_of(location)
    with nothing_written():
        try:
            if folder is not None:
                return await _open_folder(folder, checkpoint_id)
            return await _open_bucket(location, checkpoint_id)
        except OSError as error:
            raise UnavailableError(f"{location}: {error.strerror or error}") from error


async def _open_folder(folder: Path, checkpoint_id: str) -> Reader:
    require_location(folder)
    store = folder / "store"
    reader = await SlateReader.open(
        Place.folder(store), checkpoint_id, partial(require_in_folder, store)
    )
    try:
        await reader.require_tables()
    except CorruptError as error:
        judged = await reader.judged(error)
        await reader.close()
        raise judged from error
    return reader


async def _open_bucket(location: str, checkpoint_id: str) -> Reader:
    await reach_bucket(location)
    place = bucket_place(location)
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            return await SlateReader.open(place, checkpoint_id, bucket_tables(location))
    except TimeoutError:
        raise UnavailableError(
            f"{location}: did not open within {OPEN_SECONDS:.0f} seconds"
        ) from None
    except CorruptError:
        # Asked only now: every opening of every task would pay for the question.
        if await writer_epoch(place) == 0:
            raise NotFoundError(
                f"{location}: there is no Penstock location", hint="check the location"
            ) from None
        raise
