"""Receipts: only what was made with the key opens."""

from __future__ import annotations

import pytest

from penstock.queue.receipt import Receipt, make_receipt, open_receipt

KEY = bytes(range(32))
GOOD = make_receipt(KEY, 1, 2, 3)


def test_a_receipt_says_which_lease_it_is_for() -> None:
    assert open_receipt(KEY, GOOD) == Receipt(1, 2, 3)


def test_each_bit_of_a_receipt_counts() -> None:
    raw = bytes.fromhex(GOOD)
    for i in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[i // 8] ^= 1 << i % 8
        assert open_receipt(KEY, changed.hex()) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        GOOD[:-2],
        GOOD + "00",
        "é" * 80,
        "=" * 80,
        GOOD.upper(),
        f"{GOOD[:-4]}  {GOOD[-2:]}",
    ],
)
def test_nonsense_opens_nothing(text: str) -> None:
    assert open_receipt(KEY, text) is None


def test_another_key_opens_nothing() -> None:
    assert open_receipt(KEY[::-1], GOOD) is None
