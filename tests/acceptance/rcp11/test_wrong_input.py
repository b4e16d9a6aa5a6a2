"""Wrong words on the wire: each is -INVALID, and nothing changed.

Every command of docs/streams.md with every option: too few words, too many, numbers that are
none, options that are unknown, repeated, without their value, or that do not go together.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import redis

from acceptance.rcp11.doors import NEVER_MS, Config, numbered
from acceptance.rcp11.resp_door import RespDoor, Word

#: What is no number where one is wanted; each goes wherever `#` stands below.
NO_NUMBERS = ("x", "", " 1", "1 ", "1.5", "1e3", "+1", "0x1", "1_0", "--1", "9" * 19, "9" * 30)
NO_NATURALS = (*NO_NUMBERS, "-", "-1")
LONG = "n" * 256

#: One command per line; `s` is a stream, `g` a group of it, "" an empty word, LONG a name that is
#: too long and BYTES one that is not UTF-8; `#` is each of NO_NATURALS.
WRONG = """
TWRITE
TWRITE s
TWRITE s t
TWRITE s t x y
TWRITE s t x y z
TWRITE "" t x
TWRITE LONG t x
TWRITE BYTES t x
TWRITE s ENTRIES t x u
TWRITE s ENTRIES t x u y v
TWRITE s ENTRIES ENTRIES ENTRIES ENTRIES
TWRITE s BACKLOG 5 ENTRIES
TWRITE s BACKLOG 5 ENTRIES t
TWRITE s BACKLOG # ENTRIES t x
TWRITE s BACKLOG ENTRIES t x
TWRITE s BACKLOG 5 BACKLOG 5 ENTRIES t x
TWRITE s BACKLOG 5 t x
TWRITE s BACKLOG 5 UNKNOWN ENTRIES t x
TWRITE s UNKNOWN 5 ENTRIES t x
TWRITE s PRODUCER p 9 ENTRIES
TWRITE s PRODUCER p # ENTRIES t x
TWRITE s PRODUCER p ENTRIES t x
TWRITE s PRODUCER ENTRIES t x y
TWRITE s PRODUCER "" 9 ENTRIES t x
TWRITE s PRODUCER LONG 9 ENTRIES t x
TWRITE s PRODUCER BYTES 9 ENTRIES t x
TWRITE s PRODUCER p 9 PRODUCER q 9 ENTRIES t x
TWRITE s PRODUCER p 1 ENTRIES t x
TWRITE s META ENTRIES t x
TWRITE s META ENTRIES t x m u
TWRITE s META META ENTRIES t x m
TWRITE s ENTRIES TAGTOOLONG x
TWRITE s TAGTOOLONG x
TREAD
TREAD s
TREAD s 0
TREAD "" 0 1
TREAD LONG 0 1
TREAD BYTES 0 1
TREAD s # 1
TREAD s 0 #
TREAD s 0 1 UNKNOWN
TREAD s 0 1 2
TREAD s 0 1 WITHINFO WITHINFO
TREAD s 0 1 WITHINFO UNKNOWN
TREAD s 0 1 BLOCK
TREAD s 5 1 BLOCK #
TREAD s 5 1 BLOCK WITHINFO
TREAD s 5 1 BLOCK 1 BLOCK 1
TREAD s 0 1 GROUP
TREAD s 0 1 GROUP ""
TREAD s 0 1 GROUP LONG
TREAD s 0 1 GROUP BYTES
TREAD s 0 1 GROUP g GROUP g
TREAD s 0 1 GROUP g GROUP h
TREAD s 0 # GROUP g
TREAD s x 1 GROUP g
TREAD s "" 1 GROUP g
TREAD s 0 1 FROM first
TREAD s 0 1 FROM first GROUP new-group
TREAD s 0 1 GROUP new-group FROM
TREAD s 0 1 GROUP new-group FROM #
TREAD s 0 1 GROUP new-group FROM last
TREAD s 0 1 GROUP new-group FROM 99
TREAD s 0 1 GROUP new-group FROM first FROM new
TREAD s 0 1 GROUP new-group BLOCK 1 FROM first
TREAD s 0 1 RETRY 1 1
TREAD s 0 1 GROUP g RETRY
TREAD s 0 1 GROUP g RETRY 1
TREAD s 0 1 GROUP g RETRY # 1
TREAD s 0 1 GROUP g RETRY 1 #
TREAD s 0 1 GROUP g RETRY 0 0
TREAD s 0 1 GROUP g RETRY 0 1
TREAD s 0 1 GROUP g RETRY 1 WITHINFO
TREAD s 0 1 GROUP g RETRY 1 1 1
TREAD s 0 1 GROUP g RETRY 1 1 RETRY 1 1
TREAD s 0 1 REVERSE REVERSE
TREAD s 0 1 REVERSE BLOCK 1
TREAD s 0 1 GROUP g REVERSE
TREAD s 0 1 FULL FULL
TREAD s 0 1 RAW RAW
TREAD s 0 1 RAW FULL
TREAD s 0 1 GROUP g RAW
TEVICT
TEVICT s
TEVICT s 0 0
TEVICT "" 0
TEVICT LONG 0
TEVICT BYTES 0
TEVICT s -
TEVICT s -x
TEVICT s -1.5
TEVICT s -9223372036854775808
TEVICT s !
TACK
TACK s
TACK s g
TACK "" g 0
TACK s "" 0
TACK s LONG 0
TACK s BYTES 0
TACK s g #
TACK s g 0 #
TACK s g 0-
TACK s g -0-1
TACK s g 0-1-2
TACK s g 0--1
TACK s g 1-0
TACK s g a-b
TACK s g 0-b
TACK s g 0 1-0
TACK s g 0-9223372036854775807
TGROUP
TGROUP INFO
TGROUP UNKNOWN s
TGROUP UNKNOWN s g
TGROUP CREATE s
TGROUP CREATE "" h
TGROUP CREATE s ""
TGROUP CREATE s LONG
TGROUP CREATE s BYTES
TGROUP CREATE s h UNKNOWN
TGROUP CREATE s h first
TGROUP CREATE s h FROM
TGROUP CREATE s h FROM #
TGROUP CREATE s h FROM last
TGROUP CREATE s h FROM 99
TGROUP CREATE s h FROM first FROM first
TGROUP CREATE s h MAXPENDING
TGROUP CREATE s h MAXPENDING #
TGROUP CREATE s h MAXPENDING 0
TGROUP CREATE s h MAXPENDING 5 MAXPENDING 5
TGROUP CREATE s h DEAD
TGROUP CREATE s h DEAD ""
TGROUP CREATE s h DEAD LONG
TGROUP CREATE s h DEAD BYTES
TGROUP CREATE s h DEAD s
TGROUP CREATE s h DEAD a DEAD b
TGROUP CREATE not-there h FROM 1
TGROUP SET s
TGROUP SET s g
TGROUP SET s g #
TGROUP SET s g last
TGROUP SET s g 99
TGROUP SET s g 0 0
TGROUP SET s g FROM 0
TGROUP INFO s g g
TGROUP INFO ""
TGROUP INFO s ""
TGROUP PENDING s
TGROUP PENDING s g #
TGROUP PENDING s g 0 #
TGROUP PENDING s g 0 1 2
TGROUP DESTROY s
TGROUP DESTROY s g g
TGROUP DESTROY s ""
TCONFIG
TCONFIG ""
TCONFIG s UNKNOWN
TCONFIG s MAXLEN
TCONFIG s MAXLEN #
TCONFIG s MAXLEN 1 MAXLEN 1
TCONFIG s MAXLEN COMPACT yes
TCONFIG s MAXBYTES
TCONFIG s MAXBYTES #
TCONFIG s MAXBYTES 1 MAXBYTES 1
TCONFIG s MAXAGE
TCONFIG s MAXAGE #
TCONFIG s MAXAGE 1 MAXAGE 1
TCONFIG s COMPACT
TCONFIG s COMPACT maybe
TCONFIG s COMPACT 1
TCONFIG s COMPACT yes COMPACT yes
TCONFIG s MAXLEN 1 COMPACT maybe
TCONFIG s MAXLEN 1 UNKNOWN
TINFO
TINFO s s
TINFO ""
TINFO LONG
TINFO BYTES
TLEN
TLEN s s
TLEN ""
TKEYS * *
TKEYS BYTES
TDEL
TDEL ""
TDEL s ""
TDEL s LONG
"""

SPECIAL: dict[str, bytes] = {
    '""': b"",
    "LONG": LONG.encode(),
    "BYTES": b"\xff\xfe",
    "TAGTOOLONG": b"t" * 65_536,
}


def commands() -> list[list[str]]:
    found: list[list[str]] = []
    for line in WRONG.strip().splitlines():
        words = line.split(" ")
        for mark, values in (("#", NO_NATURALS), ("!", NO_NUMBERS)):
            if mark in words:
                at = words.index(mark)
                found += [[*words[:at], value, *words[at + 1 :]] for value in values]
                break
        else:
            found.append(words)
    return found


class Before(NamedTuple):
    name: str
    shown: list[object]


@pytest.fixture(scope="module")
def before(resp_opened: RespDoor) -> Before:
    """Five entries, three delivered, two of them pending; a producer that is at 2."""
    name = "wrong"
    resp_opened.write_many(name, numbered(5), producer=("p", 2))
    resp_opened.configure(name, Config(max_count=1000))
    resp_opened.read_group(name, "g", 3, retry_ms=NEVER_MS)
    resp_opened.ack(name, "g", 1)
    return Before(name, shown(resp_opened, name))


def shown(resp: RespDoor, name: str) -> list[object]:
    return [
        resp.info(name),
        resp.groups(name),
        resp.group_pending(name, "g"),
        resp.ask("TREAD", name, 0, 100, "FULL"),
    ]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_wrong_input_is_invalid_and_changes_nothing(
    resp: RespDoor, before: Before, words: list[str]
) -> None:
    """Wrong arity or syntax is -INVALID (docs/streams.md)."""
    special = {**SPECIAL, "s": before.name.encode()}
    streams = resp.ask("DBSIZE")
    with pytest.raises(redis.ResponseError, match=r"^INVALID ."):
        resp.ask_plainly(*(special.get(word, word) for word in words))
    assert shown(resp, before.name) == before.shown
    assert resp.ask("DBSIZE") == streams


def test_the_same_commands_without_their_mistake_are_understood(resp: RespDoor, name: str) -> None:
    """Keywords in any case and in any order: what makes the table above wrong is what it says."""
    ask = resp.ask
    assert ask("twrite", name, "backlog", 9, "Producer", "p", 1, "entries", "t", "x") == [0, 0]
    assert ask("TWRITE", name, "PRODUCER", "p", 2, "BACKLOG", 9, "ENTRIES", "t", "y") == [1, 1]
    assert ask("TWRITE", name, "META", "PRODUCER", "p", 3, "ENTRIES", "t", "z", "m") == [2, 2]
    assert ask("tread", name, 0, 1, "withinfo", "block", 5) == [[0, 2], [0, b"t", b"x"]]
    group: list[Word] = ["RETRY", 9_000_000, 0, "group", "g", "from", "First", "FULL", "BLOCK", 5]
    assert [row[0] for row in ask("TREAD", name, 0, 1, "WITHINFO", *group)] == [0, 0]
    assert ask("tgroup", "create", name, "h", "dead", "d", "maxpending", 5, "from", "NEW") == b"OK"
    assert ask("TGROUP", "set", name, "h", "First") == b"OK"
    assert ask("TGROUP", "PENDING", name, "g", 0, 1)[0][0] == 0
    assert ask("TCONFIG", name, "compact", "No", "maxlen", 5) == b"OK"
    assert ask("TACK", name, "g", "0-0") == 1
    assert ask("tevict", name, "-1") == 2


@pytest.mark.parametrize("words", [("TUNKNOWN", "a", "b"), ("XADD", "s", "*", "f", "v")])
def test_an_unknown_command_is_told_in_redis_own_words(
    resp: RespDoor, words: tuple[str, ...]
) -> None:
    """docs/streams.md: clients recognise the sentence."""
    with pytest.raises(redis.ResponseError, match=f"^unknown command '{words[0]}', with args "):
        resp.ask_plainly(*words)
