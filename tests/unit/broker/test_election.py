"""The folder's lock and the search for its broker: terms, signs of life, silence."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest

from penstock.broker.election import SILENCE_SECONDS, Election, Knock, Silence, SocketName, Wait
from penstock.broker.lock import (
    FolderLock,
    HeldError,
    highest_term,
    leave_path,
    lock_path,
    socket_path,
)
from penstock.errors import UnavailableError


class HandClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds

    def wall_ms(self) -> int:
        return 0

    def entropy(self, size: int) -> bytes:
        return bytes(size)

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "broker"))


def pass_silently(election: Election, clock: HandClock, seconds: float) -> list[object]:
    """What looks twice a second see."""
    seen: list[object] = []
    for _ in range(int(seconds * 2)):
        clock.seconds += 0.5
        seen.append(election.look())
    return seen


# The lock.


def test_the_first_holder_begins_term_one_and_the_second_is_told_who_it_is(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, serves=True)
    assert lock.term == 1
    with pytest.raises(HeldError, match=f"process {os.getpid()}") as caught:
        FolderLock(tmp_path)
    assert isinstance(caught.value, UnavailableError)
    assert (caught.value.term, caught.value.serves) == (1, True)
    lock.release()
    lock.release()
    again = FolderLock(tmp_path)
    assert again.term == 1
    with pytest.raises(HeldError) as caught:
        FolderLock(tmp_path, serves=True)
    assert not caught.value.serves, "it works by itself"
    again.release()


def test_a_challenger_makes_the_next_term_and_only_that_one_counts(tmp_path: Path) -> None:
    old = FolderLock(tmp_path, serves=True)
    assert not old.overtaken()
    new = FolderLock(tmp_path, over=1, serves=True)
    assert (new.term, highest_term(tmp_path)) == (2, 2)
    assert old.overtaken()
    assert not new.overtaken()
    with pytest.raises(HeldError) as caught:
        FolderLock(tmp_path, over=1)  # a second challenger of the same term is too late
    assert caught.value.term == 2
    old.release()
    with pytest.raises(HeldError):
        FolderLock(tmp_path)  # the free lock of a lower term is worth nothing
    new.release()
    assert FolderLock(tmp_path).term == 2


def test_a_sweep_leaves_the_highest_lock_and_no_old_socket(tmp_path: Path) -> None:
    old = FolderLock(tmp_path)
    socket_path(tmp_path, 1).touch()
    new = FolderLock(tmp_path, over=1)
    socket_path(tmp_path, 2).touch()
    (tmp_path / "broker" / "serve.log").touch()
    new.sweep()
    assert names(tmp_path) == ["2.lock", "serve.log"]
    assert old.overtaken()
    old.release()
    new.release()


def test_a_lock_that_was_won_on_a_removed_file_is_not_won(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the lock, a challenger took over and removed the file."""
    FolderLock(tmp_path).release()
    real_open = os.open
    challengers: list[FolderLock] = []

    def slow_open(path: object, *rest: int, **more: int) -> int:
        if str(path).endswith("1.lock") and not challengers:
            monkeypatch.setattr(os, "open", real_open)
            challengers.append(FolderLock(tmp_path, over=1))
            challengers[0].sweep()
        return real_open(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", slow_open)
    with pytest.raises(HeldError) as caught:
        FolderLock(tmp_path)
    assert caught.value.term == 2
    assert names(tmp_path) == ["2.lock"]
    challengers[0].release()


def test_of_many_at_once_one_gets_the_lock(tmp_path: Path) -> None:
    for round_ in range(20):
        won: list[FolderLock] = []
        start = threading.Barrier(8)

        def race(
            won: list[FolderLock] = won, start: threading.Barrier = start, over: int = round_
        ) -> None:
            start.wait()
            with contextlib.suppress(HeldError):
                won.append(FolderLock(tmp_path, over=over if over else None))

        threads = [threading.Thread(target=race) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [lock.term for lock in won] == [round_ + 1]
        won[0].release()


# The search.


def test_whoever_finds_the_lock_free_serves(tmp_path: Path) -> None:
    lock = Election(tmp_path, HandClock()).look()
    assert isinstance(lock, FolderLock)
    assert Election(tmp_path, HandClock()).look() == Knock(1)
    lock.release()
    again = Election(tmp_path, HandClock()).look()
    assert isinstance(again, FolderLock)
    again.release()


def test_a_holder_that_gives_no_sign_is_overtaken_after_five_seconds(tmp_path: Path) -> None:
    old = FolderLock(tmp_path, serves=True)
    clock = HandClock()
    election = Election(tmp_path, clock)
    election.look()
    seen = pass_silently(election, clock, SILENCE_SECONDS)
    assert seen[:-1] == [Knock(1)] * (len(seen) - 1)
    new = seen[-1]
    assert isinstance(new, FolderLock)
    assert new.term == 2
    assert old.overtaken()
    old.release()
    new.release()


def test_a_holder_that_gives_signs_while_it_opens_is_waited_for(tmp_path: Path) -> None:
    holder = FolderLock(tmp_path, serves=True)
    clock = HandClock()
    election = Election(tmp_path, clock)
    for n in range(20):
        os.utime(lock_path(tmp_path, 1), ns=(n, n))  # beats, at times that surely differ
        assert pass_silently(election, clock, 2.0) == [Knock(1)] * 4
    before = lock_path(tmp_path, 1).stat().st_mtime_ns
    holder.beat()
    assert lock_path(tmp_path, 1).stat().st_mtime_ns > before
    holder.release()


def test_a_holder_that_works_by_itself_is_never_overtaken(tmp_path: Path) -> None:
    holder = FolderLock(tmp_path)
    clock = HandClock()
    seen = pass_silently(Election(tmp_path, clock), clock, 60)
    assert all(
        isinstance(each, Wait) and "is open in another process" in each.reason for each in seen
    )
    holder.release()


def test_a_searcher_that_slept_itself_does_not_blame_the_holder(tmp_path: Path) -> None:
    holder = FolderLock(tmp_path, serves=True)
    clock = HandClock()
    election = Election(tmp_path, clock)
    election.look()
    clock.seconds += 3600  # this process was stopped
    assert election.look() == Knock(1)
    assert not election.overdue(1)
    holder.release()
    silence = Silence(clock)
    clock.seconds += 3600
    assert silence.tick() < SILENCE_SECONDS


def test_a_suspected_holder_is_overtaken_at_once_unless_the_term_moved_on(tmp_path: Path) -> None:
    first = FolderLock(tmp_path, serves=True)
    election = Election(tmp_path, HandClock())
    election.suspect(1)
    second = election.look()
    assert isinstance(second, FolderLock)
    late = Election(tmp_path, HandClock())
    late.suspect(1)
    assert late.look() == Knock(2)
    first.release()
    second.release()


def test_knocking_ends_when_the_term_moves_on(tmp_path: Path) -> None:
    first = FolderLock(tmp_path, serves=True)
    election = Election(tmp_path, HandClock())
    assert election.look() == Knock(1)
    assert not election.overdue(1)
    second = FolderLock(tmp_path, over=1, serves=True)
    assert election.overdue(1)
    first.release()
    second.release()


def test_a_process_that_never_serves_takes_no_lock(tmp_path: Path) -> None:
    clock = HandClock()
    election = Election(tmp_path, clock, serves=False)
    assert isinstance(election.look(), Wait)
    FolderLock(tmp_path, serves=True).release()
    assert pass_silently(election, clock, 20) == [Knock(1)] * 40
    assert highest_term(tmp_path) == 1


def test_a_socket_deep_down_has_a_short_name(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d" * 100] * 3)
    FolderLock(deep).release()
    with SocketName(tmp_path, 7) as near, SocketName(deep, 7) as far:
        assert near.address == str(socket_path(tmp_path, 7))
        assert len(far.address) < 107
        Path(far.address).touch()
    assert socket_path(deep, 7).exists()


def test_a_lock_that_cannot_say_who_has_it_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(UnavailableError, match="No space left"):
            FolderLock(tmp_path)
    FolderLock(tmp_path).release()  # there is room again


def test_a_wish_of_the_past_sends_no_broker_away(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, serves=True)
    assert not lock.asked_to_leave()
    leave_path(tmp_path, lock.term).touch()  # of a check that was killed
    assert lock.asked_to_leave()
    lock.sweep()  # as every broker does before it listens
    assert not lock.asked_to_leave()
    assert lock_path(tmp_path, lock.term).exists()
    lock.release()


def test_a_lock_says_that_its_holder_ends_by_itself(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, serves=True)
    for while_used in (True, False):
        lock.note(serves=True, while_used=while_used)
        with pytest.raises(HeldError) as caught:
            FolderLock(tmp_path)
        assert (caught.value.serves, caught.value.while_used) == (True, while_used)
    lock.release()
