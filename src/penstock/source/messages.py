"""Announcements: which files a message names. Pure.

    a raw URI          s3://bucket/key, file:///path, /path, any other scheme://…; percent-encoded
                       or not: both are the same file
    an S3 event        {"Records": [{"eventName": "ObjectCreated:…", "s3": {…}}, …]}, every record;
                       as it is, or inside an SNS notification. Keys are URL-encoded (with + for a
                       space); one that holds what encoding would have replaced is taken as it is
    EventBridge        {"detail-type": "Object Created", "detail": {"bucket": …, "object": …}};
                       keys are not encoded

Contract     `read_announcement` never raises. What can be read of a message is used: an event with
             one broken record names the files of the others, and has an error. Test events, other
             event names and folders (keys that end in /) name no file, and are no error.
Files        are named by their canonical URI: decoded, s3a:// and s3n:// as s3://, local paths as
             file:// without dots and double slashes. So each file has one name, however it came.
Not here     Messages that are the data themselves: a source is told that they are (identity.py).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from urllib.parse import unquote, unquote_plus

import msgspec

from penstock.source.identity import RESERVED_SCHEMES

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: What is never seen in a URL-encoded key: encoding replaces it.
_NOT_ENCODED = re.compile(r"[^!-~]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_S3_SCHEMES = ("s3", "s3a", "s3n")


class Announcement(msgspec.Struct, frozen=True):
    files: tuple[str, ...] = ()  # canonical URIs, each once
    ignored: tuple[str, ...] = ()  # what it told that is about no file to be loaded
    error: str | None = None  # why something of it could not be read


class _BadError(ValueError):
    """Something of the message cannot be read."""


def digest(body: bytes) -> str:
    """What a message that could not be read is known by."""
    return sha256(body).hexdigest()


def read_announcement(body: bytes, uri: str | None = None) -> Announcement:
    """`uri`: the message was published as one, and is nothing else."""
    try:
        text = body.decode("utf-8-sig").strip() if uri is None else uri
        if text.startswith("{") and uri is None:
            return _read_event(_parse(text))
        return Announcement(files=(canonical_uri(text),))
    except UnicodeDecodeError as error:
        return Announcement(error=f"it is not UTF-8: {error.reason} at byte {error.start}")
    except _BadError as error:
        return Announcement(error=str(error))


# -- URIs


def canonical_uri(text: str) -> str:
    """The one name of this file; ValueError that says what is wrong with it."""
    try:
        decoded = unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise _BadError(f"{text[:200]!r}: its escapes are not UTF-8: {error.reason}") from None
    return _canonical(decoded)


def _canonical(text: str) -> str:
    if not text:
        raise _BadError("it is empty")
    if _CONTROL.search(text):
        raise _BadError(f"{text[:200]!r} has a line break or another control character")
    if text.startswith("/"):
        return _file_uri(text)
    if text.lower().startswith("file:/") and not text.lower().startswith("file://"):
        return _file_uri(text[len("file:") :])
    found = _SCHEME.match(text)
    if found is None:
        raise _BadError(f"{text[:200]!r} is neither a URI nor an absolute path")
    scheme, rest = found[1].lower(), text[found.end() :]
    if scheme in RESERVED_SCHEMES:
        raise _BadError(f"{text[:200]!r} is no place where a file can be")
    if scheme == "file":
        host, slash, path = rest.partition("/")
        if host not in ("", "localhost"):
            raise _BadError(f"{text[:200]!r} is on another machine: {host}")
        return _file_uri(slash + path)
    place, _, path = rest.partition("/")
    if not place or not path or path.endswith("/"):
        raise _BadError(f"{text[:200]!r} names no file")
    return f"{'s3' if scheme in _S3_SCHEMES else scheme}://{rest}"


def _file_uri(path: str) -> str:
    if not path.strip("/") or path.endswith("/"):
        raise _BadError(f"{path[:200]!r} names no file")
    # Two leading slashes are kept by normpath, as POSIX has it.
    return "file://" + posixpath.normpath("/" + path.lstrip("/"))


# -- events


def _parse(text: str) -> dict[str, Any]:
    try:
        event: dict[str, Any] = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise _BadError(f"it begins like JSON, but is none: {error}") from None
    return event


def _read_event(event: dict[str, Any]) -> Announcement:
    if isinstance(message := event.get("Message"), str) and "TopicArn" in event:
        if not message.startswith("{"):
            return Announcement(files=(canonical_uri(message.strip()),))
        event = _parse(message)  # SNS wraps it once
    if isinstance(records := event.get("Records"), list):
        return _read_records(records)
    if isinstance(kind := event.get("detail-type"), str):
        return _gather([event], f"event {kind}", _read_bridge)
    if isinstance(name := event.get("Event"), str):
        return Announcement(ignored=(name,))  # s3:TestEvent
    raise _BadError("it is JSON, but neither an S3 event nor one of EventBridge")


def _read_records(records: list[Any]) -> Announcement:
    if not records:
        return Announcement(ignored=("an event without records",))
    return _gather(records, "record", _read_record)


def _gather(events: list[Any], what: str, read: Any) -> Announcement:
    files: dict[str, None] = {}
    ignored: list[str] = []
    errors: list[str] = []
    for n, event in enumerate(events):
        try:
            for uri, reason in read(event):
                if uri is None:
                    ignored.append(reason)
                else:
                    files[uri] = None
        except (_BadError, KeyError, TypeError, AttributeError) as error:
            told = f"{type(error).__name__} {error}" if not isinstance(error, _BadError) else error
            errors.append(f"{what} {n}: {told}" if len(events) > 1 else f"{what}: {told}")
    return Announcement(tuple(files), tuple(ignored), "; ".join(errors) or None)


_Found = Iterator[tuple[str | None, str]]


def _read_record(record: Any) -> _Found:
    name = record["eventName"]
    if not isinstance(name, str):
        raise _BadError(f"eventName is {name!r}")
    if not name.removeprefix("s3:").startswith("ObjectCreated:"):
        yield None, name
        return
    yield _object(record["s3"]["bucket"]["name"], _decoded(record["s3"]["object"]["key"]), name)


def _read_bridge(event: Any) -> _Found:
    if (kind := event["detail-type"]) != "Object Created":
        yield None, kind
        return
    detail = event["detail"]
    yield _object(detail["bucket"]["name"], detail["object"]["key"], kind)


def _decoded(key: Any) -> Any:
    if not isinstance(key, str) or _NOT_ENCODED.search(key):
        return key
    try:
        return unquote_plus(key, errors="strict")
    except UnicodeDecodeError:
        return key  # escapes that nobody encoded: the key is what it says


def _object(bucket: Any, key: Any, event: str) -> tuple[str | None, str]:
    if not (isinstance(bucket, str) and bucket and isinstance(key, str) and key):
        raise _BadError(f"bucket {bucket!r} and key {key!r} name no object")
    if key.endswith("/"):
        return None, f"{event} of the folder {key}"
    if _CONTROL.search(key):
        raise _BadError(f"key {key[:200]!r} has a line break or another control character")
    return f"s3://{bucket}/{key}", event
