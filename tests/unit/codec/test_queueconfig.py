from __future__ import annotations

import pytest

from penstock.codec.queueconfig import QueueConfig, decode_queue_config, encode_queue_config
from penstock.errors import CorruptError, InvalidError


def test_options_that_nobody_knows_are_kept_in_their_order() -> None:
    config = QueueConfig("", 5, 60, (("z-from-a-later-version", "1"), ("a", "")))
    assert decode_queue_config(encode_queue_config(config)) == config


def test_an_option_given_twice_is_invalid() -> None:
    with pytest.raises(InvalidError, match="'a' occurs twice"):
        encode_queue_config(QueueConfig("", 5, 60, (("a", "1"), ("a", "2"))))


def test_an_option_stored_twice_is_corrupt() -> None:
    stored = encode_queue_config(QueueConfig("", 5, 60, (("a", "1"), ("b", "2"))))
    with pytest.raises(CorruptError, match="option at byte 16 occurs twice: 'a'"):
        decode_queue_config(stored.replace(b"b", b"a"))


def test_fields_beyond_the_rfcs_limits_are_invalid() -> None:
    with pytest.raises(InvalidError, match="max attempts"):
        encode_queue_config(QueueConfig("", 65_536, 0))
    with pytest.raises(InvalidError, match="retention of done messages"):
        encode_queue_config(QueueConfig("", 0, 1 << 32))
    with pytest.raises(InvalidError, match="filter is 65536 bytes"):
        encode_queue_config(QueueConfig("x" * 65_536, 0, 0))
