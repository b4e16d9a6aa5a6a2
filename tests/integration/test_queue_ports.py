"""The queues that announce files, one suite over each of them, with leases that really end.

What the suite waits for is a message; a lease that is over shows in nothing else.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
import pytest

import penstock
from penstock.client.database import Database
from penstock.clock import SystemClock
from penstock.errors import InvalidError, NotFoundError, UnavailableError
from penstock.source.memoryqueue import MemoryQueue
from penstock.source.queueport import Limits, Queue, Received, limits_of
from penstock.spark.queueports import PenstockQueue, open_queue
from penstock.spark.sqs import Address, SqsQueue, parse_address

CLOCK = SystemClock()
#: For the first message; none of these tests waits for it in vain.
PATIENCE = 60.0

Send = Callable[[str], None]


class Place:
    """Somewhere to have queues with a lease of so many seconds."""

    def __init__(self, make: Callable[[float], tuple[Queue, Send]], shortest: float) -> None:
        self.make = make
        self.shortest = shortest  # seconds; a lease that a test lets end


@pytest.fixture
def database() -> Iterator[Database]:
    with penstock.open(f"memory://ports-{next(_numbers)}") as database:
        yield database


_numbers = itertools.count(1)


@pytest.fixture(params=["memory", "penstock", "sqs"])
def place(request: pytest.FixtureRequest, database: Database) -> Place:
    def penstock_queue(lease: float) -> tuple[Queue, Send]:
        name = f"q{next(_numbers)}"
        database.create_queue(name, lease=lease, backoff=0)
        port = open_queue(database, name, clock=CLOCK)
        return port, lambda body: void(database.publish(body.encode(), to=name))

    def sqs_queue(lease: float) -> tuple[Queue, Send]:
        client, url = make_sqs(VisibilityTimeout=str(round(lease)))
        port = open_queue(database, url, clock=CLOCK)
        return port, lambda body: void(client.send_message(QueueUrl=url, MessageBody=body))

    def memory_queue(lease: float) -> tuple[Queue, Send]:
        port = MemoryQueue(lease=lease, clock=CLOCK)
        return open_queue(database, port, clock=CLOCK), lambda body: void(port.send(body))

    if request.param == "memory":
        return Place(memory_queue, 0.1)
    if request.param == "penstock":
        return Place(penstock_queue, 0.2)
    request.getfixturevalue("server")
    return Place(sqs_queue, 1.0)


def void(_: object) -> None:
    pass


def make_sqs(**attributes: str) -> tuple[Any, str]:
    client = boto3.client("sqs", endpoint_url=os.environ["AWS_ENDPOINT"])
    return client, client.create_queue(QueueName=f"q{next(_numbers)}", Attributes=attributes)[
        "QueueUrl"
    ]


def bodies(received: Sequence[Received]) -> list[bytes]:
    return sorted(each.body for each in received)


def test_all_messages_come_in_one_call_and_only_once_while_they_are_leased(place: Place) -> None:
    port, send = place.make(600)
    for i in range(23):
        send(f"m{i}")
    began = CLOCK.monotonic()
    received = port.receive(22, PATIENCE)
    assert len(received) == 22
    assert {each.attempts for each in received} == {1}
    assert all(began < each.deadline - 500 < CLOCK.monotonic() + 100 for each in received)
    rest = port.receive(22, PATIENCE)
    assert bodies([*received, *rest]) == sorted(f"m{i}".encode() for i in range(23))
    assert len({each.id for each in [*received, *rest]}) == 23
    assert port.receive(22, 0) == []


def test_a_message_whose_lease_ended_comes_again_with_its_id_and_one_more_attempt(
    place: Place,
) -> None:
    port, send = place.make(place.shortest)
    send("m")
    (first,) = port.receive(10, PATIENCE)
    (second,) = port.receive(10, PATIENCE)
    assert (second.id, second.body, second.attempts) == (first.id, first.body, 2)
    assert second.deadline > first.deadline
    assert second.handle != first.handle


def test_an_acknowledged_message_does_not_come_again(place: Place) -> None:
    port, send = place.make(place.shortest)
    for i in range(12):
        send(f"m{i}")
    acknowledged: set[str] = set()
    while len(acknowledged) < 12:  # a slow queue brings fewer, and a lease may be over by then
        received = port.receive(12, PATIENCE)
        assert acknowledged.isdisjoint(each.id for each in received)
        truths = port.acknowledge(received)
        acknowledged |= {each.id for each, true in zip(received, truths, strict=True) if true}
    send("last")
    (last,) = port.receive(100, PATIENCE)
    assert last.body == b"last"
    # By now the others would be back: their leases were as long as this one's, and began before.
    (again,) = port.receive(100, PATIENCE)
    assert (again.body, again.attempts) == (b"last", 2)
    assert port.acknowledge([]) == []


def test_an_extended_message_stays_away_for_that_long(place: Place) -> None:
    port, send = place.make(place.shortest)
    send("long")
    for _ in range(10):  # on a busy machine a lease may be over before it is extended
        (long,) = port.receive(10, PATIENCE)
        began = CLOCK.monotonic()
        deadline = port.extend(long, 600)
        if deadline is not None:
            break
    assert deadline is not None
    assert began + 600 <= deadline <= CLOCK.monotonic() + 601
    send("short")
    for attempts in (1, 2, 3):  # it comes and goes, and the other one never with it
        (short,) = port.receive(10, PATIENCE)
        assert (short.body, short.attempts) == (b"short", attempts)
    assert port.acknowledge([long]) == [True]


def test_what_is_not_a_lease_is_neither_extended_nor_acknowledged(place: Place) -> None:
    port, send = place.make(600)
    send("m")
    (received,) = port.receive(10, PATIENCE)
    assert port.acknowledge([received]) == [True]
    assert port.extend(received, 60) is None


def test_a_waiting_receiver_gets_what_is_sent_meanwhile(place: Place) -> None:
    """Also when it waits for longer than a lease: its deadline is not over when it comes."""
    port, send = place.make(place.shortest)
    timer = threading.Timer(1.5 * place.shortest, send, ["late"])
    timer.start()
    (late,) = port.receive(10, PATIENCE)
    assert late.body == b"late"
    timer.join()


def test_limits_are_those_of_the_queue(database: Database, server: None) -> None:
    database.create_queue("short", lease=7, max_lease=70)
    assert limits_of(open_queue(database, "short", clock=CLOCK)) == Limits(lease=7, lease_max=70)
    _, url = make_sqs(VisibilityTimeout="11", MessageRetentionPeriod="3600")
    assert limits_of(open_queue(database, url, clock=CLOCK)) == Limits(11, 43_200, 3_600)


# ---- Penstock's own ---------------------------------------------------------------------------


def test_a_queue_of_the_location_gives_up_on_no_message_and_says_so(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    queue = database.create_queue("q", max_attempts=1, lease=0.05, backoff=0)
    database.publish(b"m", to="q")
    (message,) = queue.claim(1, wait=PATIENCE)
    assert message.fail()
    database.publish(b"n", to="q")
    with caplog.at_level(logging.WARNING, "penstock"):
        port = open_queue(database, "q", clock=CLOCK)
        assert queue.describe().max_attempts == 1  # who only looks changes nothing
        assert isinstance(port, PenstockQueue)
        port.begin()
    assert queue.describe().max_attempts == 0
    assert [record.getMessage() for record in caplog.records] == [
        "queue 'q': max_attempts was 1 and is 0 now: the source counts failures",
        "queue 'q': 1 announcements had failed before; queue.redrive() brings them back",
    ]
    for attempts in (1, 2, 3):
        (received,) = port.receive(1, PATIENCE)
        assert (received.body, received.attempts) == (b"n", attempts)


def test_a_uri_is_received_as_one_and_its_text_is_the_body(database: Database) -> None:
    database.create_queue("q")
    database.publish(penstock.URI("file:///a%20b"), to="q", dedup_id="once")
    (received,) = open_queue(database, "q", clock=CLOCK).receive(1, PATIENCE)
    assert (received.uri, received.body) == ("file:///a%20b", b"file:///a%20b")
    assert received.dedup_id == "once"


def test_a_queue_that_is_not_there_is_not_found(database: Database) -> None:
    with pytest.raises(NotFoundError) as caught:
        open_queue(database, "nope", clock=CLOCK)
    assert "penstock watch" in caught.value.hint


def test_an_object_with_the_three_methods_is_taken_as_it_is_and_nothing_else(
    database: Database,
) -> None:
    class Mine:
        def receive(self, max_messages: int, wait: float) -> list[Received]:
            return []

        def extend(self, received: Received, seconds: float) -> float | None:
            return None

        def acknowledge(self, received: Sequence[Received]) -> list[bool]:
            return []

    mine = Mine()
    assert open_queue(database, mine, clock=CLOCK) is mine
    assert limits_of(mine) == Limits()
    with pytest.raises(InvalidError, match="not dict"):
        open_queue(database, {}, clock=CLOCK)


# ---- SQS --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("sqs://uploads", Address("uploads", None, None, None)),
        ("sqs://up.fifo?region=eu-west-1", Address("up.fifo", None, "eu-west-1", None)),
        (
            "sqs://q?endpoint=http://127.0.0.1:99&region=x",
            Address("q", None, "x", "http://127.0.0.1:99"),
        ),
        (
            "sqs://127.0.0.1:99/1/q",
            Address("q", "http://127.0.0.1:99/1/q", None, "http://127.0.0.1:99"),
        ),
        (
            "sqs://http://127.0.0.1:99/1/q",
            Address("q", "http://127.0.0.1:99/1/q", None, "http://127.0.0.1:99"),
        ),
        (
            "http://queue.local/1/q",
            Address("q", "http://queue.local/1/q", None, "http://queue.local"),
        ),
        (
            "sqs://sqs.eu-west-1.amazonaws.com/123/q",
            Address("q", "https://sqs.eu-west-1.amazonaws.com/123/q", "eu-west-1", None),
        ),
        (
            "https://eu-west-2.queue.amazonaws.com/123/q",
            Address("q", "https://eu-west-2.queue.amazonaws.com/123/q", "eu-west-2", None),
        ),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sqs://", "is not a name"),
        ("sqs:uploads", "two slashes"),
        ("sqs://a/b", "a host, an account and a name"),
        ("sqs://host:1//q", "a host, an account and a name"),
        ("sqs://q?visibility=3", "no option 'visibility'"),
        ("sqs://q?endpoint=localhost", "an endpoint is a URL"),
        ("sqs://me:secret@host:1/1/q", "credentials"),
        ("sqs://with space", "is not a name"),
        ("http://just-a-host", "a host, an account and a name"),
    ],
)
def test_addresses_that_are_none(text: str, reason: str) -> None:
    with pytest.raises(InvalidError, match=reason) as caught:
        parse_address(text)
    assert caught.value.hint.startswith("sqs://NAME")


def test_a_queue_of_sqs_is_found_by_its_name_and_a_missing_one_is_not(
    database: Database, server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, url = make_sqs()
    name = url.rpartition("/")[2]
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", os.environ["AWS_ENDPOINT"])
    client.send_message(QueueUrl=url, MessageBody="ünï")
    (received,) = open_queue(database, f"sqs://{name}", clock=CLOCK).receive(10, PATIENCE)
    assert received.body == "ünï".encode()
    for missing in ("sqs://nope", url + "x"):
        with pytest.raises(NotFoundError, match="no such queue"):
            open_queue(database, missing, clock=CLOCK)


@pytest.mark.parametrize(("wait", "asked"), [(0.0, [1]), (0.3, [1]), (7.2, [7]), (60.0, [7])])
def test_sqs_is_asked_on_all_of_its_servers_before_a_queue_counts_as_empty(
    wait: float, asked: list[int]
) -> None:
    """A call that does not wait at all asks some of them, and may miss what is there."""

    class Client:
        def __init__(self) -> None:
            self.waits: list[int] = []

        def receive_message(self, **request: Any) -> dict[str, Any]:
            self.waits.append(request["WaitTimeSeconds"])
            clock.now += request["WaitTimeSeconds"] or 0.01
            return {}

    class Clock(SystemClock):
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    client, clock = Client(), Clock()
    queue = SqsQueue(client, "url", clock=clock, attributes={"VisibilityTimeout": "30"})
    assert queue.receive(10, wait) == []
    assert client.waits[:1] == asked
    assert all(client.waits)
    assert sum(client.waits) >= wait


def test_a_fifo_queue_tells_the_dedup_id(database: Database, server: None) -> None:
    client = boto3.client("sqs", endpoint_url=os.environ["AWS_ENDPOINT"])
    url = client.create_queue(QueueName="a.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    client.send_message(
        QueueUrl=url, MessageBody="m", MessageGroupId="g", MessageDeduplicationId="once"
    )
    (received,) = open_queue(database, url, clock=CLOCK).receive(10, PATIENCE)
    assert received.dedup_id == "once"


def test_a_redrive_policy_of_sqs_is_warned_of(
    database: Database, server: None, caplog: pytest.LogCaptureFixture
) -> None:
    client, dead = make_sqs()
    found = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    policy = f'{{"deadLetterTargetArn": "{found["Attributes"]["QueueArn"]}", "maxReceiveCount": 3}}'
    _, url = make_sqs(RedrivePolicy=policy)
    with caplog.at_level(logging.WARNING, "penstock"):
        open_queue(database, url, clock=CLOCK)
    (record,) = [each for each in caplog.records if each.name == "penstock"]
    assert record.getMessage().startswith(f"{url} moves messages away after 3 deliveries")


def test_a_server_that_is_gone_is_unavailable(
    server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(UnavailableError, match="Could not connect"):
        SqsQueue.open("sqs://127.0.0.1:1/1/q", clock=CLOCK)


def test_without_a_region_or_credentials_the_error_says_what_to_set(
    server: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(InvalidError, match="region") as caught:
        SqsQueue.open("sqs://q", clock=CLOCK)
    assert "AWS_REGION" in caught.value.hint
