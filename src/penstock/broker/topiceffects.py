"""What a handler does with its acknowledgement: pushes, publishes, writes, as steps of one commit.

Contract     `effect_steps` turns effects into steps that keep their order within each stream, topic
             and the published messages. Large payloads become objects first, as with any publish;
             where the commit is refused they are collected after a while. Whatever is wrong with an
             effect is told before anything is committed.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker.queues import Queues
from penstock.broker.topicanswers import Effect, TxPublish, TxPush, TxWrite
from penstock.log.append import append_step
from penstock.log.batch import build_columns
from penstock.log.catalogue import stream_name
from penstock.log.decision import Step
from penstock.queue.item import Item
from penstock.queue.publish import publish_step
from penstock.topic.item import prepare_push
from penstock.topic.push import push_step
from penstock.topic.state import topic_name


async def effect_steps(queues: Queues, effects: Sequence[Effect]) -> list[Step]:
    writes: dict[str, list[TxWrite]] = {}
    pushes: dict[str, list[TxPush]] = {}
    items: list[Item] = []
    for effect in effects:
        match effect:
            case TxWrite():
                writes.setdefault(effect.stream, []).append(effect)
            case TxPush():
                pushes.setdefault(effect.topic, []).append(effect)
            case TxPublish():
                items.append(effect.item)
    steps = [
        append_step(
            stream_name(name),
            build_columns([each.data for each in mine], tags=[each.tag for each in mine]),
        )
        for name, mine in writes.items()
    ]
    steps += [
        push_step(
            topic_name(name),
            prepare_push([each.data for each in mine], [each.shard_key for each in mine]),
        )
        for name, mine in pushes.items()
    ]
    if items:
        steps += [publish_step(batch) for batch in await queues.prepared(items)]
    return steps
