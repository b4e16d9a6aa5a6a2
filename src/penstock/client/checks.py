"""Arguments of the Python API: checked in the caller's thread, turned into what a broker takes.

Contract     Whatever is wrong is an InvalidError that names the argument, before anything is sent.
             Durations are seconds outside and whole milliseconds inside, rounded up, so that no
             wait becomes none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidError
from penstock.stream.deliver import Start

#: Offsets, counts, times and sequences are signed on the wire.
NUMBER_MAX = (1 << 63) - 1


def check_int(what: str, value: object, *, least: int = 0, most: int = NUMBER_MAX) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidError(f"{what} is a whole number, not {value!r}")
    if value < least:
        raise InvalidError(
            f"{what} {value} is negative" if least == 0 else f"{what} {value} is below {least}"
        )
    if value > most:
        raise InvalidError(f"{what} {value} is above {most}")


def check_optional_int(what: str, value: object, *, most: int = NUMBER_MAX) -> None:
    if value is not None:
        check_int(what, value, most=most)


def check_bool(what: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidError(f"{what} is True or False, not {value!r}")


def milliseconds(what: str, seconds: object) -> int | None:
    """None stands for ever."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise InvalidError(f"{what} is a number of seconds, not {seconds!r}")
    if isinstance(seconds, int) and seconds > NUMBER_MAX:
        raise InvalidError(f"{what} is too long", hint="math.inf is for ever")
    if math.isnan(seconds) or seconds < 0:
        raise InvalidError(f"{what} is a number of seconds, 0 or more, not {seconds!r}")
    if math.isinf(seconds):
        return None
    if seconds * 1000 > NUMBER_MAX >> 1:
        raise InvalidError(f"{what} of {seconds} seconds is too long", hint="math.inf is for ever")
    return math.ceil(seconds * 1000)


def check_start(what: str, start: object) -> Start:
    if isinstance(start, str):
        if start not in ("first", "new"):
            raise InvalidError(f"{what} is 'first', 'new' or an offset, not {start!r}")
        return "first" if start == "first" else "new"
    check_int(what, start)
    assert isinstance(start, int)
    return start


def ack_ranges(offsets: Iterable[object]) -> list[tuple[int, int]]:
    """Offsets and ranges of them -> inclusive pairs; an empty range is nothing."""
    pairs: list[tuple[int, int]] = []
    for offset in offsets:
        if not isinstance(offset, range):
            check_int("offset", offset)
            assert isinstance(offset, int)
            pairs.append((offset, offset))
        elif len(offset):
            low, high = sorted((offset[0], offset[-1]))
            check_int("offset", low)
            check_int("offset", high)
            if abs(offset.step) == 1 or low == high:
                pairs.append((low, high))
            else:
                pairs += [(each, each) for each in offset]
    return pairs


def listed(entries: Any) -> Any:
    if isinstance(entries, list | tuple | pa.RecordBatch | pa.Table | str | bytes):
        return entries
    try:
        return list(entries)
    except TypeError:
        raise InvalidError(f"entries are a list, not {type(entries).__name__}") from None


def producer_id(name: object) -> bytes:
    if not isinstance(name, str):
        raise InvalidError(f"producer is text, not {type(name).__name__}")
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise InvalidError(f"producer {name!r} is not valid text: {error.reason}") from None


def check_producer(producer: bytes | None, sequence: object) -> None:
    if (producer is None) != (sequence is None):
        raise InvalidError("producer and sequence go together")
    check_optional_int("sequence", sequence)
