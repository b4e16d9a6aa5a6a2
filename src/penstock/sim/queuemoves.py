"""What may happen to one message of one queue in one operation. Pure.

Contract     `judge` compares where the message was with where it is, at the time of the commit, and
             says which move that was, or what is wrong with it. It knows nothing of pages, of the
             code that decides, or of what other messages do.
Invariants   M1  claimed: visible, within its retention, one attempt more, under a new lease number,
                 and nobody holds a living lease of it
             M2  done, released, extended: by a lease that is alive; done is for ever
             M3  back after a failed attempt: with attempts left, not before now; without: failed;
                 so is one that waits without attempts left, when it would be claimed
             M4  leaves without being done: by its retention, or by a purge
             M5  redriven: no attempts on its account, visible now
"""

from __future__ import annotations

from enum import Enum

import msgspec

from penstock.codec.queueoperation import PageKind


class Where(msgspec.Struct, frozen=True):
    """Where a message is, with what its entry says there; what that kind has not is 0."""

    kind: PageKind
    priority: int = 0
    attempts: int = 0
    visible_ms: int = 0
    deadline_ms: int = 0  # of its retention
    offset: int = 0
    lease: int = 0
    lease_ms: int = 0  # when the lease ends
    claimed_ms: int = 0
    ended_ms: int = 0  # done or failed at


class Rules(msgspec.Struct, frozen=True):
    """What counts for this operation."""

    now_ms: int
    next_lease: int  # before it
    max_attempts: int | None  # None: it was altered in this commit
    done_ms: int | None  # how long done ones are listed; None: altered; 0: for ever
    paused: bool
    deleting: bool  # somebody asked for the end of the whole queue


class Move(Enum):
    SAME = "same"
    CLAIMED = "claimed"
    EXTENDED = "extended"
    RELEASED = "released"
    RETURNED = "returned"
    FAILED = "failed"
    WORN = "worn"  # it had its attempts when their maximum was lowered, and somebody claims
    DONE = "done"
    LEFT = "left"
    REDRIVEN = "redriven"
    FORGOTTEN = "forgotten"


#: The parts of a message that no move changes; a done one has lost them.
def _stays(before: Where, after: Where) -> bool:
    if after.kind is PageKind.DONE:
        return True
    return (before.priority, before.deadline_ms, before.offset) == (
        after.priority,
        after.deadline_ms,
        after.offset,
    )


def judge(before: Where, after: Where | None, rules: Rules) -> Move | str:
    """-> the move, or what is wrong"""
    if before == after:
        return Move.SAME
    if after is not None and not _stays(before, after):
        return "it became another message"
    match before.kind:
        case PageKind.AVAILABLE:
            return _available(before, after, rules)
        case PageKind.IN_FLIGHT:
            return _in_flight(before, after, rules)
        case PageKind.DONE:
            return _done(before, after, rules)
        case PageKind.FAILED:
            return _failed(before, after, rules)


def _available(before: Where, after: Where | None, rules: Rules) -> Move | str:
    if after is None:
        return Move.LEFT
    if after.kind is PageKind.IN_FLIGHT:
        return _claimed(before, after, rules)
    if after.kind is PageKind.FAILED:
        out = rules.max_attempts is None or 0 < rules.max_attempts <= before.attempts
        ok = out and after.attempts == before.attempts and after.ended_ms == rules.now_ms
        return Move.WORN if ok else f"failed with attempts left, of {rules.max_attempts}"
    return "an available one cannot become this"


def _claimed(before: Where, after: Where, rules: Rules) -> Move | str:
    """M1, of one that is available or would be."""
    if before.visible_ms > rules.now_ms:
        return f"claimed {before.visible_ms - rules.now_ms} ms before it is visible"
    if before.deadline_ms < rules.now_ms:
        return f"claimed {rules.now_ms - before.deadline_ms} ms after its retention"
    if after.attempts != before.attempts + 1:
        return "claimed, and its attempts did not rise by one"
    if rules.max_attempts and before.attempts >= rules.max_attempts:
        return f"claimed, though it had its {rules.max_attempts} attempts"
    if after.lease < rules.next_lease:
        return f"claimed under lease {after.lease}, which was used before"
    if after.claimed_ms != rules.now_ms or after.lease_ms <= rules.now_ms:
        return "claimed at another time, or for no time"
    if rules.paused:
        return "claimed, though the queue is paused"
    return Move.CLAIMED


def _in_flight(before: Where, after: Where | None, rules: Rules) -> Move | str:
    alive = before.lease_ms > rules.now_ms
    if after is None:
        return Move.LEFT
    match after.kind:
        case PageKind.IN_FLIGHT if after.lease == before.lease:
            same = msgspec.structs.replace(after, lease_ms=before.lease_ms) == before
            ok = alive and same and after.lease_ms > rules.now_ms
            return Move.EXTENDED if ok else "extended after its end, or changed"
        case PageKind.IN_FLIGHT:
            if alive:
                return "claimed, though somebody holds a living lease"
            # It came back at once and was claimed in the same request.
            back = msgspec.structs.replace(before, visible_ms=after.visible_ms)
            return _claimed(back, after, rules)
        case PageKind.DONE:
            ok = alive and after.attempts == before.attempts and after.ended_ms == rules.now_ms
            return Move.DONE if ok else "done by a lease that was over, or changed"
        case PageKind.FAILED:
            out = rules.max_attempts is None or 0 < rules.max_attempts <= before.attempts
            ok = out and after.attempts == before.attempts and after.ended_ms == rules.now_ms
            return Move.FAILED if ok else f"failed with attempts left, of {rules.max_attempts}"
        case _:
            return _back(before, after, rules, alive=alive)


def _back(before: Where, after: Where, rules: Rules, *, alive: bool) -> Move | str:
    if before.deadline_ms < rules.now_ms:
        return "came back after its retention"
    if after.attempts == before.attempts - 1:
        ok = alive and after.visible_ms == before.visible_ms
        return Move.RELEASED if ok else "released by a lease that was over, or changed"
    if after.attempts != before.attempts or after.visible_ms < rules.now_ms:
        return "came back with other attempts, or visible in the past"
    if rules.max_attempts and before.attempts >= rules.max_attempts:
        return f"came back, though it had its {rules.max_attempts} attempts"
    return Move.RETURNED


def _done(before: Where, after: Where | None, rules: Rules) -> Move | str:
    if after is not None:
        return "it was done"
    if rules.done_ms is None:
        return Move.FORGOTTEN
    over = rules.done_ms and before.ended_ms + rules.done_ms < rules.now_ms
    return Move.FORGOTTEN if over else "a done one was forgotten too early"


def _failed(before: Where, after: Where | None, rules: Rules) -> Move | str:
    if after is None and rules.deleting:
        return Move.LEFT
    if after is None or after.kind is not PageKind.AVAILABLE:
        return "a failed one can only be redriven"
    if before.deadline_ms < rules.now_ms:
        return "redriven after its retention"
    ok = after.attempts == 0 and after.visible_ms == rules.now_ms
    return Move.REDRIVEN if ok else "redriven with attempts, or visible at another time"
