"""One call of a processor's function after the other: what it returned becomes entries.

Contract     `Call.each(rows)` gives for each row (a message; of a join one per input) what became
             of it: entries for its outputs, in order; of a ready-made sink rows of its table;
             `Failure`, for a handled error; or None, for nothing. Stop, and whatever is no
             Exception, is raised as `Stopped`.
             `returned` makes a list of (tag, data) of what a function may return: bytes, a Message,
             a list of them, or None.
Not here     Reading and staging (graphread.py, graphwork.py). Pure, but for the function.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.errors import InvalidError
from penstock.graph.hashes import joined_hashes, message_hash, message_hashes
from penstock.graph.message import Message, Stop
from penstock.graph.requests import Kind
from penstock.log import read as log_read
from penstock.log.batch import TAG_BYTES_MAX, encode_tag
from penstock.spark import sinks

#: Tag, data, meta: the message hash.
Entry = tuple[bytes, bytes, bytes]
#: Which of the outputs, and what goes there.
Placed = tuple[int, Entry]
Row = Message | tuple[Message, ...]
#: What a function may return to be one entry.
Out = bytes | bytearray | memoryview | Message | log_read.Message

#: A node that is larger cannot be staged, and what one message returns should not need it.
OUTPUT_BYTES_MAX = 64 << 20
_TRACEBACK_CHARS = 8_000
#: Of an exception's text: all of a bad input may stand in it.
MESSAGE_CHARS_MAX = 16_000


@dataclass(frozen=True)
class Failure:
    """A handled error: its entry in the error stream, and what is logged."""

    entry: Entry
    text: str


@dataclass(frozen=True)
class Rows:
    """What a ready-made sink writes."""

    rows: list[sinks.Row]


class Stopped(Exception):  # noqa: N818  # told, not handled
    """The function wants its processor to stop, or the interpreter does."""


class Call:
    def __init__(
        self,
        function: Callable[..., Any],
        kind: Kind,
        graph: str,
        processor: str,
        processor_id: str,
        inputs: Sequence[tuple[str, str, int]],
        outputs: Sequence[str],
        *,
        takes_hash: bool,
        target: sinks.Target | None = None,
    ) -> None:
        """`inputs`: alias, stream and stream id of each that is read; `target`: of a ready-made
        sink."""
        self._function = function
        self._kind = kind
        self._graph, self._processor = graph, processor
        self._id = processor_id
        self._aliases = [alias for alias, _, _ in inputs]
        self._stream_ids = {stream: stream_id for _, stream, stream_id in inputs}
        self._outputs = {stream: i for i, stream in enumerate(outputs)}
        self._takes_hash = takes_hash
        self._target = target

    def each(self, rows: Sequence[Row]) -> Iterator[Sequence[Placed] | Rows | Failure | None]:
        function, takes_hash = self._function, self._takes_hash
        joins = self._kind == "join"
        plain = self._kind in ("pipe", "join", "alts")
        for row, found in zip(rows, self._hashes(rows), strict=True):
            made: Sequence[Placed] | Rows | Failure | None
            try:
                named = {"delivery_hash": found.hex()} if takes_hash else {}
                if joins:
                    value = function(**dict(zip(self._aliases, row, strict=True)), **named)  # type: ignore[arg-type]
                else:
                    value = function(row, **named)
                if plain and type(value) is bytes and len(value) <= OUTPUT_BYTES_MAX:
                    made = ((0, (b"", value, found)),)
                elif self._target is not None:
                    made = self._table_rows(self._target, value, row, found)
                else:
                    made = self._placed(value, row, found) or None
            except Stop as error:
                raise Stopped(told(_messages(row), error)) from error
            except Exception as error:
                made = self._failure(row, error, found)
            except BaseException as error:
                raise Stopped(told(_messages(row), error)) from error
            yield made

    def _hashes(self, rows: Sequence[Row]) -> list[bytes]:
        if not rows:
            return []
        if self._kind == "join":
            columns = list(zip(*rows, strict=True))
            return joined_hashes(
                self._id,
                [
                    (self._stream_ids[column[0].stream], [message.offset for message in column])
                    for column in columns
                ],
            )
        first = rows[0]
        assert isinstance(first, Message), "only a join's are several"
        return message_hashes(
            self._id,
            self._stream_ids[first.stream],
            [row.offset for row in rows],  # type: ignore[union-attr]
        )

    def _placed(self, value: Any, row: Row, found: bytes) -> list[Placed]:
        if self._kind == "sink":
            return []
        if self._kind != "fork":
            return [(0, entry) for entry in self._entries(value, row, found)]
        if value is None:
            return []
        if not isinstance(value, Mapping):
            raise InvalidError(
                f"a fork returns a dict, stream -> output, not {type(value).__name__}"
            )
        placed: list[Placed] = []
        for stream, output in value.items():
            if stream not in self._outputs:
                raise InvalidError(
                    f"{stream!r} is none of the outputs of {self._id}",
                    hint=f"those are {', '.join(self._outputs)}",
                )
            at = self._outputs[stream]
            placed += [(at, entry) for entry in self._entries(output, row, found)]
        return placed

    def _table_rows(self, target: sinks.Target, value: Any, row: Row, found: bytes) -> Rows | None:
        assert isinstance(row, Message), "a sink has one input"
        values = [target.encode(each) for each in sinks.values_of(value)]
        hashes = [found]
        if isinstance(value, list | tuple):
            inputs = self._inputs(row)
            hashes = [message_hash(self._id, inputs, ordinal) for ordinal in range(len(values))]
        rows = [sinks.Row(row.offset, *pair) for pair in zip(hashes, values, strict=False)]
        return Rows(rows) if rows else None

    def _entries(self, value: Any, row: Row, found: bytes) -> list[Entry]:
        if isinstance(value, list | tuple):
            inputs = self._inputs(row)
            return [
                (*pair, message_hash(self._id, inputs, ordinal))
                for ordinal, pair in enumerate(returned(value))
            ]
        return [(*pair, found) for pair in returned(value)]

    def _inputs(self, row: Row) -> list[tuple[int, int]]:
        return [(self._stream_ids[each.stream], each.offset) for each in _messages(row)]

    def _failure(self, row: Row, error: Exception, found: bytes) -> Failure:
        return described(self._graph, self._processor, _messages(row), error, found)


def described(
    graph: str, processor: str, inputs: Sequence[Message], error: Exception, found: bytes
) -> Failure:
    """A handled error, for the error stream and the log."""
    data = msgspec.json.encode(
        {
            "graph": graph,
            "processor": processor,
            "inputs": [{"stream": each.stream, "offset": each.offset} for each in inputs],
            "type": _type_name(error),
            "message": message_of(error),
            "traceback": _clean(_traceback(error)),
            "hash": found.hex(),
        }
    )
    return Failure((processor.encode(), data, found), told(inputs, error))


def told(inputs: Sequence[Message], error: BaseException) -> str:
    """In a line: where, and what."""
    place = ", ".join(f"{each.stream} offset {each.offset}" for each in inputs)
    return f"{place or 'an output'}: {_type_name(error)}: {message_of(error)}"


def returned(value: Any) -> list[tuple[bytes, bytes]]:
    """(tag, data) of each output; InvalidError where it is none."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [_one(each) for each in value]
    return [_one(value)]


def _one(value: Any) -> tuple[bytes, bytes]:
    tag = b""
    if isinstance(value, Message | log_read.Message):
        tag, value = encode_tag(value.tag), value.data
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidError(
            f"an output is bytes or a Message, not {type(value).__name__}",
            hint="text.encode() makes bytes of text, json.dumps(value).encode() of others",
        )
    data = bytes(value)
    if len(tag) > TAG_BYTES_MAX:
        raise InvalidError(f"a tag of {len(tag):,} bytes; at most {TAG_BYTES_MAX:,} are allowed")
    if len(data) > OUTPUT_BYTES_MAX:
        raise InvalidError(f"an output of {len(data):,} bytes; at most {OUTPUT_BYTES_MAX:,}")
    return tag, data


def _messages(row: Row) -> tuple[Message, ...]:
    return (row,) if isinstance(row, Message) else row


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _traceback(error: Exception) -> str:
    """Of the function: who called it is of no interest."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    # What an exception holds is of somebody else: a SyntaxError may have text for a number.
    try:
        lines = traceback.format_exception(type(error), error, frames)
    except Exception as worse:
        return f"(it cannot be shown: {type(worse).__name__})"
    return "".join(lines)[-_TRACEBACK_CHARS:]


def message_of(error: BaseException) -> str:
    """Its text, as far as it can be shown and kept."""
    # An exception's own __str__ is code of somebody else.
    try:
        text = str(error)
        if len(text) > MESSAGE_CHARS_MAX:
            text = f"{text[:MESSAGE_CHARS_MAX]}… ({len(text):,} characters)"
        return _clean(text)
    except Exception as worse:
        return f"(its text cannot be shown: {type(worse).__name__})"


def _clean(text: str) -> str:
    """JSON takes no lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()
