from __future__ import annotations

import pytest

from penstock.codec.attempts import Attempt, Ending, decode_attempts, encode_attempts
from penstock.errors import CorruptError, InvalidError


def test_attempts_keep_their_order() -> None:
    attempts = (Attempt("b", 2, Ending.FAILED, "x"), Attempt("a", 1, Ending.EXPIRED))
    assert decode_attempts(encode_attempts(attempts)) == attempts


def test_a_record_of_no_attempts_is_the_rfcs_bytes() -> None:
    assert encode_attempts(()) == bytes(2)


def test_more_attempts_than_a_u16_are_invalid() -> None:
    with pytest.raises(InvalidError, match="65536 elements"):
        encode_attempts([Attempt("w", 1, Ending.FAILED)] * 65_536)


def test_an_unknown_ending_is_corrupt() -> None:
    stored = encode_attempts([Attempt("w", 1, Ending.FAILED)])
    assert stored[13] == Ending.FAILED
    with pytest.raises(CorruptError, match="how it ended at byte 13 is unknown: 0x09"):
        decode_attempts(stored[:13] + b"\x09" + stored[14:])
