"""The queue commands as tables: words -> requests, or what is wrong with them."""

from __future__ import annotations

import shlex

import pytest

from penstock.errors import InvalidError
from penstock.queue.backoff import Backoff
from penstock.queue.item import Bare, Item
from penstock.queue.state import queue_name
from penstock.server.resp.commands import COMMANDS, key_positions
from penstock.server.resp.parsers import PARSERS
from penstock.server.resp.queue_grammar import (
    AckReceipts,
    Alter,
    Claim,
    Create,
    Describe,
    Drop,
    Extend,
    Fail,
    ListDone,
    ListFailed,
    Ls,
    Pause,
    Peek,
    Play,
    Publish,
    Purge,
    Reclaiming,
    Redrive,
    Release,
    ShowAttempts,
    ShowStats,
    backoff_of,
    backoff_word,
)

Q = queue_name("q")


def parse(line: str) -> object:
    words = [word.encode("utf-8", "surrogateescape") for word in shlex.split(line)]
    command = COMMANDS[words[0].decode().upper()]
    command.check_arity(len(words))
    return PARSERS[command.name](words)


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("QUEUE.CREATE q", Create(Q, {})),
        (
            "queue.create q FILTER \"a = 'b'\" PRIORITY 'CASE WHEN x = 1 THEN 1 ELSE 2 END' "
            "LEASE 5 MAXLEASE 6 MAXATTEMPTS 7 BACKOFF 500 DONERETENTION 8 START first",
            Create(
                Q,
                {
                    "filter": "a = 'b'", "priority": "CASE WHEN x = 1 THEN 1 ELSE 2 END",
                    "lease_ms": 5, "max_lease_ms": 6, "max_attempts": 7,
                    "backoff": Backoff(0.5, 1.0, 0.5, 0.0), "done_retention_s": 8,
                },
                "first",
            ),
        ),
        ("QUEUE.CREATE q start NEW", Create(Q, {}, "new")),
        ("QUEUE.ALTER q FILTER '' BACKOFF default", Alter(Q, {"filter": None, "backoff": None})),
        ("QUEUE.ALTER q", Alter(Q, {})),
        ("QUEUE.DEL q", Drop(Q)),
        ("QUEUE.LS", Ls("*")),
        ("QUEUE.LS a*", Ls("a*")),
        ("QUEUE.INFO q", Describe(Q)),
        ("QUEUE.STATS q", ShowStats(Q)),
        ("QUEUE.PAUSE q", Pause(Q)),
        ("QUEUE.PLAY q", Play(Q)),
        ("QUEUE.PURGE q", Purge(Q)),
        ("QUEUE.CONFIG reclaim RETENTION", Reclaiming("retention")),
        ("QUEUE.CONFIG RECLAIM done", Reclaiming("done")),
        ("QUEUE.PUBLISH p", Publish([Item(b"p")], one=True)),
        ("QUEUE.PUBLISH ''", Publish([Item(b"")], one=True)),
        ("QUEUE.PUBLISH \udcff", Publish([Item(b"\xff")], one=True)),
        ("QUEUE.PUBLISH TO", Publish([Item(b"TO")], one=True)),
        ("QUEUE.PUBLISH s3://x TO q URI", Publish([Item(uri="s3://x", to="q")], one=True)),
        (
            "QUEUE.PUBLISH p TO q DELAY 5 RETENTION 6 DEDUP d CREATED 7 "
            "HEADERS 2 region eu TO 'with space'",
            Publish(
                [
                    Item(
                        b"p", None, {"region": "eu", "TO": "with space"}, "q", 5, None, 6, "d", 7
                    )
                ],
                one=True,
            ),
        ),
        ("QUEUE.PUBLISH p VISIBLE 9 headers 0", Publish([Item(b"p", visible_at_ms=9)], one=True)),
        ("QUEUE.PUBLISHMANY PAYLOAD a payload b", Publish(Bare([b"a", b"b"]))),
        (
            "QUEUE.PUBLISHMANY PAYLOAD a TO q PAYLOAD b TO q",
            Publish([Item(b"a", to="q"), Item(b"b", to="q")]),
        ),
        ("QUEUE.PUBLISHMANY PAYLOAD PAYLOAD", Publish(Bare([b"PAYLOAD"]))),
        (
            "QUEUE.PUBLISHMANY PAYLOAD a TO q URI s3://x DELAY 1 PAYLOAD URI HEADERS 1 URI PAYLOAD",
            Publish(
                [
                    Item(b"a", to="q"),
                    Item(uri="s3://x", delay_ms=1),
                    Item(b"URI", headers={"URI": "PAYLOAD"}),
                ]
            ),
        ),
        ("QUEUE.CLAIM q 10", Claim(Q, 10)),
        ("QUEUE.CLAIM q 10 WAIT 0", Claim(Q, 10)),
        ("QUEUE.CLAIM q 1 wait INF", Claim(Q, 1, None)),
        ("QUEUE.CLAIM q 1 CONSUMER w LEASE 5 WAIT 7", Claim(Q, 1, 7, 5, "w")),
        ("QUEUE.CLAIM q 1 rows", Claim(Q, 1, rows=True)),
        ("QUEUE.PEEK q 3", Peek(Q, 3)),
        ("QUEUE.ACK q a b", AckReceipts(Q, ["a", "b"])),
        ("QUEUE.ACK q \udcff", AckReceipts(Q, ["\xff"])),
        ("QUEUE.FAIL q a", Fail(Q, ["a"])),
        ("QUEUE.FAIL q REASON 'no disk' DELAY 5 a b", Fail(Q, ["a", "b"], 5, "no disk")),
        ("QUEUE.EXTEND q 500 a b", Extend(Q, ["a", "b"], 500)),
        ("QUEUE.RELEASE q a", Release(Q, ["a"])),
        ("QUEUE.DONE q", ListDone(Q)),
        ("QUEUE.DONE q 5", ListDone(Q, 5)),
        ("QUEUE.FAILED q 5", ListFailed(Q, 5)),
        ("QUEUE.ATTEMPTS q 7", ShowAttempts(Q, 7)),
        ("QUEUE.REDRIVE q", Redrive(Q)),
        ("QUEUE.REDRIVE q WITHEXPIRED", Redrive(Q, None, with_expired=True)),
        ("QUEUE.REDRIVE q 1 2", Redrive(Q, [1, 2])),
    ],
)  # fmt: skip
def test_words_become_a_request(line: str, request_: object) -> None:
    assert parse(line) == request_


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("QUEUE.CREATE", "wrong number of arguments for 'queue.create' command"),
        ("QUEUE.CREATE ''", "queue name of 0 bytes"),
        ("QUEUE.CREATE \udcff", "a queue's name is not valid UTF-8"),
        ("QUEUE.CREATE q LEASE", "the value of LEASE is missing"),
        ("QUEUE.CREATE q LEASE -1", "LEASE is at least 0"),
        ("QUEUE.CREATE q LEASE 1 LEASE 2", "LEASE is given twice"),
        ("QUEUE.CREATE q START middle", "START is first or new"),
        ("QUEUE.CREATE q FILTER \udcff", "FILTER is not valid UTF-8"),
        ("QUEUE.CREATE q BACKOFF soon", "BACKOFF is milliseconds or a policy, not 'soon'"),
        ("QUEUE.CREATE q BACKOFF base=x", "BACKOFF: base is a number, not 'x'"),
        ("QUEUE.CREATE q BACKOFF base=1,base=2", "BACKOFF is milliseconds or a policy"),
        ("QUEUE.CREATE q BACKOFF -5", "BACKOFF is milliseconds or a policy, not '-5'"),
        ("QUEUE.ALTER q START new", "'START' is not an option of QUEUE.ALTER"),
        ("QUEUE.ALTER q PAUSED 1", "'PAUSED' is not an option of QUEUE.ALTER"),
        ("QUEUE.LS a b", "'b' is not an option of QUEUE.LS"),
        ("QUEUE.CONFIG RECLAIM maybe", "RECLAIM is done or retention"),
        ("QUEUE.CONFIG FOO done", "'FOO' is not an option of QUEUE.CONFIG"),
        ("QUEUE.PUBLISH", "wrong number of arguments"),
        ("QUEUE.PUBLISH p q", "'q' is not an option of QUEUE.PUBLISH"),
        ("QUEUE.PUBLISH p PAYLOAD q", "'PAYLOAD' is not an option of QUEUE.PUBLISH"),
        ("QUEUE.PUBLISH p TO", "the queue of TO is missing"),
        ("QUEUE.PUBLISH p TO a TO b", "TO is given twice"),
        ("QUEUE.PUBLISH p DELAY 1.5", "DELAY is a whole number, not '1.5'"),
        ("QUEUE.PUBLISH p DELAY 1 VISIBLE 1", "DELAY or VISIBLE, not both"),
        ("QUEUE.PUBLISH p HEADERS 2 a b", "a name or value of HEADERS is missing"),
        ("QUEUE.PUBLISH p HEADERS 9223372036854775807 a b", "HEADERS is too large"),
        ("QUEUE.PUBLISH p HEADERS 2 a b a c", "a header is given twice"),
        ("QUEUE.PUBLISH p HEADERS 1 a \udcff", "a header is not valid UTF-8"),
        ("QUEUE.PUBLISH \udcff URI", "a URI is not valid UTF-8"),
        ("QUEUE.PUBLISHMANY PAYLOAD", "wrong number of arguments"),
        ("QUEUE.PUBLISHMANY a b", "a message begins with PAYLOAD or URI, not with 'A'"),
        ("QUEUE.PUBLISHMANY PAYLOAD a b", "'b' is not an option of QUEUE.PUBLISHMANY"),
        ("QUEUE.PUBLISHMANY PAYLOAD a URI", "what comes after URI is missing"),
        ("QUEUE.CLAIM q", "wrong number of arguments"),
        ("QUEUE.CLAIM q x", "count is a whole number, not 'x'"),
        ("QUEUE.CLAIM q -1", "count is at least 0"),
        ("QUEUE.CLAIM q 1 WAIT -1", "WAIT is at least 0"),
        ("QUEUE.CLAIM q 1 BLOCK 1", "'BLOCK' is not an option of QUEUE.CLAIM"),
        ("QUEUE.FAIL q DELAY 5", "a receipt is missing"),
        ("QUEUE.FAIL q REASON", "the text of REASON is missing"),
        ("QUEUE.EXTEND q x r", "milliseconds is a whole number"),
        ("QUEUE.DONE q 1 2", "'2' is not an option of QUEUE.DONE"),
        ("QUEUE.FAILED q x", "cursor is a whole number"),
        ("QUEUE.ATTEMPTS q x", "id is a whole number"),
        ("QUEUE.REDRIVE q x", "id is a whole number"),
    ],
)
def test_wrong_words_say_what_is_wrong(line: str, message: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse(line)
    assert message in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "backoff",
    [
        Backoff(),
        Backoff(0.1, 3.0, 0.7, 0.25),
        Backoff(0.0, 1.0, 0.0, 0.0),
        Backoff(1 / 1024, 1.1, 123456.789, 1.0),
    ],
)
def test_a_backoff_comes_back_as_it_was(backoff: Backoff) -> None:
    assert backoff_of(backoff_word(backoff).encode()) == backoff


def test_a_policy_may_leave_parts_out() -> None:
    assert backoff_of(b"cap=5000, BASE=250") == Backoff(base=0.25, cap=5.0)
    assert backoff_of(b"DEFAULT") is None
    assert backoff_of(b"0") == Backoff(0.0, 1.0, 0.0, 0.0)


def test_a_queue_is_a_key_where_there_is_one() -> None:
    assert key_positions(COMMANDS["QUEUE.CLAIM"], 3) == [1]
    assert key_positions(COMMANDS["QUEUE.PUBLISH"], 3) == []
