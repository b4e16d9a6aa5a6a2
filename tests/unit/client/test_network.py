"""penstock://host:port: a broker behind an address, with a password, lost and found again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker.broker import Broker
from penstock.server.serve import Server


class Elsewhere:
    """A broker of its own on a loop of its own, whose server can be closed and begun again."""

    def __init__(self, password: str | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._password = password
        self.port = 0
        location = f"memory://network-{datetime.now(UTC).timestamp()}"
        self.broker: Broker = self.run(Broker.open(location, deadline=30))
        self.listen()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def listen(self) -> None:
        self.server = Server(self.broker, password=self._password)
        self.port = self.run(self.server.listen_tcp("127.0.0.1", self.port))

    def close_server(self) -> None:
        self.run(self.server.close())

    def end(self) -> None:
        self.close_server()
        self.run(self.broker.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    made = Elsewhere()
    yield made
    made.end()


def test_a_handle_on_an_address_finds_its_broker_again(elsewhere: Elsewhere) -> None:
    with penstock.open(f"penstock://127.0.0.1:{elsewhere.port}") as db:
        stream = db.stream("s")
        assert stream.write(b"0") == 0
        assert db._session.link.broker is None
        elsewhere.close_server()
        elsewhere.listen()
        assert [m and m.data for m in stream.read(0, 9)] == [b"0"]
        assert stream.write(b"1") == 1


def test_a_store_that_does_not_open_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket has no broker elsewhere that could be missed."""

    async def hangs(*_: object, **__: object) -> Broker:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(Broker, "open", hangs)
    with pytest.raises(penstock.UnavailableError, match="the store did not open in time"):
        penstock.open("memory://", deadline=0.1)


def test_a_broker_that_does_not_come_back_is_unavailable_after_the_deadline(
    elsewhere: Elsewhere,
) -> None:
    with penstock.open(f"penstock://127.0.0.1:{elsewhere.port}", deadline=0.5) as db:
        assert db.stream("s").write(b"0") == 0
        elsewhere.close_server()
        for _ in range(2):
            with pytest.raises(penstock.UnavailableError, match="no broker answers"):
                db.stream("s").read(0)
        elsewhere.listen()
        assert db.stream("s").write(b"1") == 1


def test_a_password_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Elsewhere(password="open sesame")
    location = f"penstock://localhost:{elsewhere.port}"
    try:
        for wrong, told in ((None, "asks for a password"), ("wrong", "refuses the password")):
            if wrong is not None:
                monkeypatch.setenv("PENSTOCK_PASSWORD", wrong)
            with pytest.raises(penstock.InvalidError, match=told) as refused:
                penstock.open(location)
            assert "PENSTOCK_PASSWORD" in refused.value.hint
        monkeypatch.setenv("PENSTOCK_PASSWORD", "open sesame")
        with penstock.open(location) as db:
            assert db.stream("s").write(b"x") == 0
    finally:
        elsewhere.end()


@pytest.mark.parametrize(
    "entries", [[b""] * (1 << 19), [bytes(50 << 20)] * 3], ids=["too many", "too much"]
)
def test_a_write_that_no_server_would_read_is_refused_and_ends_no_connection(
    elsewhere: Elsewhere, entries: list[bytes]
) -> None:
    """Others share the connection: what they have under way would be lost with it."""
    with penstock.open(f"penstock://127.0.0.1:{elsewhere.port}") as db:
        stream = db.stream("s")
        stream.write(b"0")
        before = elsewhere.server.counts.connections
        with pytest.raises(penstock.InvalidError, match="over a socket at most"):
            stream.write_many(entries)
        assert stream.write(b"1") == 1
        assert elsewhere.server.counts.connections == before
        assert elsewhere.server.counts.protocol_errors == 0


def test_writes_of_one_producer_keep_their_order_also_where_the_server_is_lost(
    elsewhere: Elsewhere,
) -> None:
    """Those that were sent and those that were not: a later one that came first would be all that
    the broker takes of them."""

    async def main() -> list[range]:
        db = await penstock.aio.open(f"penstock://127.0.0.1:{elsewhere.port}")
        stream = db.stream("s")
        writes = [
            asyncio.create_task(stream.write_many([b"x"], producer="p", sequence=n))
            for n in range(2000)
        ]
        await writes[0]
        for _ in range(3):
            await asyncio.to_thread(elsewhere.close_server)
            await asyncio.to_thread(elsewhere.listen)
        try:
            return await asyncio.gather(*writes)
        finally:
            await db.close()

    assert asyncio.run(main()) == [range(n, n + 1) for n in range(2000)]


def test_closing_waits_for_the_writes_of_a_producer_that_were_begun(tmp_path: Path) -> None:
    async def main() -> list[range]:
        db = await penstock.aio.open(tmp_path / "data")
        stream = db.stream("s")
        writes = [
            asyncio.create_task(stream.write_many([b"x"], producer="p", sequence=n))
            for n in range(50)
        ]
        await writes[0]
        await db.close()
        with pytest.raises(penstock.InvalidError, match="closed"):
            await stream.write_many([b"x"], producer="p", sequence=50)
        return await asyncio.gather(*writes)

    assert asyncio.run(main()) == [range(n, n + 1) for n in range(50)]
