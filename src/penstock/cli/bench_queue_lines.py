"""How `penstock bench queue` talks to each system: one connection, used by one thread.

Contract     `publish` returns when the messages are durable. `claim` waits up to `wait` seconds
             until there are `least` messages and gives at most `count` payloads; `ack` settles what
             the last claim gave. Each system is used in the way that its own manual calls fast and
             safe, through its usual Python client; confirms and messages of RabbitMQ are received
             by pika's event loop, because its blocking channel waits for each confirm alone.
Disk         DiskLine does no more than what every durable call of any system must: it writes the
             bytes and syncs them, into a file that has its size already, as the logs of databases
             have. Nothing that answers when the bytes are durable can be faster.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import penstock
from penstock.clock import perf_counter
from penstock.store.disk import fill_zeros

#: So many messages may be on their way to a consumer of RabbitMQ: the next batch and one more.
PREFETCH = 300
#: Long enough that nothing falls due during a run.
LEASE_SECONDS = 3600
#: Where these stand in a row of QUEUE.CLAIM.
_PAYLOAD, _RECEIPT = 1, 6
DISK_BYTES = 16 << 20


class Line(Protocol):
    def publish(self, payloads: Sequence[bytes]) -> None: ...

    def claim(self, count: int, *, least: int = 1, wait: float = 0.0) -> list[bytes]: ...

    def ack(self) -> None: ...

    def close(self) -> None: ...


# ---- Penstock ---------------------------------------------------------------------------------


class PenstockLine:
    """In this process. Several of them share the handle."""

    def __init__(self, db: penstock.Database, queue: str) -> None:
        self._db = db
        self._queue = db.queue(queue)
        self._claimed: list[penstock.ClaimedMessage] = []

    def publish(self, payloads: Sequence[bytes]) -> None:
        self._db.publish_many(payloads)

    def claim(self, count: int, *, least: int = 1, wait: float = 0.0) -> list[bytes]:
        self._claimed = self._queue.claim(count, wait=wait)
        return [message.payload or b"" for message in self._claimed]

    def ack(self) -> None:
        assert all(self._queue.ack(self._claimed))

    def close(self) -> None:
        self._queue.close()


class RespLine:
    """Through redis-py."""

    def __init__(self, port: int, queue: str) -> None:
        import redis

        self._client: Any = redis.Redis(port=port, protocol=3)
        self._queue = queue
        self._receipts: list[bytes] = []

    def create(self) -> None:
        self._call("QUEUE.CREATE", self._queue, "LEASE", 1000 * LEASE_SECONDS)

    def _call(self, *words: str | bytes | int) -> Any:
        return self._client.execute_command(*words)

    def publish(self, payloads: Sequence[bytes]) -> None:
        words = [word for payload in payloads for word in (b"PAYLOAD", payload)]
        self._call("QUEUE.PUBLISHMANY", *words)

    def claim(self, count: int, *, least: int = 1, wait: float = 0.0) -> list[bytes]:
        waiting = ("WAIT", int(1000 * wait)) if wait else ()
        found = self._call("QUEUE.CLAIM", self._queue, count, *waiting, "ROWS")
        self._receipts = [row[_RECEIPT] for row in found]
        return [row[_PAYLOAD] for row in found]

    def ack(self) -> None:
        assert all(self._call("QUEUE.ACK", self._queue, *self._receipts))

    def server_pid(self) -> int:
        return int(self._client.info("server")["process_id"])

    def close(self) -> None:
        self._client.close()


# ---- the disk ---------------------------------------------------------------------------------


class DiskLine:
    """The payloads, and 8 bytes for each message that is claimed or acknowledged."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "disk", os.O_RDWR | os.O_CREAT, 0o600)
        fill_zeros(self._file, DISK_BYTES, sync=True)
        self._end = 0
        self._claimed = 0

    def _write(self, data: bytes) -> None:
        if self._end + len(data) > DISK_BYTES:
            self._end = 0
        self._end += os.pwrite(self._file, data, self._end)
        os.fdatasync(self._file)

    def publish(self, payloads: Sequence[bytes]) -> None:
        self._write(b"".join(payloads))

    def claim(self, count: int, *, least: int = 1, wait: float = 0.0) -> list[bytes]:
        self._claimed = count
        self._write(bytes(8 * count))
        return [b""] * count

    def ack(self) -> None:
        self._write(bytes(8 * self._claimed))

    def close(self) -> None:
        os.close(self._file)


# ---- Redis ------------------------------------------------------------------------------------


class RedisLine:
    """A stream with one group; appends in a pipeline."""

    def __init__(self, port: int, queue: str) -> None:
        import redis

        self._client: Any = redis.Redis(port=port, protocol=2)
        self._queue = queue
        self._ids: list[bytes] = []
        with contextlib.suppress(redis.ResponseError):  # there is one already
            self._call("XGROUP", "CREATE", queue, "g", "0", "MKSTREAM")

    def _call(self, *words: str | bytes | int) -> Any:
        return self._client.execute_command(*words)

    def publish(self, payloads: Sequence[bytes]) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            for payload in payloads:
                pipe.execute_command("XADD", self._queue, "*", "", payload)
            pipe.execute()

    def claim(self, count: int, *, least: int = 1, wait: float = 0.0) -> list[bytes]:
        waiting = ("BLOCK", int(1000 * wait)) if wait else ()
        found = self._call(
            *("XREADGROUP", "GROUP", "g", "c", "COUNT", count, *waiting),
            *("STREAMS", self._queue, ">"),
        )
        entries = found[0][1] if found else []
        self._ids = [entry[0] for entry in entries]
        return [entry[1][b""] for entry in entries]

    def ack(self) -> None:
        assert self._call("XACK", self._queue, "g", *self._ids) == len(self._ids)

    def close(self) -> None:
        self._client.close()


# ---- RabbitMQ ---------------------------------------------------------------------------------


class RabbitLine:
    """A durable queue, persistent messages, confirms; acknowledgements of many at once."""

    def __init__(self, port: int, queue: str) -> None:
        import pika

        self._queue = queue
        self._persistent = pika.BasicProperties(delivery_mode=2)
        self._sent = self._confirmed = 0
        self._consuming = False
        self._found: deque[tuple[int, bytes]] = deque()
        self._wanted = 0
        self._last = 0
        self._trouble: object = None
        parameters = pika.ConnectionParameters("127.0.0.1", port, blocked_connection_timeout=30)
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_open_error_callback=self._lost,
            on_close_callback=self._lost,
        )
        self._loop = self._connection.ioloop
        self._channel: Any = None
        self._run()

    def _run(self) -> None:
        """Until one of the callbacks below stops it."""
        self._loop.start()
        if self._trouble is not None:
            raise ConnectionError(f"RabbitMQ: {self._trouble!r}")

    def _lost(self, _: object, reason: object) -> None:
        self._trouble = reason
        self._loop.stop()

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.confirm_delivery(self._on_confirm)
        channel.queue_declare(self._queue, durable=True, callback=lambda _: self._loop.stop())

    def _on_confirm(self, frame: Any) -> None:
        if type(frame.method).__name__ != "Ack":
            self._lost(None, frame.method)
        elif frame.method.multiple:
            self._confirmed = frame.method.delivery_tag
        else:
            # Single ones may come out of order; how many they are is what counts.
            self._confirmed += 1
        if self._confirmed >= self._sent:
            self._loop.stop()

    def _on_message(self, _: object, method: Any, __: object, body: bytes) -> None:
        self._found.append((method.delivery_tag, body))
        if self._wanted and len(self._found) >= self._wanted:
            self._loop.stop()

    def publish(self, payloads: Sequence[bytes]) -> None:
        self._sent += len(payloads)
        for payload in payloads:
            self._channel.basic_publish("", self._queue, payload, self._persistent)
        self._run()

    def claim(self, count: int, *, least: int = 1, wait: float = 0.0) -> list[bytes]:
        if not self._consuming:
            self._consuming = True
            self._channel.basic_consume(self._queue, self._on_message)
        if len(self._found) < least:
            self._wanted = least
            timer = self._loop.call_later(wait, self._loop.stop)
            self._run()
            self._loop.remove_timeout(timer)
            self._wanted = 0
        found = [self._found.popleft() for _ in range(min(count, len(self._found)))]
        self._last = found[-1][0] if found else 0
        return [body for _, body in found]

    def ack(self) -> None:
        self._channel.basic_ack(self._last, multiple=True)
        # It goes out with the next turn of the loop; there is no answer to wait for.
        self._loop.add_callback_threadsafe(self._loop.stop)
        self._run()

    def close(self) -> None:
        self._connection.close()
        self._loop.start()


# ---- PostgreSQL -------------------------------------------------------------------------------


class PostgresLine:
    """A table; claimed rows are locked and skipped by others, and deleted with the commit."""

    def __init__(self, place: str, queue: str) -> None:
        import psycopg

        self._connection = psycopg.connect(place, autocommit=True)
        self._table = psycopg.sql.Identifier(queue)
        self._ids: list[int] = []
        table = psycopg.sql.Identifier(queue)
        make = "CREATE TABLE IF NOT EXISTS {} (id bigserial PRIMARY KEY, payload bytea NOT NULL)"
        self._connection.execute(psycopg.sql.SQL(make).format(table))
        self._connection.execute(psycopg.sql.SQL("LISTEN {}").format(table))
        self._insert = psycopg.sql.SQL(
            "WITH told AS (SELECT pg_notify({}, '')) INSERT INTO {} (payload)"
            " SELECT unnest(%b::bytea[]) FROM told RETURNING id"
        ).format(psycopg.sql.Literal(queue), table)
        self._select = psycopg.sql.SQL(
            "SELECT id, payload FROM {} ORDER BY id LIMIT %b FOR UPDATE SKIP LOCKED"
        ).format(table)
        self._delete = psycopg.sql.SQL("DELETE FROM {} WHERE id = ANY(%b)").format(table)

    def publish(self, payloads: Sequence[bytes]) -> None:
        cursor = self._connection.execute(self._insert, [list(payloads)])
        assert len(cursor.fetchall()) == len(payloads)

    def claim(self, count: int, *, least: int = 1, wait: float = 0.0) -> list[bytes]:
        until = perf_counter() + wait
        # Some notifications are of messages that came with an earlier claim.
        while not (rows := self._rows(count)) and (left := until - perf_counter()) > 0:
            for _ in self._connection.notifies(timeout=left, stop_after=1):
                pass
        self._ids = [row[0] for row in rows]
        return [row[1] for row in rows]

    def _rows(self, count: int) -> list[tuple[int, bytes]]:
        self._connection.execute("BEGIN")
        rows = self._connection.cursor(binary=True).execute(self._select, [count]).fetchall()
        if not rows:
            self._connection.execute("ROLLBACK")
        return rows

    def ack(self) -> None:
        self._connection.execute(self._delete, [self._ids])
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()
