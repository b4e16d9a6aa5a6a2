"""Deleting a stream, with its groups (TDEL)."""

from __future__ import annotations

from penstock.codec.garbage import encode_garbage
from penstock.codec.group import GroupRow
from penstock.codec.keys import garbage_key, groups_prefix, prefix_end
from penstock.log.catalogue import LogName, find_target, load_target
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.evict import delete_step as delete_log_step
from penstock.stream.groups import forget_group, list_groups


def delete_step(name: LogName) -> Step:
    """-> whether there was such a stream"""
    delete = delete_log_step(name)
    groups: list[tuple[bytes, GroupRow]] = []

    async def load(view: View) -> None:
        assert delete.load is not None
        await delete.load(view)
        log_id = await load_target(view, name)
        if log_id is not None:
            groups.extend(await list_groups(view.store, log_id))

    def decide(view: View, now: Now) -> Decision:
        log = find_target(view, name)
        decision = delete.decide(view, now)
        if log is None:
            return decision
        writes, states = dict(decision.writes), dict(decision.states)
        for group, row in groups:
            rows, forgotten = forget_group(log.log_id, group, row)
            writes |= rows
            states |= forgotten
        # A group that this tick made is not listed: its rows lie in this range, and its id is
        # never found again.
        low = groups_prefix(log.log_id)
        writes[garbage_key(low)] = encode_garbage(prefix_end(low))
        return Decision(decision.reply, writes, states, decision.timers)

    return Step(decide, load)
