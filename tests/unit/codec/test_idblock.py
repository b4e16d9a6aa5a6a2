from __future__ import annotations

import pytest

from penstock.codec.idblock import IdBlock, encode_id_block, reserve
from penstock.codec.scalars import U64_MAX
from penstock.errors import CorruptError, InvalidError


def test_successive_blocks_follow_each_other_and_skip_id_0() -> None:
    first, row = reserve(None, 3)
    second, row = reserve(row, 2)
    assert (first, second) == (range(1, 4), range(4, 6))
    assert row == encode_id_block(IdBlock(6))


def test_the_last_ids_can_be_reserved_and_none_beyond_them() -> None:
    row = encode_id_block(IdBlock(U64_MAX - 2))
    ids, row = reserve(row, 2)
    assert ids == range(U64_MAX - 2, U64_MAX)
    with pytest.raises(InvalidError, match="next id does not fit a u64"):
        reserve(row, 1)


@pytest.mark.parametrize("size", [0, -1])
def test_a_block_of_no_ids_is_invalid(size: int) -> None:
    with pytest.raises(InvalidError, match="at least 1"):
        reserve(encode_id_block(IdBlock(10)), size)


def test_a_zeroed_row_is_corrupt_and_does_not_start_the_ids_again() -> None:
    with pytest.raises(CorruptError, match="next id at byte 0 is 0"):
        reserve(bytes(8), 1)
