"""What a commit delivers: entries that come with it, and entries that were staged.

Contract     `delivery_of` checks a request before anything is decided; `deliver` writes all of it
             within a decision, and tells where it went and which hash the first entries carry, for
             the recovery to read back.
"""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.codec.backing import HASH_BYTES, WrittenRow
from penstock.codec.keys import staged_key
from penstock.codec.node import Body, decode_node
from penstock.errors import InvalidError
from penstock.graph.change import Change
from penstock.graph.outputs import INLINE_BYTES_MAX
from penstock.graph.requests import CommitStep, Output
from penstock.log.append import append_step
from penstock.log.catalogue import LogName, find_target, load_target, stream_name
from penstock.log.decision import Step, View
from penstock.log.link import link_step
from penstock.log.outside import take_node
from penstock.log.staging import load_staging


class Part(msgspec.Struct, frozen=True):
    """For one stream."""

    stream: str
    bodies: list[Body]
    writers: list[int]
    meta: bytes = b""  # of the first entry, where it comes with the request

    @property
    def name(self) -> LogName:
        return stream_name(self.stream)


class Delivery(msgspec.Struct, frozen=True):
    outputs: list[Part]
    errors: Part | None
    staging: int | None
    size: int = 0

    @property
    def parts(self) -> list[Part]:
        return [*self.outputs, *(() if self.errors is None else (self.errors,))]

    @property
    def staged(self) -> list[Part]:
        return [part for part in self.parts if part.writers]

    @property
    def link(self) -> Step | None:
        if self.staging is None:
            return None
        return link_step(self.staging, [(part.name, part.writers) for part in self.staged])

    async def load(self, view: View) -> None:
        for part in self.parts:
            await load_target(view, part.name, make=True)
        if self.staging is not None:
            link = self.link
            assert link is not None
            assert link.load is not None
            await link.load(view)
            await load_staging(view, self.staging)
            await view.fetch(*(self._first_node(part) for part in self.staged))

    def _first_node(self, part: Part) -> bytes:
        assert self.staging is not None
        return staged_key(self.staging, part.writers[0], 0)

    def meta_of(self, view: View | Change, part: Part) -> bytes:
        if not part.writers:
            return part.meta
        value = view.row(self._first_node(part))
        assert value is not None, "it was linked"
        node = decode_node(value, f"the first staged node for stream {part.stream!r}")
        return _hash(node.meta_list(0, 1)[0], part.stream)


def delivery_of(request: CommitStep) -> Delivery:
    outputs = [_part(output) for output in request.outputs if output.nodes or output.writers]
    errors = request.errors
    failed = None if errors is None or not (errors.nodes or errors.writers) else _part(errors)
    delivery = Delivery(outputs, failed, request.staging)
    streams = [part.stream for part in delivery.parts]
    if len(set(streams)) != len(streams):
        raise InvalidError(f"a stream is named twice: {', '.join(streams)}")
    if (request.staging is None) != (not delivery.staged):
        raise InvalidError("a staging and the writers that staged go together")
    size = sum(len(body.stored) for part in delivery.parts for body in part.bodies)
    if size > INLINE_BYTES_MAX and sum(len(part.bodies) for part in delivery.parts) > 1:
        raise InvalidError(
            f"{size:,} bytes in one commit; at most {INLINE_BYTES_MAX:,} are allowed",
            hint="stage them first",
        )
    return msgspec.structs.replace(delivery, size=size)


def _part(output: Output) -> Part:
    if output.nodes and output.writers:
        raise InvalidError(f"stream {output.stream!r}: entries come with the commit, or staged")
    bodies: list[Body] = []
    meta = b""
    for i, value in enumerate(output.nodes):
        node, body = take_node(value, f"node {i} for stream {output.stream!r}")
        bodies.append(body)
        if node.meta is None or not (np.diff(node.meta.table) == HASH_BYTES).all():
            raise _unhashed(output.stream)
        meta = meta or _hash(node.meta_list(0, 1)[0], output.stream)
    return Part(output.stream, bodies, output.writers, meta)


def _hash(meta: bytes | None, stream: str) -> bytes:
    if meta is None or len(meta) != HASH_BYTES:
        raise _unhashed(stream)
    return meta


def _unhashed(stream: str) -> InvalidError:
    return InvalidError(f"an entry for stream {stream!r} without its hash as meta")


def deliver(change: Change, delivery: Delivery) -> tuple[tuple[WrittenRow, ...], WrittenRow | None]:
    """-> where the outputs went, and the errors"""
    row = change.of
    for part in delivery.outputs:
        if part.stream not in row.outputs:
            raise InvalidError(f"{row.name} has no output {part.stream!r}")
    if delivery.errors is not None and delivery.errors.stream != row.errors:
        raise InvalidError(f"{row.name} has no error stream {delivery.errors.stream!r}")
    ranges: dict[str, range] = {}
    link = delivery.link
    if link is not None:
        linked = change.decide(link)
        ranges |= zip((part.stream for part in delivery.staged), linked, strict=True)
    for part in delivery.parts:
        if part.bodies:
            ranges[part.stream] = change.decide(append_step(part.name, part.bodies))
    written = {part.stream: _written(change, delivery, part, ranges) for part in delivery.parts}
    outputs = tuple(
        found for part in delivery.outputs if (found := written[part.stream]) is not None
    )
    return outputs, None if delivery.errors is None else written[delivery.errors.stream]


def _written(
    change: Change, delivery: Delivery, part: Part, ranges: dict[str, range]
) -> WrittenRow | None:
    offsets = ranges[part.stream]
    if not offsets:
        return None  # writers that had nothing
    log = find_target(change, part.name)
    assert log is not None, "it was just written"
    meta = delivery.meta_of(change, part)
    return WrittenRow(part.stream, log.log_id, offsets.start, offsets.stop, meta)
