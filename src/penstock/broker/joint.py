"""Small writes that wait for the same tick are decided as one (log/joint.py).

Contract     `write` gives a body the offsets that it would have got alone: bodies keep the order in
             which they came, also against other writes to the same stream that fit into one commit
             (`close`). Until its tick decides it, a joint takes in more; then another is begun. All
             of a joint are written or none, which nobody can tell from having been alone.
Not here     What else adds to a stream (a link, a graph's step, a handler's transaction) has no
             place among writes that were not answered yet when it came: those calls overlap.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from penstock.broker.commit import Committer, Request
from penstock.codec.node import Body
from penstock.log.append import append_step
from penstock.log.batch import NODE_BYTES, NODE_ENTRIES
from penstock.log.catalogue import LogName
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.joint import Lone, join_parts

#: What an entry takes of a node besides its bytes.
_TABLES = 16
#: What each part takes of memory besides, while it waits: who waits for it, and where it stands.
PART_BYTES = 512


class Joint:
    def __init__(self, name: LogName) -> None:
        self._name = name
        self._parts: list[Body | Lone] = []
        #: Who waits, how many entries come before his, and how many are his.
        self._writers: list[tuple[asyncio.Future[list[range]], int, int]] = []
        self._bytes = 0
        self._entries = 0
        self._decided = False
        self.request: Request

    def takes(self, count: int, size: int) -> bool:
        return (
            not self._decided
            and self._entries + count <= NODE_ENTRIES
            and self._bytes + size <= NODE_BYTES
        )

    def add(
        self, part: Body | Lone, count: int, size: int, writer: asyncio.Future[list[range]]
    ) -> None:
        self._writers.append((writer, self._entries, count))
        self._parts.append(part)
        self._entries += count
        self._bytes += size

    def step(self, size: int) -> Step:
        """`size`: of its first part."""
        load = append_step(self._name, ()).load

        def decide(view: View, now: Now) -> Decision:
            self._decided = True
            return append_step(self._name, [join_parts(self._parts)]).decide(view, now)

        return Step(decide, load, size=size)

    def answer(self, reply: asyncio.Future[list[Any]]) -> None:
        """Everybody hears of his own part; who gave up does not take the others along."""
        self._decided = True
        error = asyncio.CancelledError() if reply.cancelled() else reply.exception()
        for writer, at, count in self._writers:
            if writer.done():
                continue
            if error is None:
                writer.set_result([reply.result()[0][at : at + count]])
            elif isinstance(error, asyncio.CancelledError):
                writer.cancel()
            else:
                writer.set_exception(error)


class Joints:
    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._open: dict[LogName, Joint] = {}

    def write(self, name: LogName, body: Body) -> asyncio.Future[list[range]]:
        """The place in the order is taken at once. -> as a commit of its own would answer"""
        return self._add(name, body, body.count, body.raw_bytes)

    def post(self, name: LogName, tag: bytes, data: bytes) -> asyncio.Future[list[range]]:
        """The same for one small entry (`may_post`)."""
        return self._add(name, (tag, data), 1, len(tag) + len(data) + _TABLES)

    def _add(
        self, name: LogName, part: Body | Lone, count: int, size: int
    ) -> asyncio.Future[list[range]]:
        joint = self._open.get(name)
        held = size + PART_BYTES
        if joint is not None and joint.takes(count, size):
            self._committer.enlarge(joint.request, held)
        else:
            joint = Joint(name)
            joint.request = self._committer.enqueue(joint.step(held))
            joint.request.reply.add_done_callback(partial(self._answer, name, joint))
            self._open[name] = joint
        writer = asyncio.get_running_loop().create_future()
        joint.add(part, count, size, writer)
        return writer

    def close(self, name: LogName) -> None:
        """Another write to this stream takes its place now: later ones come behind it."""
        self._open.pop(name, None)

    def _answer(self, name: LogName, joint: Joint, reply: asyncio.Future[list[Any]]) -> None:
        if self._open.get(name) is joint:
            del self._open[name]
        joint.answer(reply)
