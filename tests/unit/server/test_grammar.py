"""The stream commands as tables: words -> requests, or what is wrong with them."""

from __future__ import annotations

import shlex

import pytest

from penstock.errors import InvalidError
from penstock.log.catalogue import stream_name
from penstock.server.resp.commands import COMMANDS, key_positions
from penstock.server.resp.connection import find_command
from penstock.server.resp.grammar import (
    Ack,
    Configure,
    CountNames,
    Delete,
    Evict,
    Exists,
    GroupCreate,
    GroupDestroy,
    GroupPending,
    GroupSet,
    GroupShow,
    Info,
    Length,
    Names,
    Read,
    ReadGroup,
    Request,
    ShowConfig,
    Type,
    Write,
)
from penstock.server.resp.housekeeping import HANDLERS
from penstock.server.resp.parsers import PARSERS

K = stream_name("k")


def parse(line: str) -> object:
    words = [word.encode("utf-8", "surrogateescape") for word in shlex.split(line)]
    command = COMMANDS[words[0].decode().upper()]
    command.check_arity(len(words))
    return PARSERS[command.name](words)


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("TWRITE k t e", Write(K, [b"t"], [b"e"], simple=True)),
        ("twrite k ENTRIES e", Write(K, [b"ENTRIES"], [b"e"], simple=True)),
        ("TWRITE k ENTRIES t e", Write(K, [b"t"], [b"e"])),
        ("TWRITE k entries a 1 b 2", Write(K, [b"a", b"b"], [b"1", b"2"])),
        ("TWRITE k BACKLOG 5 ENTRIES t e", Write(K, [b"t"], [b"e"], backlog=5)),
        ("TWRITE k META ENTRIES t e m u f ''", Write(K, [b"t", b"u"], [b"e", b"f"], [b"m", b""])),
        (
            "TWRITE k producer p 7 backlog 0 ENTRIES ENTRIES ENTRIES",
            Write(K, [b"ENTRIES"], [b"ENTRIES"], None, 0, b"p", 7),
        ),
        ("TREAD k 0 10", Read(K, 0, 10)),
        ("TREAD k 0 10 BLOCK 5", Read(K, 0, 10, 5)),
        ("TREAD k 0 10 block 0", Read(K, 0, 10, None)),
        ("TREAD k 0 0 WITHINFO", Read(K, 0, 0, withinfo=True)),
        ("TREAD k 7 1 REVERSE full", Read(K, 7, 1, reverse=True, full=True)),
        ("TREAD k 7 1 RAW", Read(K, 7, 1, raw=True)),
        ("TREAD k 0 10 GROUP g", ReadGroup(K, b"g", 10)),
        ("TREAD k -1 10 GROUP g FROM new", ReadGroup(K, b"g", 10, start="new")),
        ("TREAD k 0 1 GROUP g from 12 BLOCK 0", ReadGroup(K, b"g", 1, None, start=12)),
        (
            "TREAD k 0 1 RETRY 5 0 GROUP g WITHINFO FULL",
            ReadGroup(K, b"g", 1, retry_ms=5, expire_ms=None, withinfo=True, full=True),
        ),
        ("TREAD k 0 1 GROUP g RETRY 5 9", ReadGroup(K, b"g", 1, retry_ms=5, expire_ms=9)),
        ("TEVICT k 5", Evict(K, up_to=5)),
        ("TEVICT k 0", Evict(K, up_to=0)),
        ("TEVICT k -5", Evict(K, keep=5)),
        ("TEVICT k -0", Evict(K, keep=0)),
        ("TACK k g 1 3-5 9", Ack(K, b"g", [1, (3, 5), 9])),
        ("TGROUP CREATE k g", GroupCreate(K, b"g")),
        (
            "TGROUP create k g FROM 3 MAXPENDING 5 DEAD d",
            GroupCreate(K, b"g", 3, 5, stream_name("d")),
        ),
        ("TGROUP SET k g first", GroupSet(K, b"g", "first")),
        ("TGROUP SET k g 5", GroupSet(K, b"g", 5)),
        ("TGROUP INFO k", GroupShow(K, None)),
        ("TGROUP INFO k g", GroupShow(K, b"g")),
        ("TGROUP PENDING k g", GroupPending(K, b"g")),
        ("TGROUP PENDING k g 5 7", GroupPending(K, b"g", 5, 7)),
        ("TGROUP DESTROY k g", GroupDestroy(K, b"g")),
        ("TCONFIG k", ShowConfig(K)),
        (
            "TCONFIG k MAXLEN 5 MAXBYTES 0 MAXAGE 7 COMPACT yes",
            Configure(K, {"max_count": 5, "max_bytes": None, "max_age_ms": 7, "compact": True}),
        ),
        ("TCONFIG k COMPACT no", Configure(K, {"compact": False})),
        ("TINFO k", Info(K)),
        ("TLEN k", Length(K)),
        ("TKEYS", Names("*")),
        ("TKEYS a*", Names("a*")),
        ("TDEL k l", Delete([K, stream_name("l")])),
        ("EXISTS k k", Exists([K, K])),
        ("TYPE k", Type(K)),
        ("DBSIZE", CountNames()),
    ],
)
def test_words_become_a_request(line: str, request_: Request) -> None:
    assert parse(line) == request_


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("TWRITE k t", "wrong number of arguments for 'twrite' command"),
        ("TWRITE k t e x", "'t' is not an option of TWRITE"),
        ("TWRITE k BACKLOG 5 ENTRIES", "ENTRIES takes 'tag entry', once or more"),
        ("TWRITE k ENTRIES t e u", "ENTRIES takes 'tag entry', once or more"),
        ("TWRITE k META ENTRIES t e", "ENTRIES takes 'tag entry meta', once or more"),
        ("TWRITE k BACKLOG x ENTRIES t e", "BACKLOG is a whole number, not 'x'"),
        ("TWRITE k BACKLOG -1 ENTRIES t e", "BACKLOG is at least 0"),
        ("TWRITE k BACKLOG 1 BACKLOG 2 ENTRIES t e", "BACKLOG is given twice"),
        ("TWRITE k PRODUCER p 1 t e", "'t' is not an option of TWRITE"),
        ("TWRITE k PRODUCER p 1 BACKLOG 1", "an option is missing"),
        ("TWRITE k PRODUCER p x ENTRIES t e", "the sequence is a whole number, not 'x'"),
        ("TWRITE '' t e", ""),
        ("TWRITE \udcff t e", "a stream's name is not valid UTF-8"),
        ("TREAD k 0", "wrong number of arguments for 'tread' command"),
        ("TREAD k x 1", "offset is a whole number, not 'x'"),
        ("TREAD k -1 1", "offset is at least 0"),
        ("TREAD k 1_0 1", "offset is a whole number, not '1_0'"),
        ("TREAD k 0 -1", "count is at least 0"),
        ("TREAD k 0 9223372036854775808", "count is a whole number"),
        ("TREAD k 0 1 BLOCK", "the milliseconds of BLOCK is missing"),
        ("TREAD k 0 1 BLOCK -1", "BLOCK is at least 0"),
        ("TREAD k 0 1 RETRY 1 1", "RETRY is for a GROUP"),
        ("TREAD k 0 1 GROUP g RETRY 1", "expire-ms of RETRY is missing"),
        ("TREAD k 0 1 GROUP ''", "group"),
        ("TREAD k 0 1 GROUP g FROM x", "FROM is a whole number, not 'x'"),
        ("TREAD k 0 1 FROM first", "'FROM' is not an option of TREAD"),
        ("TREAD k 0 1 GROUP g RAW", "RAW does not go with GROUP"),
        ("TREAD k 0 1 GROUP g REVERSE", "REVERSE does not go with GROUP"),
        ("TREAD k x 1 GROUP g", "offset is a whole number"),
        ("TREAD k 0 1 REVERSE BLOCK 1", "BLOCK waits for newer entries"),
        ("TREAD k 0 1 RAW FULL", "RAW has everything"),
        ("TREAD k 0 1 FULL FULL", "FULL is given twice"),
        ("TEVICT k x", "offset is a whole number, not 'x'"),
        ("TACK k g", "wrong number of arguments for 'tack' command"),
        ("TACK k g 5-3", "range 5-3 ends before it starts"),
        ("TACK k g -3", "offset is at least 0"),
        ("TACK k g 1-2-3", "end is a whole number, not '2-3'"),
        ("TACK k g 1-", "end is a whole number, not ''"),
        ("TGROUP FOO k g", "unknown subcommand 'FOO' of TGROUP"),
        ("TGROUP CREATE k", "the group is missing"),
        ("TGROUP CREATE k g MAXPENDING 0", "MAXPENDING is at least 1"),
        ("TGROUP CREATE k g x", "'x' is not an option of TGROUP"),
        ("TGROUP SET k g", "the offset is missing"),
        ("TGROUP SET k g 5 6", "'6' is not an option of TGROUP"),
        ("TGROUP DESTROY k g x", "'x' is not an option of TGROUP"),
        ("TCONFIG k MAXLEN", "the value of MAXLEN is missing"),
        ("TCONFIG k COMPACT maybe", "COMPACT is yes or no"),
        ("TCONFIG k FOO 1", "'FOO' is not an option of TCONFIG"),
        ("TKEYS a b", "TKEYS takes one pattern"),
        ("DBSIZE x", "wrong number of arguments for 'dbsize' command"),
    ],
)
def test_wrong_words_say_what_is_wrong(line: str, message: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse(line)
    assert message in str(caught.value)
    assert caught.value.hint


def test_every_command_has_exactly_one_handler() -> None:
    assert set(HANDLERS) | set(PARSERS) == set(COMMANDS)
    assert not set(HANDLERS) & set(PARSERS)


def test_commands_are_found_in_any_case() -> None:
    for word in (b"tread", b"TREAD", b"Tread", b"tReAd"):
        assert find_command(word) is COMMANDS["TREAD"]
    for word in (b"", b"nothing", b"\xff\xfe", "TREÄD".encode()):
        assert find_command(word) is None


def test_keys_are_found_by_their_positions() -> None:
    assert key_positions(COMMANDS["TDEL"], 4) == [1, 2, 3]
    assert key_positions(COMMANDS["TGROUP"], 4) == [2]
    assert key_positions(COMMANDS["TWRITE"], 4) == [1]
    assert key_positions(COMMANDS["PING"], 2) == []


def test_the_pieces_of_a_syntax_keep_their_brackets_together() -> None:
    assert COMMANDS["HELLO"].pieces() == [
        "[protover [AUTH username password] [SETNAME clientname]]"
    ]
    assert COMMANDS["TREAD"].pieces()[:5] == [
        "key", "offset", "count", "[BLOCK milliseconds]", "[GROUP name [FROM first|new|offset]]",
    ]  # fmt: skip
