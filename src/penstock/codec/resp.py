"""RESP framing: requests from hostile bytes, replies for RESP2 and RESP3. Pure.

    request     *COUNT CRLF, then COUNT times $SIZE CRLF BYTES CRLF; or one inline line, with
                Redis' quoting: 'single' (only \\' inside) and "double" (\\n \\r \\t \\b \\a \\xHH)
    reply       +text  -KIND text  :integer  $size bytes  *count items; RESP3 also _ (null)
                #t #f (boolean)  ,number (double)  %count key value pairs (map)

Contract     `Parser.feed` gives every request that is complete; what comes later is kept. Bytes
             that are no request set `error`, in Redis' words, and nothing is parsed any more.
             Limits hold before anything is kept for what a header announces.
Speed        Long arrays go through hiredis, about four times as fast as the walk below, screening
             included. hiredis makes room for as many elements as any header says, nested ones too,
             so bytes that could be such a header (or a bulk that is too large) never reach it:
             they are walked. The walk decides what is right; hiredis only does it faster.
Not here     what commands mean (server/resp/), sockets (server/resp/connection.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import hiredis
import msgspec

CRLF = b"\r\n"

# ---- requests ---------------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True):
    """What one request may be."""

    arguments: int = 1 << 20  # as in Redis
    bulk_bytes: int = (64 << 20) + (64 << 10)  # a payload of 64 MiB, and some wrapping
    frame_bytes: int = 128 << 20
    inline_bytes: int = 64 << 10  # as in Redis


#: What a connection may send before it has given the password; as in Redis.
STRANGER = Limits(arguments=10, bulk_bytes=16 << 10, frame_bytes=192 << 10)

#: What is kept of a request that only a stranger may not send, until it is known who sends it.
_REFUSED_BYTES = 1 << 20

#: A header line is a sign and a number; twenty digits are more than any limit allows.
_HEADER_MAX = 32
#: From here on hiredis. So many arguments are at least 1200 bytes, and after 1024 it tells exactly
#: how much it left over (see `_Bulky`).
_BULKY_ARGUMENTS = 200
#: An argument that is not there yet and is at least so long is not copied twice.
_LONG_BYTES = 256 << 10
#: A line that could be the header of an array, a map or such of at least 100,000 elements, or of a
#: bulk of at least 10 MB; and what every such line ends with, which is found four times as fast.
_SUSPICIOUS = re.compile(rb"(?:[*~%>|]\d{6,}|\$\d{8,})\r\n")
_LONG_NUMBER = re.compile(rb"\n(?<=\d{6}\r\n)")
#: Chunks below this are put together.
_CHUNK_BYTES = 4096
#: So much of the chunks before is looked at again, for a header that was cut in two.
_OVERLAP = 24


class _BrokenError(Exception):
    """The bytes are no request."""


class _StrangerError(_BrokenError):
    """They may be one, of somebody who gave the password."""

    def __init__(self, message: str, rest: bytes) -> None:
        super().__init__(message)
        self.rest = rest  # from the header on that said so


class _Bulky:
    """A long array on its way through hiredis. The chunks are kept: the walk may need them."""

    __slots__ = ("chunks", "feeds", "reader", "size", "suspicious", "tail")

    def __init__(self) -> None:
        self.reader = hiredis.Reader()
        self.chunks: list[bytes] = []
        self.tail = b""  # the last bytes of all chunks so far
        self.feeds = 0
        self.size = 0
        self.suspicious = False

    def feed(self, chunk: bytes) -> tuple[list[bytes], bytes] | None:
        """-> the arguments and what follows them, once they are there."""
        seam = self.tail + chunk[:_OVERLAP]
        self.tail = (self.tail + chunk)[-_OVERLAP:] if len(chunk) < _OVERLAP else chunk[-_OVERLAP:]
        if self.chunks and len(self.chunks[-1]) < _CHUNK_BYTES:
            self.chunks[-1] += chunk  # an object per byte would cost forty times the bytes
        else:
            self.chunks.append(chunk)
        self.size += len(chunk)
        self.feeds += 1
        self.suspicious = self.suspicious or _is_suspicious(chunk) or _is_suspicious(seam)
        if self.suspicious:
            return None
        self.reader.feed(chunk)
        try:
            found = self.reader.gets()
        except Exception:  # hiredis' own errors, and Python's for a list as the key of a map
            self.suspicious = True
            return None
        if found is False:
            return None
        if not isinstance(found, list) or set(map(type, found)) != {bytes}:
            self.suspicious = True
            return None
        return found, self._left_over()

    def _left_over(self) -> bytes:
        if not self.reader.has_data():
            return b""
        reader = self.reader
        if self.feeds > 1:
            # The length of the buffer is what was left over only if it was just cut, and that
            # happens after 1024 bytes at once. Pipelines of long arrays pay for parsing twice.
            reader = hiredis.Reader()
            reader.feed(b"".join(self.chunks))
            reader.gets()
        size = reader.len()
        return self.chunks[-1][len(self.chunks[-1]) - size :] if size else b""


def _is_suspicious(chunk: bytes) -> bool:
    return _LONG_NUMBER.search(chunk) is not None and _SUSPICIOUS.search(chunk) is not None


#: Requests up to this size that come alone, as most do, are cut at their line ends.
_ALONE_BYTES = 64 << 10
_ALONE_COUNTS = {b"*%d" % count: count for count in range(1, 1025)}
_ALONE_HEADS = [b"$%d" % size for size in range(4096)]


def _one_request(data: bytes, limits: Limits) -> list[bytes] | None:
    """The one request that these bytes are, if they are just that and nothing in it looks like a
    line end. A third of the price of walking through it."""
    if len(data) > _ALONE_BYTES or limits.arguments < len(_ALONE_COUNTS):
        return None
    if limits.bulk_bytes < _ALONE_BYTES or limits.frame_bytes < _ALONE_BYTES:
        return None
    if not data.endswith(CRLF):
        return None
    lines = data.split(CRLF)
    count = _ALONE_COUNTS.get(lines[0])
    if count is None or len(lines) != 2 * count + 2:
        return None
    arguments = lines[2:-1:2]
    try:
        heads = list(map(_ALONE_HEADS.__getitem__, map(len, arguments)))
    except IndexError:
        return None
    return arguments if heads == lines[1:-1:2] else None


class Parser:
    """Bytes in, requests out."""

    __slots__ = (
        "_arguments", "_bulky", "_held", "_left", "_need", "_refused", "_size", "error", "limits",
    )  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self.limits = limits  # may be replaced between two requests
        self.error: str | None = None
        # None rather than empty containers: an idle connection keeps as little as possible.
        self._held: bytearray | None = None  # bytes that are no whole argument yet
        self._need = 0  # so many must be held before looking again is worth it
        self._arguments: list[bytes] | None = None  # of the request on its way
        self._left = 0  # how many of them are missing
        self._size = 0  # bytes of that request so far
        self._bulky: _Bulky | None = None
        self._refused: bytes | None = None  # what the limits of a stranger made an error

    @property
    def held_bytes(self) -> int:
        """About what the unfinished request costs."""
        held = 0 if self._held is None else len(self._held)
        if self._refused is not None:
            held += len(self._refused)
        if self._bulky is not None:
            held += 2 * self._bulky.size
        if self._arguments is not None:
            held += self._size + 48 * len(self._arguments)
        return held

    def feed(self, data: bytes) -> list[list[bytes]]:
        found: list[list[bytes]] = []
        if self.error is not None:
            if self._refused is not None:
                self._refuse(self._refused + data)
            return found
        if self._held is None and self._arguments is None and self._bulky is None:
            whole = _one_request(data, self.limits)
            if whole is not None:
                found.append(whole)
                return found
        try:
            self._feed(data, found)
        except _StrangerError as error:
            self.error = str(error)
            self._refuse(error.rest)
        except _BrokenError as error:
            self.error = str(error)
            self._held = self._arguments = self._bulky = None
        return found

    def admit(self, limits: Limits) -> list[list[bytes]]:
        """The password was given. -> the requests behind it that a stranger may not send"""
        self.limits = limits
        if self._refused is None:
            return []
        rest, self._refused, self.error = self._refused, None, None
        return self.feed(rest)

    def _refuse(self, rest: bytes) -> None:
        """The password may be among the requests in front; who gave it has only that much."""
        if len(rest) <= _REFUSED_BYTES:
            self._refused = rest
        else:
            self._refused = self._arguments = None

    def _feed(self, data: bytes, found: list[list[bytes]]) -> None:
        if self._held is not None:
            self._held += data
            if len(self._held) < self._need:
                return
            if self._need >= _LONG_BYTES:
                data = self._take_long(found)
            else:
                data, self._held = bytes(self._held), None
        at = 0
        while at < len(data):
            if self._bulky is not None:
                rest = self._feed_bulky(data[at:] if at else data, found)
                if rest is None:
                    return
                data, at = rest, 0
            elif self._arguments is not None:
                at = self._walk(data, at, found)
            elif data[at] == 0x2A:
                at = self._begin(data, at)
            else:
                at = self._inline(data, at, found)
            if at < 0:
                return

    def _hold(self, data: bytes, at: int, need: int) -> int:
        self._held = bytearray(memoryview(data)[at:])
        self._need = need
        return -1

    def _take_long(self, found: list[list[bytes]]) -> bytes:
        """The one argument that was waited for, copied once. -> what follows it"""
        held, self._held = self._held, None
        assert held is not None
        assert self._arguments is not None, "nothing else can be long"
        begin, stop = held.index(CRLF) + 2, self._need - 2
        with memoryview(held) as view:
            self._arguments.append(bytes(view[begin:stop]))
            rest = bytes(view[stop + 2 :])
        self._left -= 1
        self._size += self._need
        if not self._left:
            found.append(self._arguments)
            self._arguments = None
        return rest

    def _begin(self, data: bytes, at: int) -> int:
        end = data.find(CRLF, at, at + _HEADER_MAX)
        if end < 0:
            if len(data) - at >= _HEADER_MAX:
                raise _BrokenError("invalid multibulk length")
            return self._hold(data, at, len(data) - at + 1)
        count = _number(data[at + 1 : end])
        if count is None or count > self.limits.arguments:
            if self.limits is STRANGER and count is not None:
                raise _StrangerError("unauthenticated multibulk length", data[at:])
            raise _BrokenError("invalid multibulk length")
        if count <= 0:
            return end + 2  # Redis skips them without a word
        if count >= _BULKY_ARGUMENTS:
            self._bulky = _Bulky()
            return at
        self._arguments, self._left, self._size = [], count, end + 2 - at
        return end + 2

    def _feed_bulky(self, data: bytes, found: list[list[bytes]]) -> bytes | None:
        bulky = self._bulky
        assert bulky is not None
        done = bulky.feed(data)
        if done is not None:
            arguments, rest = done
            if bulky.size - len(rest) > self.limits.frame_bytes:
                raise _BrokenError("too big request")
            found.append(arguments)
            self._bulky = None
            return rest
        if bulky.suspicious:
            self._bulky = None
            data = b"".join(bulky.chunks)
            end = data.index(CRLF)
            count = _number(data[1:end])
            assert count is not None, "it was read when the array began"
            self._arguments, self._left, self._size = [], count, end + 2
            return data[end + 2 :]
        if bulky.size > self.limits.frame_bytes:
            raise _BrokenError("too big request")
        return None

    def _walk(self, data: bytes, at: int, found: list[list[bytes]]) -> int:
        """Take arguments as long as they are there. -> where the next request begins, or -1"""
        arguments = self._arguments
        assert arguments is not None
        limits, size, have = self.limits, self._size, len(data)
        for left in range(self._left, 0, -1):
            end = data.find(CRLF, at, at + _HEADER_MAX)
            if end < 0 or data[at] != 0x24:
                self._left, self._size = left, size
                if at < have and data[at] != 0x24:
                    raise _BrokenError(f"expected '$', got '{_printable(data[at])}'")
                if have - at >= _HEADER_MAX:
                    raise _BrokenError("invalid bulk length")
                return self._hold(data, at, have - at + 1)
            digits = data[at + 1 : end]
            length = int(digits) if digits.isdigit() else -1
            if not 0 <= length <= limits.bulk_bytes:
                if limits is STRANGER and length >= 0:
                    self._left, self._size = left, size
                    raise _StrangerError("unauthenticated bulk length", data[at:])
                raise _BrokenError("invalid bulk length")
            size += end - at + 4 + length
            if size > limits.frame_bytes:
                raise _BrokenError("too big request")
            stop = end + 2 + length
            if stop + 2 > have:
                self._left, self._size = left, size - (end - at + 4 + length)
                return self._hold(data, at, stop + 2 - at)
            arguments.append(data[end + 2 : stop])
            at = stop + 2
        found.append(arguments)
        self._arguments = None
        return at

    def _inline(self, data: bytes, at: int, found: list[list[bytes]]) -> int:
        end = data.find(b"\n", at)
        if (len(data) if end < 0 else end) - at > self.limits.inline_bytes:
            raise _BrokenError("too big inline request")
        if end < 0:
            return self._hold(data, at, len(data) - at + 1)
        arguments = split_inline(data[at:end])
        if arguments is None:
            raise _BrokenError("unbalanced quotes in request")
        if arguments:
            found.append(arguments)
        return end + 1


def _number(digits: bytes) -> int | None:
    """A decimal number as it may stand in a header; Python alone would take '1_0' and ' 1'."""
    if digits.removeprefix(b"-").isdigit():
        return int(digits)
    return None


def _printable(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 else "?"


_SPACE = b" \t\r\n\x00\x0b\x0c"
_ESCAPES = {ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("b"): 8, ord("a"): 7}
_HEX = re.compile(rb"\\x([0-9a-fA-F]{2})")


def split_inline(line: bytes) -> list[bytes] | None:
    """The words of an inline command, as Redis' sdssplitargs; None: a quote is not closed."""
    words: list[bytes] = []
    at = 0
    while True:
        while at < len(line) and line[at] in _SPACE:
            at += 1
        if at == len(line):
            return words
        word = bytearray()
        while at < len(line) and line[at] not in _SPACE:
            if line[at] in b"\"'":
                at = _quoted(line, at, word)
                if at < 0:
                    return None
            else:
                word.append(line[at])
                at += 1
        words.append(bytes(word))


def _quoted(line: bytes, at: int, word: bytearray) -> int:
    """Append what stands in the quotes that open here. -> where they closed, or -1"""
    quote = line[at]
    at += 1
    while at < len(line):
        byte = line[at]
        if byte == quote:
            # "a"b is no word: a closing quote ends it.
            return at + 1 if at + 1 == len(line) or line[at + 1] in _SPACE else -1
        if byte == 0x5C and quote == 0x22:
            if match := _HEX.match(line, at):
                word.append(int(match[1], 16))
                at += 4
                continue
            if at + 1 < len(line):
                at += 1
                byte = _ESCAPES.get(line[at], line[at])
        elif line.startswith(b"\\'", at) and quote == 0x27:
            at += 1
            byte = 0x27
        word.append(byte)
        at += 1
    return -1


# ---- replies ----------------------------------------------------------------------------------

OK = b"+OK\r\n"
NULL = {2: b"$-1\r\n", 3: b"_\r\n"}
NULL_ARRAY = {2: b"*-1\r\n", 3: b"_\r\n"}


class Simple(msgspec.Struct, frozen=True):
    """A status such as OK: text without line ends."""

    text: str


class Failure(msgspec.Struct, frozen=True):
    """An error as a value, inside or instead of a reply."""

    kind: str
    text: str


Reply = (
    None | bool | int | float | bytes | str | Simple | Failure | Sequence["Reply"]
    | Mapping[str, "Reply"]
)  # fmt: skip


def error(kind: str, text: str) -> bytes:
    """Text may come from anywhere: a line end in it would begin another reply."""
    return f"-{kind} {' '.join(text.split())}\r\n".encode("utf-8", "backslashreplace")


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def encode(value: Reply, protocol: int) -> bytes:
    """Any value; for replies that are not many."""
    parts: list[bytes] = []
    _encode(value, protocol, parts)
    return b"".join(parts)


def _encode(value: Reply, protocol: int, parts: list[bytes]) -> None:
    match value:
        case None:
            parts.append(NULL[protocol])
        case bool():
            words = (b"#t\r\n", b"#f\r\n") if protocol == 3 else (b":1\r\n", b":0\r\n")
            parts.append(words[0] if value else words[1])
        case int():
            parts.append(b":%d\r\n" % value)
        case float():
            text = repr(value).encode()
            parts.append(b",%b\r\n" % text if protocol == 3 else bulk(text))
        case bytes():
            parts.append(bulk(value))
        case str():
            parts.append(bulk(value.encode("utf-8", "surrogateescape")))
        case Simple(text):
            parts.append(f"+{text}\r\n".encode())
        case Failure(kind, text):
            parts.append(error(kind, text))
        case Mapping():
            head = b"%%%d\r\n" % len(value) if protocol == 3 else b"*%d\r\n" % (2 * len(value))
            parts.append(head)
            for key, item in value.items():
                _encode(key, protocol, parts)
                _encode(item, protocol, parts)
        case _:
            parts.append(b"*%d\r\n" % len(value))
            for item in value:
                _encode(item, protocol, parts)


#: The end of what is before a bulk, and its header; and the same with an empty bulk in between.
_BEFORE = [b"\r\n$%d\r\n" % size for size in range(4096)]
_BEFORE_AFTER_EMPTY = [b"\r\n$0\r\n" + before for before in _BEFORE]


def _before(items: Sequence[bytes], known: list[bytes]) -> list[bytes]:
    try:
        return list(map(known.__getitem__, map(len, items)))
    except IndexError:
        before = known[0].removesuffix(_BEFORE[0])
        return [b"%b\r\n$%d\r\n" % (before, len(item)) for item in items]


def encode_entries(first: int, tags: Sequence[bytes] | None, data: Sequence[bytes]) -> bytes:
    """[offset, tag, data] for each, one after the other: the items of an array, without its head.
    No `tags`: all of them are empty.

    One list and one join: a third of the price of a format per entry.
    """
    count = len(data)
    if not count:
        return b""
    width = 3 if tags is None else 5
    parts = [b""] * (width * count)
    parts[0::width] = _numbers(b"\r\n*3\r\n:", first, first + count)
    if tags is None:
        parts[1::width] = _before(data, _BEFORE_AFTER_EMPTY)
    else:
        parts[1::width] = _before(tags, _BEFORE)
        parts[2::width] = tags
        parts[3::width] = _before(data, _BEFORE)
    parts[width - 1 :: width] = data
    parts[0] = parts[0][2:]
    parts.append(CRLF)
    return b"".join(parts)


_THREE_DIGITS = [b"%03d" % n for n in range(1000)]


def _numbers(before: bytes, low: int, high: int) -> list[bytes]:
    found: list[bytes] = []
    while low < high:
        thousands, n = divmod(low, 1000)
        stop = min(1000, n + high - low)
        if thousands:
            head = b"%b%d" % (before, thousands)
            found += [head + tail for tail in _THREE_DIGITS[n:stop]]
        else:
            found += [b"%b%d" % (before, i) for i in range(n, stop)]
        low += stop - n
    return found


def encode_full_entries(
    first: int,
    tags: Sequence[bytes],
    data: Sequence[bytes],
    times: Iterable[int],
    metas: Sequence[bytes | None],
    protocol: int,
) -> bytes:
    """[offset, tag, data, time, meta or null] for each."""
    null = NULL[protocol]
    return b"".join(
        [
            b"*5\r\n:%d\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n:%d\r\n%b"
            % (first + i, len(tag), tag, len(item), item, time, bulk(meta) if meta else null)
            for i, (tag, item, time, meta) in enumerate(zip(tags, data, times, metas, strict=True))
        ]
    )
