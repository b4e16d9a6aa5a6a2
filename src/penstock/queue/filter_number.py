"""Numbers in filters: which text is one, and how one is written. Pure.

Contract     All numbers are float64. Text is a number if it is, as a whole, an optional sign,
             digits with an optional fraction, and an optional exponent: `5 -5 +5 5. .5 1e3`, in
             ASCII, without spaces. Anything else is none: `'' ' 5' nan inf 0x10 1_0 1,5`. What
             overflows float64 (`1e999`) is none either; what underflows is 0.
Invariants   number_of and numbers_of agree. -0 is 0. number_of(text_of(x)) == x.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_FORM = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_number = re.compile(_FORM).fullmatch

#: Not by pa.scalar: it imports pandas where that is installed, 40 MB and a quarter of a second for
#: every process, which most never need.
_MISSING = pa.nulls(1, pa.float64())[0]
_TEXT_MISSING = pa.nulls(1, pa.string())[0]


def number_of(text: str) -> float | None:
    return finite(float(text)) if _number(text) else None


def finite(number: float) -> float | None:
    """NULL instead of infinity and NaN; adding zero makes 0 of -0."""
    return number + 0.0 if number - number == 0.0 else None


def numbers_of(texts: Any) -> Any:
    """A StringArray -> a DoubleArray of the same length."""
    # RE2 knows no fullmatch, and its $ would let a last newline pass.
    fits = pc.match_substring_regex(texts, rf"\A(?:{_FORM})\z")
    # Arrow reads no leading plus. The form allows one sign only, so this strips at most one.
    plain = pc.utf8_ltrim(pc.if_else(fits, texts, _TEXT_MISSING), characters="+")
    try:
        return finites(pc.cast(plain, pa.float64()))
    except pa.ArrowInvalid:
        # One value beyond what Arrow reads (1e999) must not spoil the others.
        return pa.array(
            [None if text is None else number_of(text) for text in texts.to_pylist()], pa.float64()
        )


def finites(numbers: Any) -> Any:
    return pc.if_else(pc.is_finite(numbers), pc.add(numbers, 0.0), _MISSING)


def doubles(whole: np.typing.NDArray[np.int64]) -> Any:
    # Through numpy: Arrow's cast refuses integers that float64 cannot hold exactly.
    return pa.array(whole.astype(np.float64))


def text_of(number: float) -> str:
    """The shortest text that reads back as the same number; no fraction if there is none."""
    if number == int(number) and abs(number) < 1e16:
        return str(int(number))
    return repr(number)
