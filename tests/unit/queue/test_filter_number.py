"""Which text is a number, in both back ends, and how numbers are written."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.queue.filter_number import number_of, numbers_of, text_of

NUMBERS = {
    **{"0": 0.0, "-0": 0.0, "5": 5.0, "+5": 5.0, "-5": -5.0, "005": 5.0, "5.": 5.0, ".5": 0.5},
    **{"-.5": -0.5, "1e3": 1000.0, "1E+3": 1000.0, "1.5e-1": 0.15, "1e-400": 0.0, "-1e-400": 0.0},
    **{"5e-324": 5e-324, "1.7976931348623157e308": 1.7976931348623157e308},
    **{"9007199254740993": 9007199254740992.0, "0" * 400 + "7": 7.0, "0.1": 0.1},
}
OTHERS = [
    *(
        "",
        " ",
        " 5",
        "5 ",
        "5\n",
        "\t5",
        "+",
        "-",
        ".",
        "e5",
        "1e",
        "1e+",
        "--5",
        "+-5",
        "++5",
        "5-",
    ),
    *(
        "nan",
        "NaN",
        "inf",
        "-inf",
        "Infinity",
        "0x10",
        "1_0",
        "1,5",
        "1.2.3",
        "٣",
        "5",
        "²",
        "½",
        "5\x00",
    ),
    *("1e999", "-1e999", "9" * 400, "true", "NULL", "1e5.0", "5f", "5d", "1 000"),
]


@pytest.mark.parametrize("text", [*NUMBERS, *OTHERS])
def test_text_is_a_number_or_not_alike_in_both_back_ends(text: str) -> None:
    expected = repr(NUMBERS.get(text))
    assert repr(number_of(text)) == expected
    # Alone, and beside what Arrow itself cannot read.
    assert repr(numbers_of(pa.array([text], pa.string()))[0].as_py()) == expected
    both = numbers_of(pa.array(["1e999", text, None], pa.string())).to_pylist()
    assert repr(both) == f"[None, {expected}, None]"


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_reads_back_as_itself(number: float) -> None:
    assert repr(number_of(text_of(number))) == repr(number + 0.0)
    assert repr(numbers_of(pa.array([text_of(number)]))[0].as_py()) == repr(number + 0.0)
