"""Messages as producers give them become items, or an error that says which one is wrong."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from penstock import URI, InvalidError, Publish
from penstock.client.publish import item_of, items_of, seconds_up, time_of
from penstock.queue.item import PAYLOAD_BYTES_MAX, Item

T = datetime(2030, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
T_MS = 1_893_553_445_678


def test_every_way_to_write_a_message() -> None:
    assert items_of(
        [
            b"bare",
            bytearray(b"array"),
            memoryview(b"view"),
            (b"pair", {"a": "b"}),
            URI("s3://bucket/key"),
            (URI("s3://x"), {}),
            Publish(b"x", to="eu", delay=5),
            Publish(
                b"y", {"a": "b"}, retention=1.2, dedup_id="d", created_at=T, visible_at=T
            ),
        ]
    ) == [
        Item(b"bare"),
        Item(b"array"),
        Item(b"view"),
        Item(b"pair", headers={"a": "b"}),
        Item(uri="s3://bucket/key"),
        Item(uri="s3://x"),
        Item(b"x", to="eu", delay_ms=5000),
        Item(
            b"y",
            headers={"a": "b"},
            retention_s=2,
            dedup_id="d",
            created_at_ms=T_MS,
            visible_at_ms=T_MS + 1,
        ),
    ]  # fmt: skip
    assert items_of([]) == []
    assert list(items_of(b"%d" % n for n in range(2))) == [Item(b"0"), Item(b"1")]


def test_what_is_stored_in_seconds_or_milliseconds_is_rounded_up() -> None:
    assert item_of(Publish(b"", delay=0.0001)).delay_ms == 1
    assert item_of(Publish(b"", retention=0.0001)).retention_s == 1
    assert item_of(Publish(b"", retention=2)).retention_s == 2
    assert item_of(Publish(b"", retention=math.inf)).retention_s == 0
    assert seconds_up("x", 1.0000001) == 2
    late = T.astimezone(timezone(timedelta(hours=5)))
    assert item_of(Publish(b"", created_at=late)).created_at_ms == T_MS


def test_times_are_aware_and_never_overflow() -> None:
    assert time_of(T_MS) == datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    assert time_of((1 << 63) - 1) == datetime.max.replace(tzinfo=UTC)


WRONG: list[Any] = [
    "text",
    5,
    None,
    (b"x",),
    (b"x", {}, 1),
    (b"x", [("a", "b")]),
    (b"x", {"a": 1}),
    (b"x", {1: "a"}),
    ("text", {}),
    Publish("text"),  # type: ignore[arg-type]
    Publish(b"x", to=""),
    Publish(b"x", to=5),  # type: ignore[arg-type]
    Publish(b"x", to="x" * 256),
    Publish(b"x", delay=-1),
    Publish(b"x", delay=math.inf),
    Publish(b"x", delay="1"),  # type: ignore[arg-type]
    Publish(b"x", retention=-1),
    Publish(b"x", retention=math.nan),
    Publish(b"x", dedup_id=5),  # type: ignore[arg-type]
    Publish(b"x", created_at=datetime(2030, 1, 1)),  # noqa: DTZ001
    Publish(b"x", created_at=datetime(1969, 1, 1, tzinfo=UTC)),
    Publish(b"x", visible_at=5),  # type: ignore[arg-type]
    Publish(b"x", delay=1, visible_at=T),
    bytes(PAYLOAD_BYTES_MAX + 1),
]


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_message_is_named_by_its_place(message: Any) -> None:
    with pytest.raises(InvalidError, match=r"^message 1: "):
        items_of([b"fine", message])


@pytest.mark.parametrize("messages", ["text", b"bytes", 5, None, {"a": "b"}, Publish(b"x")])
def test_messages_are_a_list(messages: Any) -> None:
    with pytest.raises(InvalidError, match="messages are a list"):
        items_of(messages)


# Arrow.


def test_columns_become_messages() -> None:
    table = pa.table(
        {
            "payload": pa.array([b"a", b"b"], pa.large_binary()),
            "headers": pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string())),
            "to": ["eu", None],
            "delay": [None, 1.5],
            "retention": pa.array([None, 7], pa.int32()),
            "dedup_id": ["d", None],
        }
    )
    items = [
        Item(b"a", headers={"k": "v"}, to="eu", dedup_id="d"),
        Item(b"b", delay_ms=1500, retention_s=7),
    ]
    assert items_of(table) == items
    assert items_of(table.to_batches()[0]) == items
    assert items_of(pa.table({"payload": [b"x", b"y"]})) == [Item(b"x"), Item(b"y")]
    assert items_of(pa.table({"payload": pa.array([], pa.binary())})) == []


_MAP = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"data": [b"x"]}, "columns payload and"),
        ({"payload": [b"x"], "other": [1]}, "not 'payload', 'other'"),
        ({"payload": ["text"]}, "column payload is binary, not string"),
        ({"payload": [b"x"], "headers": ["text"]}, "column headers is a map"),
        ({"payload": [b"x", None]}, "message 1: a payload is bytes"),
        ({"payload": [b"x", b"y"], "delay": [0.0, -1.0]}, "message 1: delay"),
        ({"payload": [b"x"], "to": [5]}, "message 0: a queue name is text"),
        (
            {"payload": [b"x"], "headers": pa.array([[("k", "1"), ("k", "2")]], _MAP)},
            "message 0: header 'k' is given twice",
        ),
    ],
)
def test_wrong_columns_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        items_of(pa.table(columns))
