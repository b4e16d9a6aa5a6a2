"""Topics as a whole: what they keep, deleting them.

Contract     `configure_step` sets what the all-log keeps, as options of the catalogue row that mean
             what they mean for streams; upkeep trims it, never past what is not acknowledged or is
             being replayed (holds). `delete_step` takes everything of a topic away; its id is never
             used again.
"""

from __future__ import annotations

import msgspec
from msgspec import UnsetType

from penstock.codec.catalogue import encode_catalogue_row
from penstock.codec.garbage import encode_garbage
from penstock.codec.keys import KeyType, garbage_key, name_key, prefix_end, topic_prefix
from penstock.codec.scalars import I64_MAX
from penstock.errors import InvalidError
from penstock.log.catalogue import LogName, NameState, load_name, name_state_key
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.evict import delete_step as delete_log_step
from penstock.topic.state import missing, topic_state_key

_LIMITS = ("max_count", "max_bytes", "max_age_ms")
_KINDS = (KeyType.TOPIC, KeyType.TOPIC_PAGE, KeyType.ERROR)


def configure_step(name: LogName, **given: int | UnsetType | None) -> Step:
    """max_count, max_bytes, max_age_ms: those that are given; None is no limit."""
    assert set(given) <= set(_LIMITS)
    limits = {key: value for key, value in given.items() if not isinstance(value, UnsetType)}
    for key, value in limits.items():
        if value is not None and not 1 <= value <= I64_MAX:
            raise InvalidError(f"{key} is at least 1, not {value}")

    async def load(view: View) -> None:
        await load_name(view, name)

    def decide(view: View, now: Now) -> Decision:
        shown: NameState | None = view.state(name_state_key(name))
        if shown is None or shown.row is None:
            raise missing(name)
        options = {key: text for key, text in shown.row.options if key not in limits}
        options |= {key: str(value) for key, value in limits.items() if value is not None}
        row = msgspec.structs.replace(shown.row, options=tuple(options.items()))
        return Decision(
            writes={name_key(name.kind, name.name): encode_catalogue_row(row)},
            states={name_state_key(name): NameState(row)},
        )

    return Step(decide, load)


def delete_step(name: LogName) -> Step:
    """-> whether there was such a topic"""
    log_step = delete_log_step(name)

    def decide(view: View, now: Now) -> Decision:
        shown: NameState | None = view.state(name_state_key(name))
        decision = log_step.decide(view, now)
        if shown is None or shown.row is None:
            return decision
        rows = dict(decision.writes)
        for kind in _KINDS:
            low = topic_prefix(kind, shown.row.id)
            rows[garbage_key(low)] = encode_garbage(prefix_end(low))
        states = {**decision.states, topic_state_key(shown.row.id): None}
        return msgspec.structs.replace(decision, writes=rows, states=states)

    return Step(decide, log_step.load)
