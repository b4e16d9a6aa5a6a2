"""Signs of life of consumers: when each was heard last. In memory alone.

Contract     A beat costs no commit. After an opening nobody was heard yet: everybody has his whole
             time again, counted from the first look.
"""

from __future__ import annotations

from collections.abc import Collection


class Signs:
    def __init__(self) -> None:
        #: (topic id, token) -> ms
        self._last: dict[tuple[int, int], int] = {}
        self._excused: set[tuple[int, int]] = set()

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
        self._last.clear()
        self._excused.clear()
