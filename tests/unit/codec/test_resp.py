"""RESP framing: requests in any pieces, hostile ones refused, replies in both protocols."""

from __future__ import annotations

import random

import hiredis
import pytest

from penstock.codec import resp
from penstock.codec.resp import (
    STRANGER,
    Failure,
    Limits,
    Parser,
    Reply,
    Simple,
    encode,
    encode_entries,
    encode_full_entries,
    error,
    split_inline,
)

SMALL = Limits(arguments=1000, bulk_bytes=1000, frame_bytes=5000, inline_bytes=64)


def frame(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


def parse(
    data: bytes, piece: int = 1 << 20, limits: Limits | None = None
) -> tuple[list[list[bytes]], str | None]:
    parser = Parser(limits or Limits())
    found: list[list[bytes]] = []
    for at in range(0, len(data), piece):
        found += parser.feed(data[at : at + piece])
    return found, parser.error


LONG = [b"TWRITE", b"key", b"ENTRIES", *(b"%d" % n for n in range(600))]
#: Payloads that look like what they are not.
TRICKY = [b"*1000000\r\n", b"\r\n*1000000000\r\n", b"$99999999\r\n", b"", b"123456", b"\r\n" * 9]


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 1000, 1 << 20])
def test_requests_are_the_same_whatever_pieces_they_come_in(piece: int) -> None:
    requests = [
        [b"PING"],
        LONG,
        [b"SET", b"", b"\r\n$3\r\n"],
        LONG,
        [*TRICKY, *LONG],
        [b"x" * 300_000] if piece > 64 else [b"x" * 3000],
        [b"ECHO", b"*1"],
    ]
    data = b"".join(frame(*request) for request in requests)
    assert parse(data, piece) == (requests, None)


def test_long_arrays_and_the_walk_agree_on_random_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(7)
    for _ in range(60):
        words = [
            rng.choice([*TRICKY, rng.randbytes(rng.randrange(40)), b"%d" % rng.getrandbits(60)])
            for _ in range(rng.randrange(190, 600))
        ]
        data = frame(*words) * rng.randrange(1, 4) + frame(b"PING")
        piece = rng.choice([100, 1111, 4096, len(data)])
        fast = parse(data, piece)
        with monkeypatch.context() as patch:
            patch.setattr(resp, "_BULKY_ARGUMENTS", 1 << 60)
            assert fast == parse(data, piece)
        assert fast[0][-1] == [b"PING"]


def test_hiredis_is_used_for_long_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Reader(hiredis.Reader):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            made.append(1)
            super().__init__()

    monkeypatch.setattr(hiredis, "Reader", Reader)
    # A request that comes as a whole is cut at its line ends, unless a payload has some.
    assert parse(frame(*LONG)) == ([LONG], None)
    assert not made
    tricky = [*LONG, b"\r\n"]
    assert parse(frame(*tricky)) == ([tricky], None)
    assert made
    made.clear()
    assert parse(frame(b"PING")) == ([[b"PING"]], None)
    assert not made


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"*1000000000\r\n", "invalid multibulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*99999999999999999999999999\r\n", "invalid multibulk length"),
        (b"*" + b"9" * 40, "invalid multibulk length"),
        (b"*abc\r\n", "invalid multibulk length"),
        (b"*1_0\r\n", "invalid multibulk length"),
        (b"* 1\r\n", "invalid multibulk length"),
        (b"*1\r\n$9999999999\r\n", "invalid bulk length"),
        (b"*1\r\n$67174401\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$+1\r\n", "invalid bulk length"),
        (b"*1\r\n$" + b"1" * 40, "invalid bulk length"),
        (b"*1\r\n*1000000000\r\n", "expected '$', got '*'"),
        (b"*2\r\n$1\r\na\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n\x00", "expected '$', got '?'"),
        # The same inside a long array, where hiredis would make room for them.
        (b"*300\r\n*1000000000\r\n", "expected '$', got '*'"),
        (b"*300\r\n$1\r\naXX*1000000000\r\n", "expected '$', got '*'"),
        (b"*300\r\n$1\r\na\r\n%500000\r\n", "expected '$', got '%'"),
        (b"*300\r\n$1\r\na\r\n$9999999999\r\n", "invalid bulk length"),
        (b"*300\r\n" + b"$1\r\na\r\n" * 299 + b"$-1\r\n", "invalid bulk length"),
        (b"*300\r\n" + b"$1\r\na\r\n" * 299 + b":1\r\n", "expected '$', got ':'"),
        (b"*300\r\n" + b"$1\r\na\r\n" * 299 + b"*0\r\n", "expected '$', got '*'"),
        (b"*300\r\n" + b"$1\r\na\r\n" * 299 + b"@\r\n", "expected '$', got '@'"),
        (b"x" * 65537, "too big inline request"),
        (b"x" * 65537 + b"\n", "too big inline request"),
        (b'SET "a\r\n', "unbalanced quotes in request"),
    ],
)
@pytest.mark.parametrize("piece", [5, 1 << 20])
def test_what_is_no_request_is_an_error_in_redis_words(
    data: bytes, expected: str, piece: int
) -> None:
    found, problem = parse(frame(b"PING") + data, piece)
    assert found == [[b"PING"]]
    assert problem == expected


def test_nothing_is_parsed_after_an_error() -> None:
    parser = Parser(Limits())
    assert parser.feed(b"*x\r\n") == []
    assert parser.feed(frame(b"PING")) == []
    assert parser.held_bytes == 0


def test_a_header_that_announces_much_makes_hiredis_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The suspicious bytes must not reach it at all, in whatever pieces they come."""
    fed: list[bytes] = []

    class Reader:
        def __init__(self) -> None:
            self.reader = hiredis.Reader()

        def feed(self, data: bytes) -> None:
            fed.append(data)
            self.reader.feed(data)

        def __getattr__(self, name: str) -> object:
            return getattr(self.reader, name)

    class Module:
        pass

    module = Module()
    module.Reader = Reader  # type: ignore[attr-defined]
    monkeypatch.setattr(resp, "hiredis", module)
    for sign in b"*~%>|":
        header = b"%c1000000000\r\n" % sign
        for piece in (1, 4, 9, 1000):
            fed.clear()
            _, problem = parse(b"*300\r\n$1\r\na\r\n" + header, piece)
            assert problem is not None
            assert header not in b"".join(fed)


@pytest.mark.parametrize("count", [b"0", b"-1", b"-5"])
def test_an_array_of_nothing_is_skipped_as_redis_does(count: bytes) -> None:
    assert parse(b"*%b\r\n" % count + frame(b"PING")) == ([[b"PING"]], None)


def test_the_limits_hold_for_each_request() -> None:
    assert parse(frame(*[b"a"] * 1000), limits=SMALL)[1] == "too big request"  # 7006 bytes
    assert parse(frame(*[b"a"] * 1001), limits=SMALL)[1] == "invalid multibulk length"
    assert parse(frame(b"a" * 1001), limits=SMALL)[1] == "invalid bulk length"
    assert parse(frame(*[b"a" * 900] * 6), limits=SMALL)[1] == "too big request"
    assert parse(frame(*[b"a" * 900] * 5) * 3, limits=SMALL)[1] is None
    # One that does not end must not be waited for.
    for count in (b"*150\r\n", b"*900\r\n"):
        assert parse(count + b"$50\r\n" + b"a" * 50 + b"\r\n", limits=SMALL)[1] is None
        unfinished = count + (b"$50\r\n" + b"a" * 50 + b"\r\n") * 120
        assert parse(unfinished, 100, limits=SMALL)[1] == "too big request"


def test_a_payload_of_64_mib_passes() -> None:
    payload = b"x" * (64 << 20)
    found, problem = parse(frame(b"TWRITE", b"k", b"t", payload) + frame(b"PING"), 256 << 10)
    assert problem is None
    assert found == [[b"TWRITE", b"k", b"t", payload], [b"PING"]]


def test_a_stranger_may_send_little() -> None:
    assert parse(frame(*[b"a"] * 10), limits=STRANGER)[1] is None
    assert parse(frame(*[b"a"] * 11), limits=STRANGER)[1] == "unauthenticated multibulk length"
    assert parse(frame(b"a" * 16385), limits=STRANGER)[1] == "unauthenticated bulk length"


@pytest.mark.parametrize("size", [1, 7, 10_000, 1 << 20])
def test_what_only_a_stranger_may_not_send_goes_on_once_he_is_none(size: int) -> None:
    requests = [[b"PING"], [b"a"] * 3 + [b"b" * 16385, b"c"], [b"d"] * 11, [b"e"] * 500, [b"f"]]
    raw = b"".join(frame(*words) for words in requests)
    for admitted in (0, 1, 5000):  # so much of the error's rest is there by then
        parser = Parser(STRANGER)
        found: list[list[bytes]] = []
        missing = admitted
        for at in range(0, len(raw), size):
            found += parser.feed(raw[at : at + size])
            if parser.error is not None:
                missing -= size
                if missing <= 0:
                    assert parser.error == "unauthenticated bulk length"
                    assert parser.held_bytes > 0
                    found += parser.admit(Limits())
        assert parser.error is None
        assert found == requests
        assert parser.held_bytes == 0


def test_what_a_stranger_may_not_send_is_kept_for_him_up_to_a_bound() -> None:
    parser = Parser(STRANGER)
    for _ in range(100):
        parser.feed(frame(b"x" * 20_000))
    assert parser.held_bytes == 0
    assert parser.admit(Limits()) == []
    assert parser.error == "unauthenticated bulk length"


def test_what_is_held_is_told() -> None:
    parser = Parser(Limits())
    assert parser.held_bytes == 0
    parser.feed(b"*2\r\n$1000000\r\n" + b"x" * 500_000)
    assert parser.held_bytes > 500_000
    parser.feed(b"x" * 500_000 + b"\r\n$1\r\n")
    assert parser.held_bytes > 1_000_000
    assert len(parser.feed(b"y\r\n")) == 1
    assert parser.held_bytes == 0
    parser.feed(b"*1000\r\n" + b"$1\r\na\r\n" * 900)
    assert parser.held_bytes > 6000


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", []),
        (b"  \t ", []),
        (b"PING\r", [b"PING"]),
        (b"  set  a   b ", [b"set", b"a", b"b"]),
        (b'"a b" c', [b"a b", b"c"]),
        (rb'"\x41\x0a\n\r\t\b\a\\\"\q"', [b"A\n\n\r\t\b\a\\\"q"]),
        (rb'"\xZZ"', [b"xZZ"]),
        (rb"'a\'b\n'", [rb"a'b\n"]),
        (b'""', [b""]),
        (b"a\"b c\"", [b"ab c"]),
        (b'"a"b', None),
        (b'"a', None),
        (b"'a", None),
        (b'"a\\', None),
    ],
)  # fmt: skip
def test_inline_words_are_split_as_redis_does(line: bytes, words: list[bytes] | None) -> None:
    assert split_inline(line) == words


def test_inline_and_arrays_mix() -> None:
    data = b"PING\r\n\r\n" + frame(b"ECHO", b"x") + b"ping a\nping b\r\n"
    expected = [[b"PING"], [b"ECHO", b"x"], [b"ping", b"a"], [b"ping", b"b"]]
    assert parse(data) == (expected, None)
    assert parse(data, 1) == (expected, None)


@pytest.mark.parametrize(
    ("value", "resp2", "resp3"),
    [
        (None, b"$-1\r\n", b"_\r\n"),
        (True, b":1\r\n", b"#t\r\n"),
        (False, b":0\r\n", b"#f\r\n"),
        (-5, b":-5\r\n", b":-5\r\n"),
        (1.5, b"$3\r\n1.5\r\n", b",1.5\r\n"),
        (b"a\r\n", b"$3\r\na\r\n\r\n", b"$3\r\na\r\n\r\n"),
        ("ä", b"$2\r\n\xc3\xa4\r\n", b"$2\r\n\xc3\xa4\r\n"),
        (Simple("OK"), b"+OK\r\n", b"+OK\r\n"),
        (Failure("INVALID", "a\r\nb"), b"-INVALID a b\r\n", b"-INVALID a b\r\n"),
        ([], b"*0\r\n", b"*0\r\n"),
        ([1, [b"a"]], b"*2\r\n:1\r\n*1\r\n$1\r\na\r\n", b"*2\r\n:1\r\n*1\r\n$1\r\na\r\n"),
        ({"a": 1}, b"*2\r\n$1\r\na\r\n:1\r\n", b"%1\r\n$1\r\na\r\n:1\r\n"),
    ],
)
def test_replies_in_both_protocols(value: Reply, resp2: bytes, resp3: bytes) -> None:
    assert encode(value, 2) == resp2
    assert encode(value, 3) == resp3


def test_an_error_is_one_line_whatever_its_text() -> None:
    assert error("ERR", "a\r\n+OK\r\n\ud800") == b"-ERR a +OK \\ud800\r\n"


def decode(data: bytes, count: int) -> object:
    reader = hiredis.Reader()
    reader.feed(b"*%d\r\n" % count + data)
    found = reader.gets()
    assert not reader.has_data()
    return found


@pytest.mark.parametrize("first", [0, 995, 999, 1000, 123_456, 999_999, 10**18])
def test_entries_are_encoded_as_a_client_reads_them(first: int) -> None:
    tags = [b"", b"t", b"x" * 5000] * 5
    data = [b"a" * (n * 300) for n in range(15)]
    metas = [None, b"m", b""] * 5
    times = list(range(15))
    offsets = range(first, first + 15)
    assert decode(encode_entries(first, tags, data), 15) == [
        list(row) for row in zip(offsets, tags, data, strict=True)
    ]
    for protocol in (2, 3):
        assert decode(encode_full_entries(first, tags, data, times, metas, protocol), 15) == [
            [offset, tag, item, time, meta or None]
            for offset, tag, item, time, meta in zip(offsets, tags, data, times, metas, strict=True)
        ]
    untagged = [list(row) for row in zip(offsets, [b""] * 15, data, strict=True)]
    assert decode(encode_entries(first, None, data), 15) == untagged
    assert decode(encode_entries(first, None, data[:13]), 13) == untagged[:13]
    assert encode_entries(first, [], []) == encode_entries(first, None, []) == b""
