"""What a stream keeps: retention and compaction, as options of its catalogue row (TCONFIG).

Contract     `configure_step` changes what it is given and leaves the rest; the stream is made if
             there is none. None is "no limit". What follows from a limit is done in the background
             (chores.py): right after the change, and whenever the stream grows.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from penstock.codec.catalogue import CatalogueRow, Options, encode_catalogue_row
from penstock.codec.keys import name_key
from penstock.codec.scalars import I64_MAX
from penstock.errors import CorruptError, InvalidError
from penstock.log.catalogue import (
    LogName,
    NameState,
    States,
    load_target,
    make_target,
    name_state_key,
)
from penstock.log.decision import Decision, Now, Step, View
from penstock.log.place import Rows

_COMPACT = "compact"


class StreamConfig(msgspec.Struct, frozen=True):
    max_count: int | None = None  # entries
    max_bytes: int | None = None  # as stored
    max_age_ms: int | None = None
    compact: bool = False  # only the last entry of each tag stays

    @property
    def limits(self) -> bool:
        return (self.max_count, self.max_bytes, self.max_age_ms) != (None, None, None)


NO_CONFIG = StreamConfig()
_LIMITS = ("max_count", "max_bytes", "max_age_ms")


def config_of(row: CatalogueRow | None) -> StreamConfig:
    if row is None or not row.options:
        return NO_CONFIG
    options = dict(row.options)
    limits = {}
    for key in _LIMITS:
        text = options.get(key)
        if text is not None and not text.isdecimal():
            raise CorruptError(f"stream {row.id}: option {key} is {text!r}, not a number")
        limits[key] = None if text is None else int(text)
    return StreamConfig(**limits, compact=_COMPACT in options)


def _options(row: CatalogueRow, config: StreamConfig) -> Options:
    """The row's options with these; unknown ones stay."""
    options = {key: text for key, text in row.options if key not in (*_LIMITS, _COMPACT)}
    options |= {key: str(getattr(config, key)) for key in _LIMITS if getattr(config, key)}
    if config.compact:
        options[_COMPACT] = "yes"
    return tuple(options.items())


def configure_step(
    target: LogName,
    *,
    max_count: int | UnsetType | None = UNSET,
    max_bytes: int | UnsetType | None = UNSET,
    max_age_ms: int | UnsetType | None = UNSET,
    compact: bool | UnsetType = UNSET,
) -> Step:
    """-> StreamConfig as it is then"""
    changes = {"max_count": max_count, "max_bytes": max_bytes, "max_age_ms": max_age_ms}
    for key, value in changes.items():
        if isinstance(value, int) and not 1 <= value <= I64_MAX:
            raise InvalidError(f"{key} is at least 1, not {value}")
    changes["compact"] = compact
    changes = {key: value for key, value in changes.items() if value is not UNSET}

    async def load(view: View) -> None:
        await load_target(view, target, make=True)

    def decide(view: View, now: Now) -> Decision:
        shown: NameState | None = view.state(name_state_key(target))
        assert shown is not None, "load_target keeps the name"
        rows: Rows = {}
        states: States = {}
        row = shown.row
        if row is None:
            _, rows, states = make_target(view, target, now)
            made = states[name_state_key(target)]
            assert isinstance(made, NameState)
            row = made.row
        assert row is not None
        config = msgspec.structs.replace(config_of(row), **changes)
        row = msgspec.structs.replace(row, options=_options(row, config))
        rows[name_key(target.kind, target.name)] = encode_catalogue_row(row)
        states[name_state_key(target)] = NameState(row)
        return Decision(reply=config, writes=rows, states=states)

    return Step(decide, load)
