"""A batch that is too large for one commit: staged in parts, which a small commit makes visible.

Contract     `stage_bodies` commits the bodies a part at a time, as writer 0 of a new staging, so
             that they hold nobody up. Whoever links it (log/link.py) makes all of it visible at
             once; one that is never linked is removed when its lease ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker.commit import Committer
from penstock.codec.node import Body
from penstock.log.staging import STAGE_BYTES_MAX, begin_step, stage_step


def must_stage(bodies: Sequence[Body]) -> bool:
    return len(bodies) > 1 and sum(len(body.stored) for body in bodies) > STAGE_BYTES_MAX


async def stage_bodies(committer: Committer, bodies: Sequence[Body]) -> int:
    """-> the staging"""
    (staging_id,) = await committer.submit(begin_step())
    n = 0
    while n < len(bodies):
        part = list(bodies[n : n + 1])
        size = len(part[0].stored)
        while n + len(part) < len(bodies):
            size += len(bodies[n + len(part)].stored)
            if size > STAGE_BYTES_MAX:
                break
            part.append(bodies[n + len(part)])
        await committer.submit(stage_step(staging_id, 0, n, part))
        n += len(part)
    return int(staging_id)
