"""A command that runs for long: how it is told to end, and how it tells how far it is.

Contract     The first SIGTERM or Ctrl-C is a wish, the second one an order. How far it is stands in
             one line on stderr, where that is a terminal; what Penstock logs goes around it.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator

from rich.console import Console

from penstock.cli.output import printable


@contextlib.contextmanager
def told_to_end(stop: Callable[[], None]) -> Iterator[threading.Event]:
    """-> whether somebody told it to. Around the work alone: Spark's start sets a handler of its
    own."""
    told = threading.Event()

    def tell(*_: object) -> None:
        if told.is_set():
            raise KeyboardInterrupt
        # Not here: a handler interrupts the main thread anywhere, perhaps with a lock in its hand.
        threading.Thread(target=stop, daemon=True).start()
        told.set()

    before = {number: signal.signal(number, tell) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def one_line(console: Console, words: str) -> Iterator[Callable[[str], None] | None]:
    """-> what changes the line; None where there is no terminal, and nobody reads it"""
    if not console.is_terminal:
        yield None
        return
    with console.status(words) as status:
        yield status.update


@contextlib.contextmanager
def logged(console: Console) -> Iterator[None]:
    """What Penstock has to say goes to stderr, around the line that tells how far it is."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            words = "\n".join(map(printable, record.getMessage().splitlines()))
            console.print(f"penstock: {words}", markup=False, emoji=False, highlight=False)

    logger, handler = logging.getLogger("penstock"), Handler(logging.INFO)
    before, logger.level = logger.level, logging.INFO
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level = before
