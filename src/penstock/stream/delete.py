"""Deleting a stream, with its groups (TDEL)."""

from __future__ import annotations

from penstock.log.catalogue import LogName, find_target, load_target
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.evict import delete_step as delete_log_step
from penstock.stream.group import find_groups, groups_state_key, load_groups
from penstock.stream.groups import forget_group


def delete_step(name: LogName) -> Step:
    """-> whether there was such a stream"""
    delete = delete_log_step(name)

    async def load(view: View) -> None:
        assert delete.load is not None
        await delete.load(view)
        log_id = await load_target(view, name)
        if log_id is not None:
            await load_groups(view, log_id)

    def decide(view: View, now: Now) -> Decision:
        log = find_target(view, name)
        decision = delete.decide(view, now)
        if log is None:
            return decision
        writes, states = dict(decision.writes), dict(decision.states)
        for group, row in find_groups(view, log.log_id).items():
            rows, forgotten = forget_group(log.log_id, group, row)
            writes |= rows
            states |= forgotten
        states[groups_state_key(log.log_id)] = None
        return Decision(decision.reply, writes, states, decision.timers)

    return Step(decide, load)
