"""RCP 11, "Key value message format": a message has a tag and a value, over every door."""

from __future__ import annotations

import pytest

from acceptance.rcp11.doors import Config, Door, Entry, until


@pytest.mark.parametrize(
    ("tag", "data"),
    [
        (b"user:1", b"clicked"),
        (b"", b"no tag"),
        (b"no data", b""),
        (b"", b""),
        (b"\x00\xff\xfe\r\n", b"\x00\r\n$5\r\n\xff"),
        ("żółw".encode(), "żółw".encode()),
        (b"t" * 65_535, b"the longest tag"),
        (b"large", bytes(range(256)) * 8192),  # 2 MiB
    ],
    ids=["text", "no tag", "no data", "nothing", "bytes", "utf-8", "long tag", "large"],
)
def test_a_message_is_a_tag_and_a_value_and_both_come_back_as_they_were(
    door: Door, name: str, tag: bytes, data: bytes
) -> None:
    """1st reason: the tag needs no place in the message. Tags and entries are bytes."""
    assert door.write(name, tag, data) == 0
    assert door.write_many(name, [(tag, data), (b"other", b"x")]) == range(1, 3)
    wanted = [Entry(0, tag, data), Entry(1, tag, data), Entry(2, b"other", b"x")]
    assert door.read(name, 0, 3) == wanted
    assert door.read_group(name, "g", 3) == wanted


def test_the_server_exploits_the_tag_compaction_keeps_the_last_message_of_each(
    door: Door, name: str
) -> None:
    """2nd reason, log compaction: not by age, but the last message seen of each tag stays."""
    door.configure(name, Config(compact=True))
    entries = [(b"a", b"1"), (b"b", b"1"), (b"", b"none"), (b"a", b"2"), (b"", b"none"),
               (b"c", b"1"), (b"b", b"2"), (b"a", b"3")]  # fmt: skip
    door.write_many(name, entries)
    kept = [None, None, Entry(2, b"", b"none"), None, Entry(4, b"", b"none"),
            Entry(5, b"c", b"1"), Entry(6, b"b", b"2"), Entry(7, b"a", b"3")]  # fmt: skip
    until(lambda: door.read(name, 0, 100) == kept)


def test_without_compaction_every_message_of_a_tag_stays(door: Door, name: str) -> None:
    """ "No log compaction feature is described": it is off unless asked for."""
    door.write_many(name, [(b"a", b"%d" % n) for n in range(50)])
    assert door.info(name).config == Config()
    assert len([entry for entry in door.read(name, 0, 100) if entry]) == 50
