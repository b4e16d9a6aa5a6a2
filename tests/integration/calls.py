"""Calls that must answer, whatever the store does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import penstock
from integration.children import PATIENCE_SECONDS
from integration.ledger import Ledger, entries

R = TypeVar("R")

DEADLINE_SECONDS = 3.0


def answer_of(call: Callable[[], R]) -> R:
    """What a call gives or raises; fails where it hangs. The wait is a guard, not a measurement."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(PATIENCE_SECONDS)


def write_noted(stream: penstock.Stream, ledger: Ledger, batch: str, size: int) -> None:
    """One batch; its acknowledgement goes into the ledger."""
    data = entries(batch, size)
    offsets = answer_of(lambda: stream.write_many(data))
    ledger.note([f"ack {stream.name} {batch} {size} {offsets.start}"])


def write_until_accepted(stream: penstock.Stream, ledger: Ledger, name: str) -> None:
    """Try again as a caller would, after an UnavailableError, until the store is back."""
    for number in range(300):
        try:
            return write_noted(stream, ledger, f"{name}.{number}", 7)
        except penstock.UnavailableError:
            threading.Event().wait(0.1)
    raise AssertionError("writing did not come back")
