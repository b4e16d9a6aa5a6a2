"""Signs of life of consumers: when each was heard last, and who waits now. In memory alone.

Contract     A beat costs no commit. After an opening nobody was heard yet: everybody has his whole
             time again, counted from the first look.
Waiting      is a sign of life that goes on (`waiting`), for whoever asks for that with his poll. It
             may be a lie: the wire does not tell that a machine is gone, or a process stopped. So
             it counts only for consumers that hold nothing (topickeeping.py): what such a one is
             handed ends its poll, and from then on it has its time, as others have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager


class Signs:
    def __init__(self) -> None:
        #: (topic id, token) -> ms
        self._last: dict[tuple[int, int], int] = {}
        self._excused: set[tuple[int, int]] = set()
        self._waiting: Counter[tuple[int, int]] = Counter()

    def heard(self, topic_id: int, token: int, now_ms: int) -> None:
        self._last[topic_id, token] = now_ms
        self._excused.discard((topic_id, token))

    def excuse(self, topic_id: int, token: int, last_ms: int) -> bool:
        """As if it had been heard then; once, until it is really heard. -> whether it is excused"""
        if (topic_id, token) in self._excused:
            return False
        self._last[topic_id, token] = last_ms
        self._excused.add((topic_id, token))
        return True

    @contextmanager
    def waiting(self, topic_id: int, token: int) -> Iterator[None]:
        place = topic_id, token
        self._waiting[place] += 1
        try:
            yield
        finally:
            self._waiting[place] -= 1
            if not self._waiting[place]:
                del self._waiting[place]

    def waits(self, topic_id: int, token: int) -> bool:
        return (topic_id, token) in self._waiting

    def last_ms(self, topic_id: int, token: int, now_ms: int) -> int:
        """When it was heard last; now, where it never was."""
        return self._last.setdefault((topic_id, token), now_ms)

    def known_ms(self, topic_id: int, token: int) -> int | None:
        return self._last.get((topic_id, token))

    def forget(self, topic_id: int, kept: Collection[int] = ()) -> None:
        """Of this topic only these are there."""
        gone = [key for key in self._last if key[0] == topic_id and key[1] not in kept]
        for key in gone:
            del self._last[key]
            self._excused.discard(key)

    def clear(self) -> None:
        """Nobody was heard yet. Who waits waits all the same."""
        self._last.clear()
        self._excused.clear()
