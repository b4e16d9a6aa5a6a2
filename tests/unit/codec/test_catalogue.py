from __future__ import annotations

from typing import Any

import pytest

from penstock.codec.catalogue import (
    CatalogueRow,
    check_name,
    decode_catalogue_row,
    encode_catalogue_row,
)
from penstock.codec.keys import Kind, name_key
from penstock.errors import CorruptError, InvalidError


@pytest.mark.parametrize("name", ["a", "a" * 255, "é" * 127, "a b/../c", "\u0000", "😀", " a "])
def test_a_name_is_its_utf8_bytes(name: str) -> None:
    assert check_name("queue", name) == name.encode()


@pytest.mark.parametrize("name", ["", "a" * 256, "é" * 128])
def test_a_name_of_no_or_too_many_bytes_is_invalid(name: str) -> None:
    with pytest.raises(InvalidError, match=r"queue name of \d+ bytes; 1 to 255"):
        check_name("queue", name)


def test_a_name_with_a_lone_surrogate_is_invalid() -> None:
    with pytest.raises(InvalidError, match=r"stream name .* is not valid text"):
        check_name("stream", "a\udcff")


@pytest.mark.parametrize("name", [b"a", None, 5])
def test_a_name_that_is_not_text_is_invalid(name: Any) -> None:
    with pytest.raises(InvalidError, match="a topic name is text"):
        check_name("topic", name)


def test_a_queue_name_with_nul_has_a_catalogue_row_of_its_own() -> None:
    names = ["a", "a\0", "a\0b", "a\x01", "a\x01\x01", "a\x01\x01b", "b"]
    keys = [name_key(Kind.QUEUE, check_name("queue", name)) for name in names]
    assert len(set(keys)) == len(names)
    assert not any(x is not y and x.startswith(y) for x in keys for y in keys)


def test_the_same_name_of_two_kinds_has_two_rows() -> None:
    assert name_key(Kind.QUEUE, b"a") != name_key(Kind.STREAM, b"a")


def test_unknown_options_are_kept_in_their_order() -> None:
    row = CatalogueRow(7, 1000, (("z", "1"), ("a", "\0")))
    assert decode_catalogue_row(encode_catalogue_row(row)) == row


def test_an_option_may_occur_once_only() -> None:
    with pytest.raises(InvalidError, match="'a' occurs twice"):
        encode_catalogue_row(CatalogueRow(7, 1000, (("a", "1"), ("a", "1"))))
    stored = encode_catalogue_row(CatalogueRow(7, 1000, (("a", "1"), ("b", "1"))))
    with pytest.raises(CorruptError, match="'a'"):
        decode_catalogue_row(stored.replace(b"b", b"a"))


def test_more_options_than_a_u16_are_invalid() -> None:
    many = tuple((str(n), "") for n in range(65_536))
    with pytest.raises(InvalidError, match="65536 options"):
        encode_catalogue_row(CatalogueRow(7, 1000, many))
