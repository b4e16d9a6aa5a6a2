"""Small pushes that wait for the same tick are decided as one, as small writes are (joint.py).

Contract     `push` gives a batch the offsets that it would have got alone, in the order in which
             they came, also against other pushes to the same topic (`close`). Until its tick
             decides it, a joint takes in more; then another is begun. All of a joint are pushed or
             none, which nobody can tell from having been alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock.broker.commit import Committer, Request
from penstock.broker.joint import PART_BYTES
from penstock.codec.node import Body
from penstock.log.batch import NODE_BYTES, NODE_ENTRIES
from penstock.log.catalogue import LogName
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.joint import join_parts
from penstock.topic.item import PreparedPush
from penstock.topic.push import Pushed, push_step

#: What to push to, whether it may be made, and with how many slots.
Aim = tuple[LogName, bool, int | None]
#: Told of what was pushed.
Heard = Callable[[Pushed, Sequence[Body]], None]


class PushJoint:
    def __init__(self, aim: Aim) -> None:
        self._aim = aim
        self._parts: list[PreparedPush] = []
        #: Who waits, how many messages come before his, and how many are his.
        self._writers: list[tuple[asyncio.Future[range], int, int]] = []
        self._bytes = 0
        self._entries = 0
        self._decided = False
        self.bodies: list[Body] = []
        self.request: Request

    def takes(self, push: PreparedPush) -> bool:
        return (
            not self._decided
            and self._entries + push.count <= NODE_ENTRIES
            and self._bytes + push.bodies[0].raw_bytes <= NODE_BYTES
        )

    def add(self, push: PreparedPush, writer: asyncio.Future[range]) -> None:
        self._writers.append((writer, self._entries, push.count))
        self._parts.append(push)
        self._entries += push.count
        self._bytes += push.bodies[0].raw_bytes

    def step(self, size: int) -> Step:
        """`size`: of its first part."""
        name, create, slots = self._aim
        steps: list[Step] = []

        async def load(view: View) -> None:
            self._decided = True
            joined = join_pushes(self._parts)
            self.bodies = joined.bodies
            steps[:] = [push_step(name, joined, create=create, slots=slots)]
            assert steps[0].load is not None
            await steps[0].load(view)

        def decide(view: View, now: Now) -> Decision:
            return steps[0].decide(view, now)

        return Step(decide, load, size=size)

    def answer(self, reply: asyncio.Future[list[Any]]) -> None:
        """Everybody hears of his own part; who gave up does not take the others along."""
        self._decided = True
        error = asyncio.CancelledError() if reply.cancelled() else reply.exception()
        for writer, at, count in self._writers:
            if writer.done():
                continue
            if error is None:
                writer.set_result(reply.result()[0].offsets[at : at + count])
            elif isinstance(error, asyncio.CancelledError):
                writer.cancel()
            else:
                writer.set_exception(error)


def join_pushes(parts: Sequence[PreparedPush]) -> PreparedPush:
    if len(parts) == 1:
        return parts[0]
    keyed = None
    if any(part.keyed is not None for part in parts):
        keyed = np.concatenate(
            [np.ones(part.count, np.bool_) if part.keyed is None else part.keyed for part in parts]
        )
    return PreparedPush(
        [join_parts([part.bodies[0] for part in parts])],
        np.concatenate([part.hashes for part in parts]),
        keyed,
    )


class PushJoints:
    def __init__(self, committer: Committer, heard: Heard) -> None:
        self._committer = committer
        self._heard = heard
        self._open: dict[Aim, PushJoint] = {}

    def push(self, aim: Aim, push: PreparedPush) -> asyncio.Future[range]:
        """One small batch (`may_join`). The place in the order is taken at once."""
        joint = self._open.get(aim)
        held = push.bodies[0].raw_bytes + PART_BYTES
        if joint is not None and joint.takes(push):
            self._committer.enlarge(joint.request, held)
        else:
            self.close(aim[0])
            joint = PushJoint(aim)
            joint.request = self._committer.enqueue(joint.step(held))
            joint.request.reply.add_done_callback(partial(self._answer, aim, joint))
            self._open[aim] = joint
        writer = asyncio.get_running_loop().create_future()
        joint.add(push, writer)
        return writer

    def close(self, name: LogName) -> None:
        """Another push to this topic takes its place now: later ones come behind it."""
        for aim in [aim for aim in self._open if aim[0] == name]:
            del self._open[aim]

    def _answer(self, aim: Aim, joint: PushJoint, reply: asyncio.Future[list[Any]]) -> None:
        if self._open.get(aim) is joint:
            del self._open[aim]
        if not reply.cancelled() and reply.exception() is None:
            self._heard(reply.result()[0], joint.bodies)
        joint.answer(reply)
