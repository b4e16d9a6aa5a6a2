"""Several processes on one folder: the broker is killed, stopped or closed, others go on."""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from integration.children import Child
from integration.seeds import fresh_seed
from penstock.broker.lock import highest_term, lock_path

#: Far above the two seconds that a takeover may take on a machine that is not busy.
TAKEOVER_SECONDS_MAX = 20.0


def serving_pid(location: Path) -> int:
    """The process that holds the highest lock, or held it last."""
    words = lock_path(location, highest_term(location)).read_text().split()
    return int(words[1]) if len(words) > 1 else 0


class Members:
    """Children that write and follow one stream, and what they were told."""

    def __init__(self, location: Path, count: int) -> None:
        self.location = location
        self.children: dict[str, Child] = {}
        self.acks: dict[tuple[str, int], tuple[int, int]] = {}
        self.delivered: set[int] = set()
        self._names = iter(f"m{number}" for number in range(10_000))
        for _ in range(count):
            self.add()
        for child in self.children.values():
            assert child.hear() == "open"

    def add(self) -> str:
        name = next(self._names)
        self.children[name] = Child("member", self.location, name)
        return name

    def note(self, name: str, lines: list[str]) -> int:
        """-> how many acknowledgements there were"""
        acks = 0
        for line in lines:
            match line.split(" "):
                case ["ack", sequence, size, start]:
                    key = (name, int(sequence))
                    assert key not in self.acks
                    self.acks[key] = (int(start), int(size))
                    acks += 1
                case ["did", *offsets]:
                    self.delivered.update(map(int, offsets))
                case ["open"] | ["end", _]:
                    pass
                case _:
                    raise AssertionError(f"{name}: {line}")
        return acks

    def drain(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for name, child in self.children.items():
                self.note(name, child.drain(min(left, 0.02)))

    def broker(self) -> str:
        pid = serving_pid(self.location)
        return next(name for name, child in self.children.items() if child.pid == pid)

    def kill(self, name: str) -> None:
        with self.children.pop(name) as child:
            self.note(name, child.kill())

    def await_ack(self) -> float:
        """Seconds until somebody is served again, and then everybody."""
        begun = time.monotonic()
        for name, child in self.children.items():
            self.note(name, child.drain())
        first: float | None = None
        waiting = set(self.children)
        while waiting:
            for name in list(waiting):
                if self.note(name, self.children[name].drain(0.01)):
                    waiting.discard(name)
                    first = first or time.monotonic() - begun
            assert time.monotonic() - begun < TAKEOVER_SECONDS_MAX, f"{waiting} are not served"
        return first or 0.0

    def finish(self) -> list[int]:
        """End all; -> how far each of them had read."""
        ends: list[int] = []
        for child in self.children.values():
            child.tell("end")
        for name, child in self.children.items():
            *lines, last = child.hear_until("end")
            self.note(name, lines)
            ends.append(int(last.split(" ")[1]))
            assert child.finish() == 0, child.errors()
            assert child.errors() == ""
            child.__exit__(None, None, None)
        self.children.clear()
        return ends

    def verify(self) -> int:
        """Everything acknowledged is there, once, where it was said; offsets are dense."""
        with penstock.open(self.location) as db:
            stream = db.stream("shared")
            info = stream.info()
            found = stream.read(0, info.last + 1)
            self._finish_group(stream)
        assert self.delivered == set(range(info.last + 1)), "the group delivers everything"
        assert info.first == 0
        assert [message.offset for message in found if message] == list(range(info.last + 1))
        batches: dict[tuple[str, int], int] = {}
        at = 0
        while at < len(found):
            message = found[at]
            assert message is not None
            name, sequence, index, size = message.data.decode().split(" ")
            assert index == "0", f"a batch begins with {message.data!r}"
            for i in range(int(size)):
                piece = found[at + i]
                assert piece is not None
                assert piece.data == f"{name} {sequence} {i} {size}".encode()
            assert (name, int(sequence)) not in batches, f"{name} {sequence} is there twice"
            batches[name, int(sequence)] = at
            at += int(size)
        for key, (start, _) in self.acks.items():
            assert batches.get(key) == start, f"{key} was acknowledged at {start}"
        for name in {name for name, _ in batches}:
            sequences = [sequence for each, sequence in batches if each == name]
            assert sequences == list(range(len(sequences))), f"{name} is out of order"
        return len(found)

    def _finish_group(self, stream: penstock.Stream) -> None:
        """Take what is left, and what comes again because nobody acknowledged it."""
        while True:
            last = stream.read_group("g", 1000, block=1.0, retry=0.5)
            self.delivered.update(message.offset for message in last)
            stream.ack("g", *(message.offset for message in last))
            info = stream.group("g").info()
            if not info.pending and info.last_offset == stream.info().last:
                break
        assert info.ack_offset == info.last_offset + 1
        assert (info.expired, info.skipped) == (0, 0)

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children.values():
            child.__exit__(None, None, None)


def kill_brokers(location: Path, *, processes: int, kills: int, seed: int) -> list[float]:
    print(f"seed {seed}")
    rng = random.Random(seed)
    times: list[float] = []
    with Members(location, processes) as members:
        members.await_ack()
        for _ in range(kills):
            members.drain(rng.uniform(0, 0.3))
            members.kill(members.broker())
            times.append(members.await_ack())
            members.add()
            members.await_ack()
        ends = members.finish()
        total = members.verify()
        assert max(ends) <= total
        assert len(members.acks) > kills * processes, "hardly anything was written"
    print(f"takeover with {processes} processes: {[f'{each:.2f}' for each in times]} s")
    return times


@pytest.mark.parametrize("processes", [2, 4])
def test_killed_brokers_lose_and_double_nothing(tmp_path: Path, processes: int) -> None:
    kill_brokers(tmp_path / "d", processes=processes, kills=4, seed=fresh_seed())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("processes", [2, 4, 8])
def test_many_killed_brokers_lose_and_double_nothing(tmp_path: Path, processes: int) -> None:
    kill_brokers(tmp_path / "d", processes=processes, kills=40, seed=fresh_seed())


# Stopped, not dead.


@pytest.fixture
def _soon_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """For this process; the others are as patient as ever. One test waits the whole time."""
    monkeypatch.setattr("penstock.broker.election.SILENCE_SECONDS", 1.5)


def ask(child: Child, line: str) -> str:
    child.tell(line)
    return child.hear()


def test_a_stopped_broker_is_overtaken_and_acknowledges_nothing_when_it_wakes_up(
    tmp_path: Path,
) -> None:
    location = tmp_path / "d"
    with Child("talker", location) as old:
        assert old.hear() == "open"
        assert ask(old, "serves") == "serves yes"
        with penstock.open(location) as db:
            stream = db.stream("s")
            assert ask(old, "wait 1000000") == "waiting"
            assert ask(old, "storm") == "storming"
            storm = [old.hear() for _ in range(10)]
            old.stop()
            begun = time.monotonic()
            # In flight when the broker is given up: a read goes on, by itself, at the next one.
            known = [message and message.data for message in stream.read(0, 100_000)]
            print(f"overtaken after {time.monotonic() - begun:.1f} s")
            assert serving_pid(location) != old.pid
            assert stream.write(b"new") >= len(known)
            old.resume()
            storm += old.hear_until("storm")
            storm += [old.hear() for _ in range(10)]  # it goes on, at the new broker
            old.tell("calm")
            storm += old.hear_until("calm")
            assert ask(old, "serves") == "serves no"
            assert sorted(os.listdir(location / "broker")) == ["2.lock", "2.sock"]
            found = [message and message.data for message in stream.read(0, 100_000)]
        # What it was told after it woke up is true of the new broker's stream, in both of them.
        told = [line.split(" ")[1:] for line in storm if line.startswith("storm ")]
        acked = {number: int(word) for number, word in told if word.isdigit()}
        for number, offset in acked.items():
            assert found[offset] == f"storm-{number}".encode()
        # At most one call was under way; between two calls it learns of its end by itself.
        assert [word for _, word in told if not word.isdigit()] in ([], ["FencedError"])
        assert len(set(found)) == len(found)


@pytest.mark.usefixtures("_soon_too_long")
def test_a_read_that_waits_at_a_stopped_broker_goes_on_at_the_next_one(tmp_path: Path) -> None:
    with Child("talker", tmp_path) as old:
        assert old.hear() == "open"
        with penstock.open(tmp_path) as db:
            assert ask(old, "wait 1") == "waiting"
            old.stop()
            assert db.stream("s").read(0, 1) == []
            assert db._session.link.broker is not None
            old.resume()
            assert db.stream("s").write(b"0") == 0
            assert db.stream("s").write(b"1") == 1
            assert old.hear() == "got 1"


@pytest.mark.usefixtures("_soon_too_long")
def test_clients_of_a_stopped_broker_that_only_wait_are_served_by_the_next_one(
    tmp_path: Path,
) -> None:
    location = tmp_path / "d"
    with Child("talker", location) as old, Child("talker", location) as other:
        # Whoever was first serves.
        assert [old.hear(), other.hear()] == ["open", "open"]
        if ask(old, "serves") == "serves no":
            old, other = other, old
        assert ask(other, "wait 0") == "waiting"
        old.stop()
        with penstock.open(location) as db:
            assert db.stream("s").write(b"x") == 0
            assert other.hear() == "got x"
        old.resume()
        assert ask(old, "read 0").split(" ")[0] in ("read", "FencedError")
        assert ask(old, "read 0") == "read x"


def test_a_client_that_was_stopped_itself_does_not_overtake_a_living_broker(
    tmp_path: Path,
) -> None:
    with penstock.open(tmp_path) as db, Child("talker", tmp_path) as child:
        assert child.hear() == "open"
        child.stop()
        time.sleep(6.5)  # longer than the silence that is the end of a broker
        child.resume()
        assert ask(child, "write x") == "wrote 0"
        assert ask(child, "serves") == "serves no"
        assert db._session.link.broker is not None
        assert highest_term(tmp_path) == 1


def test_an_idle_handle_takes_over_too(tmp_path: Path) -> None:
    with Child("talker", tmp_path) as broker:
        assert broker.hear() == "open"
        with penstock.open(tmp_path) as db:
            broker.kill()
            begun = time.monotonic()
            while db._session.link.broker is None:  # without any call
                assert time.monotonic() - begun < TAKEOVER_SECONDS_MAX
                time.sleep(0.01)
            print(f"idle handle took over after {time.monotonic() - begun:.2f} s")


# Lost requests.


def test_a_plain_write_in_flight_is_unavailable_and_the_handle_goes_on(tmp_path: Path) -> None:
    with Child("talker", tmp_path) as broker:
        assert broker.hear() == "open"
        with penstock.open(tmp_path) as db:
            stream = db.stream("s")
            assert stream.write(b"0") == 0
            broker.stop()  # so that the next write is surely in flight
            outcome: list[object] = []

            def write() -> None:
                try:
                    outcome.append(stream.write(b"1"))
                except penstock.PenstockError as error:
                    outcome.append(error)

            writer = threading.Thread(target=write)
            writer.start()
            time.sleep(0.3)
            broker.kill()
            writer.join()
            (error,) = outcome
            assert isinstance(error, penstock.UnavailableError)
            assert error.retry
            found = [message and message.data for message in stream.read(0, 10)]
            assert found in ([b"0"], [b"0", b"1"])
            assert stream.write(b"2") == len(found)


def test_a_produced_write_in_flight_is_sent_again_by_itself(tmp_path: Path) -> None:
    with Child("talker", tmp_path) as broker:
        assert broker.hear() == "open"
        with penstock.open(tmp_path) as db:
            stream = db.stream("s")
            assert stream.write_many([b"a"], producer="p", sequence=1) == range(1)
            broker.stop()
            with ThreadPoolExecutor(1) as pool:
                written = pool.submit(stream.write_many, [b"b"], producer="p", sequence=2)
                read = [pool.submit(stream.read, 0, 9)]
                time.sleep(0.3)
                broker.kill()
                assert written.result() == range(1, 2)
                assert [m and m.data for m in read[0].result()] == [b"a", b"b"]


def test_a_broker_that_closes_hands_over(tmp_path: Path) -> None:
    with Child("talker", tmp_path) as broker:
        assert broker.hear() == "open"
        with penstock.open(tmp_path) as db, ThreadPoolExecutor(1) as pool:
            stream = db.stream("s")
            waiting = pool.submit(stream.read, 1, 1, block=60)
            assert stream.write(b"0") == 0
            assert ask(broker, "close") == "closed"
            assert stream.write(b"1") == 1
            assert [m and m.data for m in waiting.result()] == [b"1"]
            assert db._session.link.broker is not None
