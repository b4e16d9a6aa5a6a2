"""Reading what messages hold, for requests of queues.

Contract     `each` reads the messages of entries a few at a time: from what was published lately,
             from caches, from the store, and from the objects of large payloads. One that is gone
             or damaged does not keep the others back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from penstock.broker.commit import Committer, Shown
from penstock.codec.keys import payload_key
from penstock.codec.queuestate import Entries
from penstock.errors import CorruptError
from penstock.log.cache import NodeCache
from penstock.queue.message import Content, Fresh, Payloads, read_contents
from penstock.queue.publish import check_spilled, spilled_id
from penstock.store.objects import Objects

#: Messages are read so many at a time.
READ_COUNT = 128

#: What reading a message came to.
Found = Content | CorruptError | None


class Reading:
    def __init__(self, committer: Committer, cache: NodeCache, objects: Objects) -> None:
        self._committer = committer
        self._cache = cache
        self._objects = objects
        self.fresh = Fresh()
        self._payloads = Payloads()

    def clear(self) -> None:
        """After a reopening."""
        self.fresh.clear()
        self._payloads.clear()

    async def each(self, entries: Entries) -> AsyncIterator[tuple[int, Found]]:
        """What these messages hold, one after the other, read a few at a time; None where one is
        gone, an error where one is damaged."""
        for at in range(0, len(entries), READ_COUNT):
            for i, content in enumerate(await self._contents(entries[at : at + READ_COUNT]), at):
                if content is None or content.uri is None:
                    yield i, content
                    continue
                try:
                    yield i, await self._whole(content)
                except CorruptError as error:
                    yield i, error

    async def _contents(self, entries: Entries) -> list[Content | None]:
        ids, offsets = entries["message_id"].tolist(), entries["offset"].tolist()
        found = self.fresh.find(ids, offsets)
        cold = [i for i, content in enumerate(found) if content is None]
        if cold:

            async def query(view: Shown) -> list[Content | None]:
                return await read_contents(
                    view,
                    [ids[i] for i in cold],
                    [offsets[i] for i in cold],
                    self._cache,
                    self._payloads,
                )

            for i, content in zip(cold, await self._committer.read(query), strict=True):
                found[i] = content
        return found

    async def _whole(self, content: Content) -> Content | None:
        """With the payload of an object of ours; None: the message was removed meanwhile."""
        number = None if content.uri is None else spilled_id(content.uri)
        if number is None or content.uri is None:
            return content
        try:
            payload = await self._objects.get(number)
        except CorruptError:
            # An object goes after its row, and memory may know neither.
            if await self._committer.read(lambda view: view.store.get(payload_key(number))) is None:
                return None
            raise
        check_spilled(content.uri, payload)
        return msgspec.structs.replace(content, payload=payload, uri=None)
