from __future__ import annotations

import pytest

from penstock.codec import keys
from penstock.codec.keys import KeyType, Kind
from penstock.errors import CorruptError, InvalidError


def test_a_queue_name_with_nul_never_meets_another_queue() -> None:
    names = [b"a", b"a\x00", b"a\x00b", b"a\x01", b"a\x01\x01", b"ab", b"\x00", b"\x01\x01"]
    for build in (keys.config_key, lambda name: keys.name_key(Kind.QUEUE, name)):
        built = [build(name) for name in names]
        for one, key in zip(names, built, strict=True):
            assert [n for n, k in zip(names, built, strict=True) if k.startswith(key)] == [one]


def test_a_scan_over_one_queues_buckets_sees_no_other_queue() -> None:
    start = keys.active_key(b"a", 0, 0)[:-9]
    inside = keys.active_key(b"a", 255, 2**64 - 1)
    others = [keys.active_key(name, 0, 0) for name in (b"", b"a\x00", b"a\x01", b"aa", b"b")]
    end = keys.prefix_end(start)
    assert start <= inside < end
    assert not any(start <= other < end for other in others)


def test_the_rfcs_types_have_the_rfcs_discriminators() -> None:
    rfc = [
        KeyType.PAYLOAD,
        KeyType.ACTIVE,
        KeyType.DONE,
        KeyType.FAILED,
        KeyType.ATTEMPTS,
        KeyType.CONFIG,
    ]
    assert [keys.prefix(kind) for kind in rfc] == [bytes((1, n)) for n in range(1, 7)]


def test_the_chain_head_sorts_before_every_chain_row() -> None:
    assert keys.chain_key(0) > keys.CHAIN_HEAD


@pytest.mark.parametrize("key", [b"", b"\x01", b"\x02\x01", b"\x00\x01"])
def test_a_key_of_another_version_is_corrupt(key: bytes) -> None:
    with pytest.raises(CorruptError, match="version at byte 0"):
        keys.key_type(key)


def test_a_key_of_an_unknown_type_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="unknown type 0xee at byte 1"):
        keys.key_type(b"\x01\xee")


def test_a_key_of_another_type_than_expected_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="type LOG at byte 1, expected NODE"):
        keys.decode_node_key(keys.log_key(5))


def test_a_node_key_reads_back_and_refuses_bytes_left_over() -> None:
    assert keys.decode_node_key(keys.node_key(5, 1000)) == (5, 1000)
    with pytest.raises(CorruptError, match="1 bytes left over"):
        keys.decode_node_key(keys.node_key(5, 1000) + b"\x00")


def test_a_priority_beyond_a_byte_is_invalid() -> None:
    with pytest.raises(InvalidError, match="priority"):
        keys.active_key(b"q", 256, 0)
