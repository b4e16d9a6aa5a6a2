"""The open location of a Spark process."""

from __future__ import annotations

import gc
from typing import cast

import pytest
from pyspark import TaskContext

import penstock
from penstock.client.database import Database
from penstock.spark import handles

ADDRESS = "penstock://127.0.0.1:1"
HANDLE = cast(Database, object())


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A broker that is away for two tries."""
    tries: list[str] = []

    def open_(location: str, **_: object) -> Database:
        tries.append(location)
        if len(tries) <= 2:
            raise penstock.UnavailableError("connection refused")
        return HANDLE

    monkeypatch.setattr(penstock, "open", open_)
    monkeypatch.setattr(handles, "_open", {})
    return tries


def test_a_task_or_commit_waits_for_a_broker_that_is_away(tries: list[str]) -> None:
    """Each batch of a query commits in a process of its own: one restart would end the query."""
    assert handles.database(ADDRESS, waits=True) is HANDLE
    assert len(tries) == 3


def test_a_driver_waits_for_a_broker_that_restarts(tries: list[str]) -> None:
    """Each write in foreachBatch is planned in a process of its own."""
    handles.reach(ADDRESS)
    assert len(tries) == 3


def test_a_wrong_address_is_told_on_the_driver_before_any_task_waits(
    tries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handles, "PLAN_SECONDS", 0.0)
    with pytest.raises(penstock.UnavailableError):
        handles.database(ADDRESS)
    with pytest.raises(penstock.UnavailableError):
        handles.reach(ADDRESS)
    assert len(tries) == 2


def test_a_folder_is_not_opened_before_it_is_written(tries: list[str]) -> None:
    handles.reach("/data")
    assert tries == []


def test_a_worker_does_not_look_for_garbage_among_what_it_has_loaded(
    tries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries += ["not away"] * 2
    freezes: list[int] = []
    freeze = gc.freeze

    def count_and_freeze() -> None:
        freeze()
        freezes.append(gc.get_freeze_count())

    monkeypatch.setattr(gc, "freeze", count_and_freeze)
    handles.database(ADDRESS)
    assert not freezes  # a planner ends soon
    monkeypatch.setattr(TaskContext, "_taskContext", object())
    try:
        handles.database(ADDRESS + "2")
        handles.database(ADDRESS + "3")
        # Once: what came since may become garbage. What is frozen may still end by itself, so
        # how much it is says nothing afterwards.
        assert len(freezes) == 1
        assert freezes[0] > 0
    finally:
        gc.unfreeze()
