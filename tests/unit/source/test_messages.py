"""Which files a message names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.source.messages import Announcement, canonical_uri, digest, read_announcement


def read(body: Any) -> Announcement:
    return read_announcement(json.dumps(body).encode())


def record(key: Any, name: str = "ObjectCreated:Put", bucket: Any = "b") -> dict[str, Any]:
    return {
        "eventSource": "aws:s3",
        "eventName": name,
        "s3": {"bucket": {"name": bucket}, "object": {"key": key, "size": 1, "eTag": "e"}},
    }


def bridge(key: str, kind: str = "Object Created") -> dict[str, Any]:
    detail = {"bucket": {"name": "b"}, "object": {"key": key}}
    return {"version": "0", "detail-type": kind, "source": "aws.s3", "detail": detail}


# -- raw URIs


@pytest.mark.parametrize(
    ("body", "uri"),
    [
        ("s3://b/a.json", "s3://b/a.json"),
        ("  s3://b/a.json\r\n", "s3://b/a.json"),
        ("\ufeffs3://b/a.json", "s3://b/a.json"),
        ("s3://b/a%20b.json", "s3://b/a b.json"),
        ("s3://b/a b.json", "s3://b/a b.json"),
        ("s3://b/%C3%BC.json", "s3://b/ü.json"),
        ("s3://b/ü.json", "s3://b/ü.json"),
        ("s3://b/a+b.json", "s3://b/a+b.json"),  # a plus is a plus in a URI
        ("s3://b/100%.json", "s3://b/100%.json"),
        ("s3://b/a%2525.json", "s3://b/a%25.json"),  # decoded once
        ("s3a://b/a", "s3://b/a"),
        ("S3://b/a", "s3://b/a"),
        ("s3://b//a/../c", "s3://b//a/../c"),  # keys are no paths
        ("gs://b/a", "gs://b/a"),
        ("/data/a b.json", "file:///data/a b.json"),
        ("file:///data/a", "file:///data/a"),
        ("file:/data/a", "file:///data/a"),
        ("file://localhost/data/a", "file:///data/a"),
        ("FILE:///data/a", "file:///data/a"),
        ("//data///x/./y/../a", "file:///data/x/a"),
    ],
)
def test_a_raw_uri_has_one_name_however_it_is_written(body: str, uri: str) -> None:
    assert read_announcement(body.encode()) == Announcement(files=(uri,))


def test_the_encoded_and_the_plain_form_are_the_same_file() -> None:
    forms = ["s3://b/größe 1.json", "s3://b/gr%C3%B6%C3%9Fe%201.json", "s3://b/größe%201.json"]
    assert len({canonical_uri(form) for form in forms}) == 1


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"a.json", "neither a URI nor an absolute path"),
        (b"./a.json", "neither a URI nor an absolute path"),
        (b"s3://b", "names no file"),
        (b"s3://b/", "names no file"),
        (b"s3:///a", "names no file"),
        (b"s3://b/folder/", "names no file"),
        (b"/", "names no file"),
        (b"/data/", "names no file"),
        (b"file://elsewhere/a", "another machine: elsewhere"),
        (b"s3://b/a%00b", "control character"),
        (b"s3://b/a\ns3://b/c", "line break"),
        (b"s3://b/%FF", "escapes are not UTF-8"),
        (b"\xff\xfe", "not UTF-8"),
        (b"announcement://a/b", "no place where a file can be"),
        (b"inline://a/b", "no place where a file can be"),
        (b"{", "begins like JSON"),
        (b'{"a": 1} x', "begins like JSON"),
        (b"{" + b'"a":{' * 100_000, "begins like JSON"),
        (b'{"a": 1}', "neither an S3 event nor one of EventBridge"),
        (b'{"Records": 5}', "neither an S3 event nor one of EventBridge"),
    ],
)
def test_what_names_no_file_is_an_error_that_says_why(body: bytes, error: str) -> None:
    found = read_announcement(body)
    assert found.files == found.ignored == ()
    assert error in (found.error or "")


def test_a_message_that_is_a_uri_is_read_as_one() -> None:
    assert read_announcement(b"", uri="s3://b/a%20b").files == ("s3://b/a b",)
    assert "neither" in (read_announcement(b"", uri="{}").error or "")


# -- events


def test_every_record_of_an_event_is_a_file() -> None:
    event = {"Records": [record("a"), record("b/c"), record("a")]}
    assert read(event) == Announcement(files=("s3://b/a", "s3://b/b/c"))


@pytest.mark.parametrize(
    ("key", "decoded"),
    [
        ("a+b.json", "a b.json"),
        ("a%2Bb.json", "a+b.json"),
        ("gr%C3%B6%C3%9Fe.json", "größe.json"),
        ("a b+c%20.json", "a b+c%20.json"),  # a space is never in an encoded key: it is plain
        ("größe+1.json", "größe+1.json"),
        ("50%", "50%"),
        ("%FF", "%FF"),
    ],
)
def test_keys_of_events_are_encoded_or_plain(key: str, decoded: str) -> None:
    assert read({"Records": [record(key)]}).files == (f"s3://b/{decoded}",)


@pytest.mark.parametrize(
    "name",
    ["ObjectCreated:Put", "ObjectCreated:CompleteMultipartUpload", "s3:ObjectCreated:Put"],
)
def test_all_that_creates_an_object_counts(name: str) -> None:
    assert read({"Records": [record("a", name)]}).files == ("s3://b/a",)


@pytest.mark.parametrize(
    ("event", "ignored"),
    [
        ({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}, "s3:TestEvent"),
        ({"Records": [record("a", "ObjectRemoved:Delete")]}, "ObjectRemoved:Delete"),
        ({"Records": [record("a", "s3:ObjectTagging:Put")]}, "s3:ObjectTagging:Put"),
        ({"Records": [record("folder/")]}, "folder/"),
        ({"Records": []}, "without records"),
        (bridge("a", "Object Deleted"), "Object Deleted"),
    ],
)
def test_events_that_are_about_no_new_file_are_no_error(event: Any, ignored: str) -> None:
    found = read(event)
    assert (found.files, found.error, len(found.ignored)) == ((), None, 1)
    assert ignored in found.ignored[0]


def test_an_eventbridge_key_is_not_encoded() -> None:
    assert read(bridge("a+b%20c.json")).files == ("s3://b/a+b%20c.json",)


def test_an_event_inside_an_sns_notification_is_read() -> None:
    inner = json.dumps({"Records": [record("a")]})
    wrapped = {"Type": "Notification", "TopicArn": "arn:aws:sns:x", "Message": inner}
    assert read(wrapped).files == ("s3://b/a",)
    assert read(wrapped | {"Message": "s3://b/c%20d"}).files == ("s3://b/c d",)
    assert "begins like JSON" in (read(wrapped | {"Message": "{"}).error or "")


def test_one_broken_record_does_not_hide_the_others() -> None:
    found = read({"Records": [record("a"), {"eventName": "ObjectCreated:Put"}, record("b")]})
    assert found.files == ("s3://b/a", "s3://b/b")
    assert found.error == "record 1: KeyError 's3'"


@pytest.mark.parametrize(
    "broken",
    [
        None,
        "text",
        [],
        {},
        {"eventName": 5},
        {"eventName": "ObjectCreated:Put", "s3": None},
        record(None),
        record(5),
        record(""),
        record("a", bucket=""),
        record("a", bucket=None),
        record("a%00b"),
        record("a%0Ab"),
    ],
)
def test_a_broken_record_is_an_error_and_never_an_exception(broken: Any) -> None:
    found = read({"Records": [broken]})
    assert (found.files, found.ignored) == ((), ())
    assert found.error is not None
    assert found.error.startswith("record: ")


@pytest.mark.parametrize("detail", [None, 5, {}, {"bucket": {}, "object": {"key": "a"}}])
def test_a_broken_eventbridge_event_is_an_error(detail: Any) -> None:
    found = read({"detail-type": "Object Created", "detail": detail})
    assert found.files == ()
    assert found.error is not None


def test_a_digest_tells_messages_apart() -> None:
    assert digest(b"a") == digest(b"a") != digest(b"b")
