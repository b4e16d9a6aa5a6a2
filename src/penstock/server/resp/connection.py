"""One RESP connection: requests in, replies out, in order; and what it may cost everybody else.

Contract     Requests take effect and are answered in the order in which they came. Small writes
             that came together are submitted together, so that a pipeline shares a commit; whatever
             else comes waits for what was before it. What was received before the client went away
             still happens, as with Redis, up to a read that would block.
Bounds       Reading pauses while too much waits; a client that does not read its replies gets no
             more of them, and in the end is cut; one whose unfinished requests are too large is
             cut. An idle connection is this object, its parser and its transport: no task, no
             buffer, no timer. What came alone and needs one commit has no task either.
Errors       A PenstockError is a reply. Anything else is a bug: it is logged with its traceback,
             answered with `-ERR internal error`, and the connection and the server go on.
Not here     what commands do (housekeeping.py, streams.py, queues.py, bulk.py), listening
             (server/serve.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from penstock.codec.resp import STRANGER, Parser, error
from penstock.errors import InvalidError, PenstockError
from penstock.graph.requests import Look
from penstock.graph.requests import Request as GraphRequest
from penstock.server.resp import bulk, graphs, housekeeping, queues, sources, streams, topics
from penstock.server.resp.bulk_grammar import BulkRequest
from penstock.server.resp.commands import COMMANDS, Command
from penstock.server.resp.errors import INTERNAL, encode_error, unknown_command
from penstock.server.resp.grammar import Read, ReadGroup, Request
from penstock.server.resp.parsers import PARSERS
from penstock.server.resp.queue_grammar import Claim, QueueRequest
from penstock.server.resp.topic_grammar import PauseTopic, Poll, TopicRequest
from penstock.source.requests import SourceRequest

if TYPE_CHECKING:
    from penstock.server.serve import Server

_log = logging.getLogger("penstock")

#: Commands that are answered at once come in turns of this many, so that others have theirs.
TURN = 256
#: And each has so many words at most: no client sends more, and nobody has a turn meanwhile.
AT_ONCE_WORDS = 1024
#: Writes that came together are submitted together up to this many, and up to this size, far
#: below what would be staged in several commits: then order is the order of submitting.
TOGETHER = 1000
TOGETHER_BYTES = 1 << 20

#: What may need nothing but one commit, by far the most frequent requests.
POSTED = frozenset(("TWRITE", "TREAD", "TACK"))

NOAUTH = error("NOAUTH", "Authentication required.")
UNBLOCKED = error("UNBLOCKED", "client unblocked via CLIENT UNBLOCK")

#: By the bytes that clients send; a dictionary of a few spellings spares upper and decode.
_BY_WORD: dict[bytes, Command] = {
    spelt.encode(): command
    for command in COMMANDS.values()
    for spelt in (command.name, command.name.lower(), command.name.capitalize())
}

ReplyMode = Literal["on", "off", "skip", "skip next"]
AnyRequest = Request | QueueRequest | TopicRequest | BulkRequest | SourceRequest | GraphRequest
#: Requests that may wait; what they take must not be taken for nobody.
Waiting = Read | ReadGroup | Claim | Poll | PauseTopic | Look


def find_command(word: bytes) -> Command | None:
    return _BY_WORD.get(word) or COMMANDS.get(word.upper().decode("latin-1"))


class Connection(asyncio.Protocol):
    __slots__ = (
        "_blocked",
        "_choked",
        "_ended",
        "_held",
        "_lost",
        "_parser",
        "_paused",
        "_queue",
        "_queue_bytes",
        "_task",
        "_unblocked",
        "_watch",
        "authenticated",
        "closing",
        "id",
        "last_at",
        "last_command",
        "library",
        "name",
        "protocol",
        "reply_mode",
        "server",
        "since",
        "transport",
    )

    def __init__(self, server: Server) -> None:
        self.server = server
        self.id = server.next_id()
        self.transport: asyncio.Transport | None = None
        self.protocol = 2
        self.name = ""
        self.library = ("", "")  # name and version, as CLIENT SETINFO told them
        self.authenticated = not server.password
        self.reply_mode: ReplyMode = "on"
        self.closing = False  # nothing more is read; what is in flight is answered
        self.since = self.last_at = server.clock.monotonic()
        self.last_command = ""
        self._parser = Parser(server.limits.request if self.authenticated else STRANGER)
        self._queue: deque[list[bytes]] | None = None  # None: nothing waits
        self._queue_bytes = 0  # received since the queue was empty
        #: While something is awaited: a task, or the write itself.
        self._task: asyncio.Future[Any] | None = None
        self._blocked: asyncio.Task[streams.Encoded] | None = (
            None  # while that is a read that waits
        )
        self._unblocked: Literal["", "timeout", "error"] = ""
        self._paused = False  # reading is
        self._choked = False  # writing is
        self._watch: asyncio.TimerHandle | None = None  # while writing is paused
        self._held = 0  # bytes of an unfinished request, as told to the server
        self._ended = False  # the client sends nothing more
        self._lost = False  # and reads nothing more

    # -- what others ask

    @property
    def busy(self) -> bool:
        return self._task is not None or bool(self._queue)

    @property
    def blocked(self) -> bool:
        return self._blocked is not None

    @property
    def waiting(self) -> int:
        return len(self._queue or ())

    def authenticate(self) -> None:
        self.authenticated = True
        # In a pipeline the password comes with what it allows.
        behind = self._parser.admit(self.server.limits.request)
        if behind:
            assert self._queue is not None, "the password was in it"
            self._queue.extend(behind)
        if self._held:
            self._account()

    def forget_authentication(self) -> None:
        self.authenticated = not self.server.password
        if not self.authenticated:
            self._parser.limits = STRANGER

    def unblock(self, how: Literal["timeout", "error"]) -> bool:
        if self._blocked is None:
            return False
        self._unblocked = how
        self._blocked.cancel()
        return True

    def shut(self) -> None:
        """Read nothing more; close once what is in flight is answered. A blocked read is not."""
        self.closing = True
        if self._queue is not None:
            self._queue.clear()
        if self._blocked is not None:
            self._blocked.cancel()
        if self._task is None and self.transport is not None:
            self.transport.close()

    def cut(self) -> None:
        """End it now, whatever is unread."""
        self.closing = True
        if self.transport is not None:
            self.transport.abort()

    # -- what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        limits = self.server.limits
        self.transport.set_write_buffer_limits(high=min(limits.unread_bytes, limits.output_bytes))
        if self.server.closing:
            self.cut()  # as if nobody had listened any more: the client looks for the next one
        elif not self.server.admit(self):
            self.transport.write(error("ERR", "max number of clients reached"))
            self.transport.close()
            self.closing = True

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        parser = self._parser
        requests = parser.feed(data)
        if (self._held or parser.held_bytes) and not self._account():
            return
        if requests:
            if self._queue:
                self._queue.extend(requests)
            else:
                self._queue = deque(requests)
        if self._task is None and not self._choked:
            self._advance()
        if self._queue:
            self._queue_bytes += len(data)
            self._throttle()

    def eof_received(self) -> bool:
        self._ended = True
        if self._blocked is not None:
            self._blocked.cancel()
            return False
        # What was received is still done and answered: `printf … | nc` waits for that.
        return self.busy and not self.closing

    def connection_lost(self, reason: Exception | None) -> None:
        self._lost = self._ended = self.closing = True
        self.server.dismiss(self, self._held)
        self._held = 0
        self._choked = False
        self._unwatch()
        if self._blocked is not None:
            self._blocked.cancel()
        elif self._task is None and self._queue:
            self._advance()

    def pause_writing(self) -> None:
        self._choked = True
        self._watch_unread()

    def resume_writing(self) -> None:
        self._choked = False
        self._unwatch()
        if self._task is None and not self._lost:
            self._advance()

    # -- bounds

    def _account(self) -> bool:
        """Tell the server what is held for an unfinished request. -> whether it may stay"""
        held = self._parser.held_bytes
        fits = self.server.hold(held - self._held)
        self._held = held
        if not fits:
            self._write(error("ERR", "too many bytes of unfinished requests"))
            self.server.counts.cut_unfinished += 1
            self._parser = Parser(STRANGER)  # lets go of them now
            self.shut()
        return fits

    def _throttle(self) -> None:
        limits = self.server.limits
        if self.transport is None or self._queue is None:
            return
        if self._blocked is not None:
            if self._queue_bytes > limits.blocked_bytes:
                self.server.counts.cut_waiting += 1
                self.cut()
        elif not self._paused and (
            self._queue_bytes > limits.waiting_bytes or len(self._queue) > limits.waiting_requests
        ):
            self._paused = True
            self.transport.pause_reading()

    def _drained(self) -> None:
        """Nothing waits any more."""
        self._queue = None
        self._queue_bytes = 0
        self._resume_reading()

    def _resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            if self.transport is not None and not self.closing:
                self.transport.resume_reading()

    def _watch_unread(self) -> None:
        assert self.transport is not None
        unread = self.transport.get_write_buffer_size()
        self._watch = asyncio.get_running_loop().call_later(
            self.server.limits.unread_seconds, self._still_unread, unread
        )

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _still_unread(self, before: int) -> None:
        assert self.transport is not None
        if self.transport.get_write_buffer_size() >= before:
            self.server.counts.cut_unread += 1
            self.cut()
        else:
            self._watch_unread()

    def _send(self, reply: bytes) -> None:
        if self.reply_mode == "on" or self._wanted():
            self._write(reply)

    def _write(self, reply: bytes) -> None:
        if self._lost or self.transport is None:
            return
        unread = self.transport.get_write_buffer_size()
        if unread and unread + len(reply) > self.server.limits.output_bytes:
            self.server.counts.cut_unread += 1
            self.cut()
            return
        self.transport.write(reply)

    def _wanted(self) -> bool:
        """CLIENT REPLY: OFF swallows all, SKIP its own reply and the next one."""
        if self.reply_mode == "skip":
            self.reply_mode = "skip next"
        elif self.reply_mode == "skip next":
            self.reply_mode = "on"
        return False

    # -- requests

    def _advance(self) -> None:
        """Answer what can be answered at once; begin a task for the first that cannot."""
        queue, turn = self._queue, TURN
        replies: list[bytes] = []
        while queue and not self._choked and not (self.closing and not self._lost):
            words = queue.popleft()
            command = find_command(words[0])
            if command is None or command.name not in PARSERS:
                self._append(replies, self._answer(command, words))
                turn -= 1
                if not turn and queue:
                    asyncio.get_running_loop().call_soon(self._next_turn)
                    break
                continue
            self._flush(replies)
            if command.name in POSTED and self.authenticated and not queue and not self._lost:
                if self._post(command, words):
                    return
                continue
            self._work_on(command, words)
            return
        self._flush(replies)
        if not queue or self.closing:
            self._drained()
            self._finish()

    def _post(self, command: Command, words: list[bytes]) -> bool:
        """Begin a request that came alone, without a task of its own if it needs but a commit. ->
        whether it is under way; else it is answered."""
        self._note(command)
        try:
            command.check_arity(len(words))
            request = PARSERS[command.name](words)
            posted = streams.post(cast(Request, request), self.server.broker.streams, self.protocol)
        except Exception as failure:
            self._send(self._encode_failure(command, failure))
            return False
        if posted is None:
            self._work_on(command, words, self._respond(request))
            return True
        answer, finish = posted
        if not isinstance(answer, asyncio.Future):
            self._work_on(command, words, streams.finished(answer, finish))
            return True
        self._task = answer
        answer.add_done_callback(partial(self._posted, command, words, finish))
        return True

    def _posted(
        self,
        command: Command,
        words: list[bytes],
        finish: streams.Finish,
        answer: asyncio.Future[list[Any]],
    ) -> None:
        self._task = None
        if answer.cancelled():
            self.cut()  # the broker ends
            return
        try:
            reply = finish(answer.result())
        except Exception as failure:
            reply = self._encode_failure(command, failure)
        if isinstance(reply, bytes):
            self._send(reply)
            self._advance()
        else:
            self._work_on(command, words, reply)

    def _work_on(
        self, command: Command, words: list[bytes], begun: Coroutine[Any, Any, bytes] | None = None
    ) -> None:
        """Go on with a task, from this request on; it may have begun."""
        work = self._work(command, words, begun)
        self._task = asyncio.get_running_loop().create_task(work)

    def _encode_failure(self, command: Command, failure: Exception) -> bytes:
        if isinstance(failure, PenstockError):
            return encode_error(failure)
        _log.error("%s failed", command.name, exc_info=failure)
        self.server.counts.internal_errors += 1
        return INTERNAL

    def _note(self, command: Command) -> None:
        self.last_at = self.server.clock.monotonic()
        self.last_command = command.name
        self.server.counts.commands += 1

    def _next_turn(self) -> None:
        if self._task is None:
            self._advance()

    def _append(self, replies: list[bytes], reply: bytes) -> None:
        if self.reply_mode == "on" or self._wanted():
            replies.append(reply)

    def _flush(self, replies: list[bytes]) -> None:
        if replies:
            self._write(replies[0] if len(replies) == 1 else b"".join(replies))
            replies.clear()

    def _finish(self) -> None:
        """With nothing in flight: say what was wrong, and close where it is time to."""
        if self.transport is None or self._lost:
            return
        if self._parser.error is not None and not self.closing:
            self.server.counts.protocol_errors += 1
            self._write(error("ERR", f"Protocol error: {self._parser.error}"))
            self.closing = True
        if self.closing or self._ended:
            self.transport.close()

    def _answer(self, command: Command | None, words: list[bytes]) -> bytes:
        """Commands that wait for nothing, and those that do not exist."""
        if self._lost:
            return b""
        self.last_at = self.server.clock.monotonic()
        counts = self.server.counts
        counts.commands += 1
        if not self.authenticated and (command is None or "no_auth" not in command.flags):
            return NOAUTH
        if command is None:
            return unknown_command(words)
        self.last_command = command.name
        try:
            command.check_arity(len(words))
            if len(words) > AT_ONCE_WORDS:
                raise InvalidError(
                    f"wrong number of arguments for '{command.name.lower()}' command",
                    hint=f"at most {AT_ONCE_WORDS:,} words",
                )
            return housekeeping.HANDLERS[command.name](self, words)
        except PenstockError as failure:
            return encode_error(failure)
        except Exception:
            _log.exception("%s failed", command.name)
            counts.internal_errors += 1
            return INTERNAL

    async def _work(
        self, command: Command, words: list[bytes], begun: Coroutine[Any, Any, bytes] | None
    ) -> None:
        """Run requests one after the other until nothing waits, or nobody reads the replies."""
        try:
            while True:
                if begun is not None:
                    self._send(await self._reply(command, begun))
                    begun = None
                elif self._queue and command.name == "TWRITE":
                    await self._write_together(words)
                else:
                    self._send(await self._run(command, words))
                following = self._next_awaited()
                if following is None:
                    break
                command, words = following
        except asyncio.CancelledError:
            if not self.closing and not self._ended:
                raise
            self._queue = None
        except Exception:
            _log.exception("a connection failed")
            self.server.counts.internal_errors += 1
            self.cut()
        finally:
            self._task = None
        self._advance()

    def _next_awaited(self) -> tuple[Command, list[bytes]] | None:
        """The next request, if it is one to await; those that are not are left to `_advance`."""
        if not self._queue or self._choked or (self.closing and not self._lost):
            return None
        command = find_command(self._queue[0][0])
        if command is None or command.name not in PARSERS:
            if not self._lost:
                return None
            # Nobody reads the answer.
            self._queue.popleft()
            return self._next_awaited()
        return command, self._queue.popleft()

    async def _write_together(self, words: list[bytes]) -> None:
        """Submit the writes that came together; the commit decides them in this order."""
        together = [words]
        size = sum(map(len, words))
        queue = self._queue
        while queue and len(together) < TOGETHER and queue[0][0].upper() == b"TWRITE":
            size += sum(map(len, queue[0]))
            if size > TOGETHER_BYTES:
                break
            together.append(queue.popleft())
        command = COMMANDS["TWRITE"]
        if len(together) == 1:
            self._send(await self._run(command, words))
            return
        loop = asyncio.get_running_loop()
        # Tasks begin in the order in which they are made, and a write submits in its first step.
        tasks = [loop.create_task(self._run(command, each)) for each in together]
        try:
            replies: list[bytes] = []
            for task in tasks:
                self._append(replies, await task)
            self._flush(replies)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise

    async def _run(self, command: Command, words: list[bytes]) -> bytes:
        self._note(command)
        if not self.authenticated:
            return NOAUTH
        try:
            command.check_arity(len(words))
            request = PARSERS[command.name](words)
        except Exception as failure:
            return self._encode_failure(command, failure)
        return await self._reply(command, self._respond(request))

    async def _reply(self, command: Command, responding: Coroutine[Any, Any, bytes]) -> bytes:
        try:
            return await responding
        except Exception as failure:
            return self._encode_failure(command, failure)

    async def _respond(self, request: AnyRequest) -> bytes:
        if isinstance(request, Waiting):
            return await self._run_read(request)
        return await streams.whole(await self._ask(request))

    async def _ask(self, request: AnyRequest) -> streams.Encoded:
        server = self.server
        broker, limit = server.broker, server.limits.output_bytes
        if isinstance(request, QueueRequest):
            return await queues.run(request, broker.queues, self.protocol, limit, self._is_gone)
        if isinstance(request, TopicRequest):
            return await topics.run(request, broker.topics, self.protocol, limit, self._is_gone)
        if isinstance(request, BulkRequest):
            return await bulk.run(request, broker.bulk, self.protocol)
        if isinstance(request, SourceRequest):
            return await sources.run(request, broker.sources, self.protocol)
        if isinstance(request, GraphRequest):
            return await graphs.run(request, broker.graphs, self.protocol)
        return await streams.run(request, broker.streams, self.protocol, limit)

    def _is_gone(self) -> bool:
        """Nobody will read the reply that is being made."""
        return self._lost or (self._ended and self._blocked is not None)

    async def _run_read(self, request: Waiting) -> bytes:
        if request.block_ms == 0:
            # A read for somebody who is gone would deliver a group's entries to nobody.
            return b"" if self._lost else await streams.whole(await self._ask(request))
        if self._ended:
            raise asyncio.CancelledError
        self._resume_reading()
        self._blocked = asyncio.get_running_loop().create_task(self._ask(request))
        self.server.counts.blocked += 1
        how = ""
        encoded: streams.Encoded = UNBLOCKED
        try:
            encoded = await self._blocked
        except asyncio.CancelledError:
            how = self._unblocked
            if not how:
                raise
        finally:
            self.server.counts.blocked -= 1
            self._blocked = None
            self._unblocked = ""
        if how == "timeout":
            # As if the time had run out: what is there now, which is usually nothing.
            encoded = await self._ask(_without_block(request))
        # The wait is over: what was delivered is encoded to its end, or a group's entries are lost.
        return await streams.whole(encoded)


def _without_block(request: Waiting) -> Waiting:
    return msgspec.structs.replace(request, block_ms=0)
