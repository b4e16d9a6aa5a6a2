"""What `Ingest` is told, checked before anything is opened. Pure.

Contract     What is wrong is an InvalidError here. Durations are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast, get_args

import msgspec

from penstock.codec.catalogue import check_name
from penstock.errors import InvalidError
from penstock.source.requests import Identity
from penstock.spark.ingest.csvrows import Dialect
from penstock.spark.ingest.readers import Format, Reading

_DAY = 24 * 3600.0
#: Of the format csv, by their names in Spark.
_CSV = ("header", "sep", "quote")


class Settings(msgspec.Struct, frozen=True):
    location: str
    table: str
    name: str
    reading: Reading
    identity: Identity
    inline: bool
    evolve: bool
    commit_timeout: float
    linger: float
    max_files: int
    batch_bytes: int
    chunk_bytes: int
    max_failures: int
    retry_delay: float
    prune_age: float
    prune_count: int

    @property
    def stale_ms(self) -> int:
        """Twice the commit timeout: who is silent for longer has lost its shards."""
        return max(1, round(2000 * self.commit_timeout))


def check_reading(format: object, options: Mapping[str, object] | None) -> Reading:
    if format not in get_args(Format):
        raise InvalidError(
            f"format is one of {', '.join(get_args(Format))}, not {format!r}",
        )
    if options is not None and not isinstance(options, Mapping):
        raise InvalidError(
            f"options are names with values, not {options!r}", hint='such as {"header": False}'
        )
    given = dict(options or {})
    known = _CSV if format == "csv" else ()
    for name in given:
        if name not in known:
            raise InvalidError(
                f"the format {format} has no option {name!r}",
                hint=f"it has {', '.join(known)}" if known else "it has none",
            )
    quote = given.get("quote", '"')
    dialect = Dialect(
        delimiter=_octet("sep", given.get("sep", ",")),
        quote="" if quote == "" else _octet("quote", quote),
        header=_flag("header", given.get("header", True)),
    )
    if dialect.delimiter == dialect.quote:
        raise InvalidError(f"sep and quote are both {dialect.quote!r}")
    return Reading(cast(Format, format), dialect)


def _octet(name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) != 1 or ord(value) > 127 or value in "\r\n":
        raise InvalidError(f"{name} is one ASCII character, not {value!r}")
    return value


def _flag(name: str, value: object) -> bool:
    """Spark's own options are texts, so those are taken as well."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise InvalidError(f"{name} is True or False, not {value!r}")


def check_seconds(name: str, value: Any, *, positive: bool = True) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidError(f"{name} is a number of seconds, not {value!r}")
    if value < 0 or (positive and value == 0) or value > 365 * _DAY:
        raise InvalidError(f"{name} is out of range: {value!r} s")
    return float(value)


def check_count(name: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidError(f"{name} is a whole number, not {value!r}")
    if value < least:
        raise InvalidError(f"{name} is at least {least}, not {value}")
    if most is not None and value > most:
        raise InvalidError(f"{name} is at most {most:,}, not {value:,}")
    return value


def check_source(name: object, table: str) -> str:
    """What the source is called: like its table, if it is not told otherwise."""
    if name is None:
        try:
            check_name("source", table)
        except InvalidError as error:
            raise InvalidError(str(error), hint="give the source a name of its own") from None
        return table
    if not isinstance(name, str) or not name:
        raise InvalidError(f"name is a text, not {name!r}")
    check_name("source", name)
    return name


def check_identity(value: object) -> Identity:
    if value not in get_args(Identity):
        raise InvalidError(f"identity is 'uri' or 'version', not {value!r}")
    return cast(Identity, value)
