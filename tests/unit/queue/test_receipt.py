"""Receipts: only what was made with the key opens."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from penstock.queue.receipt import LEASE, make_receipts, open_receipts

KEY = bytes(range(32))
LEASES = np.array([(1, 2, 3), (1, 3, 4), (2**64 - 1, 0, 7)], LEASE)
GOOD, SECOND, THIRD = make_receipts(KEY, LEASES)


def opens(text: str, key: bytes = KEY) -> bool:
    """Whether it opens, alone and between others."""
    leases, good = open_receipts(key, [text])
    among, goods = open_receipts(key, [GOOD, text, SECOND])
    others = [key == KEY] * 2
    assert (goods[0], goods[2]) == tuple(others)
    assert goods[1] == good[0]
    assert len(leases) == good.count(True)
    assert len(among) == goods.count(True)
    return good[0]


def test_a_receipt_says_which_lease_it_is_for() -> None:
    leases, good = open_receipts(KEY, [GOOD, SECOND, THIRD])
    assert leases.tolist() == LEASES.tolist()
    assert good == [True, True, True]


def test_a_receipt_is_its_lease_and_a_keyed_hash_of_it() -> None:
    body = b"".join(number.to_bytes(8, "little") for number in (1, 2, 3))
    assert (body + hashlib.blake2s(body, key=KEY, digest_size=16).digest()).hex() == GOOD


def test_none_are_none() -> None:
    assert make_receipts(KEY, LEASES[:0]) == []
    leases, good = open_receipts(KEY, [])
    assert leases.tolist() == good == []


def test_of_good_and_bad_ones_the_good_ones_open_in_their_order() -> None:
    leases, good = open_receipts(KEY, [THIRD, "x", GOOD, GOOD[:-1] + "x", THIRD])
    assert leases.tolist() == LEASES[[2, 0, 2]].tolist()
    assert good == [True, False, True, False, True]


def test_each_bit_of_a_receipt_counts() -> None:
    raw = bytes.fromhex(GOOD)
    for i in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[i // 8] ^= 1 << i % 8
        assert not opens(changed.hex())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        GOOD[:-2],
        GOOD + "00",
        GOOD + GOOD,
        "é" * 80,
        "=" * 80,
        GOOD.upper(),
        f"{GOOD[:-4]}  {GOOD[-2:]}",
    ],
)
def test_nonsense_opens_nothing(text: str) -> None:
    assert not opens(text)


def test_parts_of_several_receipts_are_none() -> None:
    """Together they are long enough, and good."""
    assert open_receipts(KEY, [GOOD[:40], GOOD[40:] + SECOND])[1] == [False, False]


def test_another_key_opens_nothing() -> None:
    assert not opens(GOOD, KEY[::-1])
