"""What a queue is set to: checked settings, and the RFC's config record with our options.

Contract     `Settings` is what decisions use; `settings_of` and `config_of` translate. Filter and
             priority are kept as canonical text and parsed once. Options of later versions are kept
             as they are. `changed` gives the settings after an alteration; everything is checked
             before anything is changed.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from penstock.codec.catalogue import Options
from penstock.codec.queueconfig import QueueConfig
from penstock.codec.scalars import U16_MAX, U32_MAX
from penstock.errors import CorruptError, InvalidError
from penstock.queue.backoff import DEFAULT, Backoff, backoff_text, check_backoff, parse_backoff
from penstock.queue.filter import Filter, Priority, parse_filter, parse_priority

LEASE_MS = 30_000
MAX_LEASE_MS = 43_200_000
MAX_ATTEMPTS = 5
DONE_RETENTION_S = 604_800
#: A lease is at least this long, and no queue allows one that is longer.
LEASE_MS_MIN = 1
LEASE_MS_LIMIT = 366 * 24 * 3600 * 1000

_OURS = ("priority", "lease_ms", "max_lease_ms", "backoff", "paused")


class Settings(msgspec.Struct, frozen=True, eq=False):
    filter: Filter | None = None  # None: everything that is not addressed
    priority: Priority | None = None  # None: the header `priority`, else 128
    lease_ms: int = LEASE_MS
    max_lease_ms: int = MAX_LEASE_MS
    max_attempts: int = MAX_ATTEMPTS  # 0: no limit
    backoff: Backoff = DEFAULT
    done_retention_s: int = DONE_RETENTION_S  # 0: for ever
    paused: bool = False
    other: Options = ()  # of a later version

    @property
    def filter_text(self) -> str | None:
        return None if self.filter is None else self.filter.text

    @property
    def priority_text(self) -> str | None:
        return None if self.priority is None else self.priority.text


def changed(settings: Settings, options: dict[str, Any]) -> Settings:
    """With these options; None puts filter, priority and backoff back to what they are without."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if value is UNSET:
            continue
        match name:
            case "filter":
                found[name] = None if value is None else parse_filter(_text(name, value))
            case "priority":
                found[name] = None if value is None else parse_priority(_text(name, value))
            case "backoff":
                found[name] = check_backoff(value)
            case "lease_ms" | "max_lease_ms":
                found[name] = _whole(name, value, LEASE_MS_MIN, LEASE_MS_LIMIT)
            case "max_attempts":
                found[name] = _whole(name, value, 0, U16_MAX)
            case "done_retention_s":
                found[name] = _whole(name, value, 0, U32_MAX)
            case "paused":
                found[name] = bool(value)
            case _:
                raise InvalidError(f"a queue has no setting {name!r}")
    after = msgspec.structs.replace(settings, **found)
    if after.lease_ms > after.max_lease_ms:
        raise InvalidError(
            f"a lease of {after.lease_ms} ms is longer than the longest, {after.max_lease_ms} ms"
        )
    return after


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidError(f"{name} is SQL text, not {type(value).__name__}")
    return value


def _whole(name: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidError(f"{name} is a whole number, not {value!r}")
    if not low <= value <= high:
        raise InvalidError(f"{name} is {value}; {low} to {high} are allowed")
    return value


def config_of(settings: Settings) -> QueueConfig:
    options = (
        *((("priority", settings.priority.text),) if settings.priority is not None else ()),
        ("lease_ms", str(settings.lease_ms)),
        ("max_lease_ms", str(settings.max_lease_ms)),
        ("backoff", backoff_text(settings.backoff)),
        *((("paused", "yes"),) if settings.paused else ()),
    )
    return QueueConfig(
        settings.filter_text or "",
        settings.max_attempts,
        settings.done_retention_s,
        (*options, *settings.other),
    )


def settings_of(config: QueueConfig) -> Settings:
    options = dict(config.options)
    try:
        return Settings(
            filter=parse_filter(config.filter) if config.filter else None,
            priority=parse_priority(options["priority"]) if "priority" in options else None,
            lease_ms=int(options["lease_ms"]),
            max_lease_ms=int(options["max_lease_ms"]),
            max_attempts=config.max_attempts,
            backoff=parse_backoff(options["backoff"]),
            done_retention_s=config.done_retention_s,
            paused=options.get("paused") == "yes",
            other=tuple(pair for pair in config.options if pair[0] not in _OURS),
        )
    except (KeyError, ValueError, InvalidError) as error:
        raise CorruptError(f"queue config: {error}") from error
